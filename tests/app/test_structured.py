"""Structured answers on tiny real models: right whatever drafts, and the same as plain decoding."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Iterator

import pytest

from specllm.app.drafting import Drafting
from specllm.app.generation import Generation, Session
from specllm.config import ContextConfig, DraftConfig, GenerateConfig, SamplingConfig, StructureConfig
from specllm.decoding.cost import CALIBRATION_WIDTHS, CostModel, DraftCost
from specllm.decoding.protocols import FORCED, SPELLED
from specllm.decoding.sampling import KeyedSampler
from specllm.errors import NothingAllowed
from specllm.runtime.grammar import GrammarConstraint
from specllm.runtime.llama import LlamaModel
from specllm.runtime.vocab import detokenize
from tests import synthetic
from tests.app.sessions import rounds_of

SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 8},
        "kind": {"enum": ["alpha", "alphabet", "beta"]},
        "inner": {
            "type": "object", "additionalProperties": False, "required": ["is_it", "n"],
            "properties": {"is_it": {"type": "boolean"}, "n": {"type": "integer", "minimum": 0, "maximum": 999}},
        },
        "other": {"type": "array", "items": {"enum": ["the thing", "the other"]}, "maxItems": 4},
    },
    "required": ["name", "kind", "inner"],
    "additionalProperties": False,
}  # fmt: skip
STRUCTURES = {
    "schema": StructureConfig(kind="json_schema", text=json.dumps(SCHEMA)),
    "regex": StructureConfig(kind="regex", text="(it|the other|ä|日){4,8}"),
    "choice": StructureConfig(kind="choice", choices=("yes, it is the other", "yes", "no")),
    "lark": StructureConfig(kind="grammar", text='start: ("def " /[a-z]{1,4}/ "(self):\\n"){3}'),
}
DRAFTERS = ["none", "lookup", "reference", "wrong model", "close model", "auto"]
SAMPLINGS = [(0.0, 1.0), (0.0, 1.3), (1.0, 1.0), (1.0, 1.3)]  # temperature, repeat penalty

Answer = Callable[..., Generation]


def is_right(name: str, text: str) -> bool:
    """Whether the text is one of the structure's."""
    structure = STRUCTURES[name]
    if name == "schema":
        document = json.loads(text)
        return (
            {"name", "kind", "inner"} <= document.keys() <= SCHEMA["properties"].keys()
            and len(document["name"]) <= 8
            and document["kind"] in SCHEMA["properties"]["kind"]["enum"]
            and document["inner"].keys() == {"is_it", "n"}
            and document["inner"]["is_it"] in (True, False)
            and 0 <= document["inner"]["n"] <= 999
            and set(document.get("other", [])) <= {"the thing", "the other"}
        )
    pattern = r"(def [a-z]{1,4}\(self\):\n){3}" if name == "lark" else structure.text
    return text in structure.choices or bool(re.fullmatch(pattern, text))


@pytest.fixture
def answer(weights, prompt) -> Iterator[Answer]:
    """Answers in a structure to a prompt that holds some of its text; the contexts are freed at the end of the test."""
    models: list[LlamaModel] = []

    def model(name: str) -> LlamaModel:
        config = ContextConfig(n_ctx=1024, n_outputs_max=17, threads=1, kv_type="f32", flash_attention="off")
        models.append(LlamaModel(weights[name], config))
        return models[-1]

    def make(
        structure: StructureConfig, drafter: str = "none", sampling: SamplingConfig | None = None, k: int = 0, *,
        n: int = 300, architecture: str = "llama", stop: tuple[str, ...] = (),
    ) -> Generation:  # fmt: skip
        target = model(architecture)
        vocab = target.vocab
        sampling = sampling or SamplingConfig(temperature=0.0)
        constraint = GrammarConstraint(structure, vocab)
        drafting = Drafting(DraftConfig(lookup_min_match=1), KeyedSampler(sampling, constraint), constraint=constraint)
        example = '{"name": "the", "kind": "alpha", "inner": {"is_it": true, "n": 12}} yes, the other itit'
        drafting.reference = vocab.tokenize(example, adds_special=False, parses_special=False)
        if "model" in drafter or drafter == "auto":
            drafting.draft_model = model(
                "wrong model" if drafter == "wrong model" else f"close model of {architecture}"
            )
        drafting.target_cost = CostModel(dict.fromkeys(CALIBRATION_WIDTHS, 0.01))  # whatever there is gets drafted
        drafting.draft_cost = DraftCost(1e-4, 1e-5)
        name = "model" if "model" in drafter else drafter
        session = Session(target, drafting.make(name, is_controlled=name == "auto"))
        text = [*prompt, *drafting.reference]
        generation = session.generate(
            text, drafting.sampler, k, GenerateConfig(max_tokens=n, stop=stop, structure=structure), constraint
        )
        generation.rounds = rounds_of(generation)
        assert target.n_past == len(session.context) - 1
        return generation

    yield make
    for one in models:
        one.close()


@pytest.mark.parametrize("name", STRUCTURES)
@pytest.mark.parametrize("temperature_and_penalty", SAMPLINGS)
def test_the_answer_is_right_and_that_of_plain_decoding_for_every_drafter_and_draft_length(
    answer, name, temperature_and_penalty
):
    """Faults 22 and 23."""
    temperature, repeat_penalty = temperature_and_penalty
    for seed in (1, 2):
        sampling = SamplingConfig(temperature=temperature, repeat_penalty=repeat_penalty, seed=seed)
        plain = answer(STRUCTURES[name], "none", sampling)
        assert is_right(name, plain.text)
        assert plain.is_complete
        for drafter in DRAFTERS[1:]:
            for k in (0, 1, 4, 16):
                drafted = answer(STRUCTURES[name], drafter, sampling, k)
                assert drafted.tokens == plain.tokens, (drafter, k, drafted.text)
                assert (drafted.text, drafted.finish_reason) == (plain.text, plain.finish_reason)
                assert drafted.is_complete
                assert drafted.metrics.n_committed == drafted.metrics.n_rounds + drafted.metrics.n_accepted


@pytest.mark.parametrize("drafter", DRAFTERS[1:])
def test_forced_tokens_are_drafted_by_every_drafter_and_always_accepted(answer, drafter):
    drafted = answer(STRUCTURES["schema"], drafter, k=16)
    n_forced = n_spelled = 0
    for round in drafted.rounds:
        n_judged = round.n_accepted + round.is_rejected
        evidence = round.draft.evidence[:n_judged]
        assert all(i < round.n_accepted for i, one in enumerate(evidence) if one == FORCED)
        n_forced += evidence.count(FORCED)
        n_spelled += sum(one >= SPELLED for one in evidence[: round.n_accepted])
    assert n_forced > 15
    assert drafted.metrics.accepted_by_source["grammar"] == n_forced + n_spelled
    assert sum(drafted.metrics.accepted_by_source.values()) == drafted.metrics.n_accepted
    assert len(drafted.rounds) < len(drafted.tokens) * 0.75


@pytest.mark.parametrize("drafter", DRAFTERS)
def test_no_token_that_the_grammar_forbids_is_ever_verified(answer, weights, drafter):
    constraint = GrammarConstraint(STRUCTURES["schema"], weights["llama"].vocab)
    drafted = answer(STRUCTURES["schema"], drafter, SamplingConfig(temperature=1.0, seed=4), 8)
    before: list[int] = []
    for round in drafted.rounds:
        assert constraint.n_allowed(before, round.draft.tokens) == len(round.draft.tokens)
        before += round.tokens


def test_a_recurrent_model_keeps_to_the_grammar_too(answer):
    texts = {
        answer(STRUCTURES["schema"], drafter, k=8, architecture="mamba").text for drafter in ("none", "lookup", "auto")
    }
    assert len(texts) == 1
    assert is_right("schema", texts.pop())


@pytest.mark.parametrize("drafter", DRAFTERS)
def test_a_cut_answer_is_no_complete_one(answer, drafter):
    whole = answer(STRUCTURES["schema"], drafter, k=6)
    n = len(whole.tokens)
    assert whole.tokens[-1] not in (
        synthetic.EOS,
        synthetic.IM_END,
    )  # nothing could follow: no forward is spent on its end
    cut = answer(STRUCTURES["schema"], drafter, k=6, n=n - 1)
    assert (cut.tokens, cut.finish_reason, cut.is_complete) == (whole.tokens[:-1], "length", False)
    exact = answer(STRUCTURES["schema"], drafter, k=6, n=n)
    assert (exact.tokens, exact.finish_reason, exact.is_complete) == (whole.tokens, "stop", True)


def test_a_cut_answer_that_could_go_on_is_not_complete_either(answer):
    cut = answer(StructureConfig(kind="regex", text="[a-z]+"), n=5)
    assert (cut.finish_reason, cut.is_complete) == ("length", False)


def test_a_stop_string_inside_the_grammar_leaves_it_incomplete(answer):
    stopped = answer(STRUCTURES["schema"], "lookup", k=6, stop=('"kind"',))
    assert (stopped.finish_reason, stopped.is_complete) == ("stop", False)


@pytest.mark.parametrize("drafter", DRAFTERS)
def test_an_end_inside_the_grammar_ends_the_answer(answer, drafter):
    structure = StructureConfig(kind="grammar", text='start: "the " <|im_end|> "other"')
    ended = answer(structure, drafter, k=6)
    assert (ended.text, ended.finish_reason, ended.is_complete) == ("the ", "stop", False)
    assert ended.tokens[-1] == synthetic.IM_END


@pytest.mark.parametrize("drafter", DRAFTERS)
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_bias_against_all_that_is_allowed_is_an_error(answer, weights, drafter, temperature):
    vocab = weights["llama"].vocab
    forbidden = [token for token in range(vocab.n_tokens) if vocab.piece(token)[:1] == b"l"]
    sampling = SamplingConfig(temperature=temperature, logit_bias=tuple((token, float("-inf")) for token in forbidden))
    with pytest.raises(NothingAllowed, match="logit bias") as error:
        answer(StructureConfig(kind="choice", choices=("alpha", "alter")), drafter, sampling, 4)
    assert error.value.hint


def test_a_bias_picks_among_what_is_allowed(answer, weights):
    (y,) = weights["llama"].vocab.tokenize("y", adds_special=False, parses_special=False)
    structure = StructureConfig(kind="choice", choices=("yes", "no"))
    for bias, text in ((-100.0, "no"), (100.0, "yes")):
        sampling = SamplingConfig(temperature=1.0, logit_bias=((y, bias), (synthetic.FIRST_BYTE + ord("y"), bias)))
        assert answer(structure, sampling=sampling).text == text


def test_the_colours_of_a_mixed_draft_tell_forced_from_looked_up(answer):
    drafted = answer(STRUCTURES["schema"], "reference", k=16)
    mixed = [round.draft for round in drafted.rounds if len(set(round.draft.sources)) > 1]
    assert mixed
    assert all(set(draft.sources) == {"grammar", "reference"} for draft in mixed)
    assert detokenize(drafted._session.target.vocab, drafted.tokens) == drafted.text


def test_in_a_round_all_drafters_together_ask_once_what_follows(answer, monkeypatch):
    asked, worked_out = Counter(), Counter()
    foreseen, forced = GrammarConstraint.foreseen, GrammarConstraint.forced
    monkeypatch.setattr(
        GrammarConstraint, "foreseen", lambda self, context: asked.update([tuple(context)]) or foreseen(self, context)
    )
    monkeypatch.setattr(
        GrammarConstraint, "forced", lambda self, context: worked_out.update([tuple(context)]) or forced(self, context)
    )
    drafted = answer(STRUCTURES["schema"], "auto", k=16)
    assert drafted.metrics.accepted_by_source["grammar"]
    assert max(asked.values()) >= 3  # its own drafter, reference and lookup
    assert asked.keys() == worked_out.keys()
    assert set(worked_out.values()) == {1}
