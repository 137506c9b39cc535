"""Random small grammars through every drafter: always valid, always plain decoding's, and nothing forbidden is verified."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from itertools import takewhile

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from specllm.app.drafting import Drafting
from specllm.app.generation import Generation, Session
from specllm.config import ContextConfig, DraftConfig, GenerateConfig, SamplingConfig, StructureConfig
from specllm.decoding.constraint import TimedConstraint
from specllm.decoding.cost import CALIBRATION_WIDTHS, CostModel, DraftCost
from specllm.decoding.protocols import GUESSED, SPELLED
from specllm.decoding.sampling import KeyedSampler
from specllm.runtime.grammar import GrammarConstraint
from specllm.runtime.llama import LlamaModel
from tests.app.sessions import rounds_of

DRAFTERS = ["none", "lookup", "reference", "model", "auto"]
words = st.sampled_from(["it", "the ", " the", " th", "self.", "é", "日", "(", "0", "other"]).map(re.escape)
atoms = words | st.sampled_from(["[a-c]", "[0-9]{2}", "(yes|no)", "(the thing|the other)"])


@st.composite
def several(draw: st.DrawFn, inner: st.SearchStrategy[str]) -> str:
    kind = draw(st.sampled_from(["sequence", "choice", "optional", "repeat"]))
    parts = draw(st.lists(inner, min_size=1, max_size=3))
    if kind == "sequence":
        return "".join(parts)
    if kind == "choice":
        return f"({'|'.join(parts)})"
    return f"({parts[0]})?" if kind == "optional" else f"({parts[0]}){{1,3}}"


# an end, so that no grammar is empty and each has something that is forced
patterns = st.recursive(atoms, several, max_leaves=6).map(lambda pattern: f"{pattern} end\\.")


@st.composite
def objects(draw: st.DrawFn, inner: st.SearchStrategy[dict[str, object]]) -> dict[str, object]:
    names = draw(st.lists(st.sampled_from(["it", "the", "other", "is"]), unique=True, min_size=1, max_size=3))
    required = draw(st.lists(st.sampled_from(names), unique=True))
    layout = {} if draw(st.booleans()) else {"additionalProperties": False}
    return {"type": "object", "properties": {name: draw(inner) for name in names}, "required": required, **layout}


values = st.sampled_from([
    {"type": "boolean"}, {"enum": ["the thing", "the other"]}, {"type": "string", "maxLength": 4},
    {"type": "array", "items": {"type": "integer", "minimum": 0, "maximum": 20}, "maxItems": 2},
])  # fmt: skip
schemas = objects(values | objects(values))


@pytest.fixture(scope="module")
def models(weights) -> Iterator[tuple[LlamaModel, LlamaModel]]:
    config = ContextConfig(n_ctx=512, n_outputs_max=17, threads=1, kv_type="f32", flash_attention="off")
    both = LlamaModel(weights["llama"], config), LlamaModel(weights["close model of llama"], config)
    yield both
    for model in both:
        model.close()


class Watched:
    """A drafter whose drafts are looked at before they are verified, which they are up to the end of the answer."""

    def __init__(self, inner, constraint, eog) -> None:
        self._inner, self._constraint, self._eog = inner, constraint, eog
        self.name, self.begin, self.observe = inner.name, inner.begin, inner.observe
        self.n_drafted = 0

    def propose(self, context, k):
        draft = self._inner.propose(context, k)
        assert len(draft.tokens) <= k
        verified = list(takewhile(lambda token: token not in self._eog, draft.tokens))
        assert self._constraint.n_allowed(context, verified) == len(verified)
        self.n_drafted += len(draft.tokens)
        return draft


def regex(pattern: str) -> StructureConfig:
    return StructureConfig(kind="regex", text=pattern)


def json_schema(schema: object) -> StructureConfig:
    return StructureConfig(kind="json_schema", text=json.dumps(schema))


def answer(
    models, prompt, structure: StructureConfig, drafter: str, sampling: SamplingConfig, k: int, n: int = 200
) -> Generation:
    target, draft_model = models
    for model in models:
        model.rollback(0)
    constraint = TimedConstraint(GrammarConstraint(structure, target.vocab))
    drafting = Drafting(DraftConfig(lookup_min_match=1), KeyedSampler(sampling, constraint), constraint=constraint)
    drafting.reference = prompt[5:60]
    drafting.draft_model, drafting.draft_cost = draft_model, DraftCost(1e-4, 1e-5)
    drafting.target_cost = CostModel(dict.fromkeys(CALIBRATION_WIDTHS, 0.01))
    session = Session(
        target, Watched(drafting.make(drafter, is_controlled=drafter == "auto"), constraint, target.vocab.eog)
    )
    generation = session.generate(prompt, drafting.sampler, k, GenerateConfig(max_tokens=n), constraint)
    generation.rounds = rounds_of(generation)
    return generation


@settings(deadline=None, max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(pattern=patterns, drafter=st.sampled_from(DRAFTERS[1:]), k=st.integers(1, 16),
       temperature=st.sampled_from([0.0, 1.0]), penalty=st.sampled_from([1.0, 1.3]), seed=st.integers(0, 99))  # fmt: skip
def test_any_grammar_any_drafter_any_length(models, prompt, pattern, drafter, k, temperature, penalty, seed):
    sampling = SamplingConfig(temperature=temperature, repeat_penalty=penalty, seed=seed)
    plain = answer(models, prompt, regex(pattern), "none", sampling, 0)
    drafted = answer(models, prompt, regex(pattern), drafter, sampling, k)
    assert re.fullmatch(pattern, plain.text)
    assert (drafted.tokens, drafted.text, drafted.finish_reason) == (plain.tokens, plain.text, "stop")
    assert drafted.is_complete


@settings(deadline=None, max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(schema=schemas, drafter=st.sampled_from(DRAFTERS[1:]), k=st.integers(1, 16),
       temperature=st.sampled_from([0.0, 1.0]), seed=st.integers(0, 99))  # fmt: skip
def test_any_schema_any_drafter_any_length(models, prompt, schema, drafter, k, temperature, seed):
    """What the answer probably names may be drafted; what it does name is the model's choice."""
    sampling = SamplingConfig(temperature=temperature, seed=seed)
    plain = answer(models, prompt, json_schema(schema), "none", sampling, 0, n=60)
    drafted = answer(models, prompt, json_schema(schema), drafter, sampling, k, n=60)
    assert (drafted.tokens, drafted.text, drafted.finish_reason) == (plain.tokens, plain.text, plain.finish_reason)
    assert drafted.is_complete == plain.is_complete


UNCERTAIN = {  # a structure, the evidence of what is drafted and not certain
    "spelled": (regex(r"(it (the|that|to|a) ){4} end\."), range(SPELLED, GUESSED)),
    "guessed": (
        json_schema({
            "type": "array", "minItems": 3, "items": {"type": "object", "properties": {
                "name": {"type": "string", "maxLength": 3}, "it": {"type": "boolean"}, "the": {"type": "boolean"},
            }, "required": ["name"], "additionalProperties": False},
        }),
        (GUESSED,),
    ),
}  # fmt: skip


@pytest.mark.parametrize("drafter", DRAFTERS[1:-1])  # what `auto` drafts is a matter of time
@pytest.mark.parametrize("name", UNCERTAIN)
def test_text_that_is_not_certain_is_drafted_accepted_and_rejected_and_stays_the_same(models, prompt, drafter, name):
    structure, uncertain = UNCERTAIN[name]
    judged = set()
    for seed in range(4):
        sampling = SamplingConfig(temperature=1.0, seed=seed)
        plain, drafted = (
            answer(models, prompt, structure, *how) for how in (("none", sampling, 0), (drafter, sampling, 8))
        )
        assert drafted.tokens == plain.tokens
        for round in drafted.rounds:
            evidence = round.draft.evidence[: round.n_accepted + round.is_rejected]
            judged |= {i < round.n_accepted for i, one in enumerate(evidence) if one in uncertain}
    assert judged == {True, False}
