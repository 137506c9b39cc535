"""Sessions and generations on tiny real models: whatever is drafted, the tokens are those of plain decoding."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from specllm.app.drafting import new_acceptance
from specllm.app.generation import Generation, Session, traced
from specllm.app.trace import TraceWriter
from specllm.config import ContextConfig, GenerateConfig, SamplingConfig
from specllm.decoding.controller import Controller, DraftCost
from specllm.decoding.cost import CALIBRATION_WIDTHS, CostModel
from specllm.decoding.protocols import Round
from specllm.decoding.sampling import KeyedSampler
from specllm.drafters.auto import AutoDrafter
from specllm.drafters.lookup import LookupDrafter
from specllm.drafters.model import ModelDrafter, floor_rule
from specllm.drafters.none import NoDrafter
from specllm.errors import ContextFull
from specllm.runtime.llama import LlamaModel, Weights
from specllm.runtime.vocab import detokenize
from tests import synthetic

ARCHITECTURES = ["llama", "mamba"]
DRAFTERS = ["none", "lookup", "wrong model", "close model", "target itself", "auto"]
SAMPLINGS = [(0.0, 1.0), (0.0, 1.3), (0.7, 1.0), (0.7, 1.3), (1.3, 1.3)]  # temperature, repeat penalty
GREEDY = SamplingConfig(temperature=0.0)
TEXT = "def it(self):\n    return self.the(it)\n\n\ndef other(self):\n    return self.the(other)\n\n\ndef "

MakeSession = Callable[..., Session]


@pytest.fixture(scope="module")
def weights(synthetic_models, llama_gguf, mamba_gguf, draft_gguf, close_draft_gguf) -> Iterator[dict[str, Weights]]:
    close_mamba = synthetic.write_mamba(synthetic_models / "close_mamba.gguf", noise=0.05)
    paths = {
        "llama": llama_gguf, "mamba": mamba_gguf, "wrong model": draft_gguf,
        "close model of llama": close_draft_gguf, "close model of mamba": close_mamba,
    }  # fmt: skip
    loaded = {name: Weights(path) for name, path in paths.items()}
    yield loaded
    for one in loaded.values():
        one.close()


@pytest.fixture(scope="module")
def prompt(weights) -> list[int]:
    return weights["llama"].vocab.tokenize(TEXT, adds_special=True, parses_special=False)


@pytest.fixture
def make_session(weights) -> Iterator[MakeSession]:
    """Makes sessions whose contexts are freed at the end of the test."""
    models: list[LlamaModel] = []

    def model(name: str, n_ctx: int) -> LlamaModel:
        config = ContextConfig(n_ctx=n_ctx, n_outputs_max=17, threads=1, kv_type="f32", flash_attention="off")
        models.append(LlamaModel(weights[name], config))
        return models[-1]

    def make(
        architecture: str = "llama", drafter: str = "none", sampling: SamplingConfig = GREEDY, *,
        n_ctx: int = 512, draft_ctx: int = 512, floor: float = 0.0,
    ) -> Session:  # fmt: skip
        target = model(architecture, n_ctx)
        if drafter in ("none", "lookup"):
            return Session(target, NoDrafter() if drafter == "none" else LookupDrafter(min_match=2))
        if drafter == "auto":  # forwards that cost the same at every width: whatever there is gets drafted
            controller = Controller(
                CostModel(dict.fromkeys(CALIBRATION_WIDTHS, 0.01)), new_acceptance(), DraftCost(1e-4, 1e-5)
            )
            rule = floor_rule(floor)
            close = model(f"close model of {architecture}", draft_ctx)
            drafts_model = ModelDrafter(close, KeyedSampler(sampling), rule=rule)
            return Session(target, AutoDrafter(controller, [LookupDrafter(2)], drafts_model), draft_model=close)
        names = {"target itself": architecture, "close model": f"close model of {architecture}"}
        draft = model(names.get(drafter, drafter), draft_ctx)
        return Session(target, ModelDrafter(draft, KeyedSampler(sampling), rule=floor_rule(floor)), draft_model=draft)

    yield make
    for one in models:
        one.close()


def rounds_of(generation: Generation) -> list[Round]:
    """Generates to the end; the rounds it took."""
    rounds: list[Round] = []
    for _ in generation:
        if generation.metrics.n_rounds > len(rounds):
            rounds.append(generation.last_round)
    return rounds


def run(
    session: Session, prompt: list[int], sampling: SamplingConfig = GREEDY, k: int = 0, n: int = 40, **config
) -> Generation:
    generation = session.generate(prompt, KeyedSampler(sampling), k, GenerateConfig(max_tokens=n, **config))
    rounds_of(generation)
    return generation


# ---- the same text ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("temperature_and_penalty", SAMPLINGS)
def test_the_tokens_are_the_same_for_every_drafter_and_draft_length(
    make_session, prompt, architecture, temperature_and_penalty
):
    """Faults 22 and 25."""
    temperature, repeat_penalty = temperature_and_penalty
    sampling = SamplingConfig(temperature=temperature, repeat_penalty=repeat_penalty, seed=11)
    plain = run(make_session(architecture), prompt, sampling)
    tokens, text = plain.tokens, plain.text
    assert len(tokens) == 40 or plain.finish_reason == "stop"
    n_accepted = dict.fromkeys(DRAFTERS, 0)
    for drafter in DRAFTERS:
        session = make_session(architecture, drafter, sampling)
        for k in (0, 1, 2, 4, 8, 16):
            generation = run(session, prompt, sampling, k)
            assert generation.tokens == tokens, (drafter, k)
            assert generation.text == text
            assert generation.finish_reason == plain.finish_reason
            metrics = generation.metrics
            assert metrics.n_committed == metrics.n_rounds + metrics.n_accepted == len(tokens)
            assert session.target.n_past == len(session.context) - 1
            assert metrics.n_drafted == 0 or (k > 0 and drafter != "none")
            n_accepted[drafter] += metrics.n_accepted
    assert n_accepted["target itself"] > 3 * len(tokens)  # it did draft, in all five lengths
    assert n_accepted["close model"] > 0


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_the_target_as_its_own_draft_is_right_at_every_position(make_session, prompt, architecture, temperature):
    """Fault 7: a cache rewound by one too many or too few only looks like a bad drafter."""
    sampling = SamplingConfig(temperature=temperature, seed=2)
    session = make_session(architecture, "target itself", sampling)
    metrics = run(session, prompt, sampling, k=6, n=200).metrics
    assert len(metrics.acceptance_by_position) == 6
    assert min(metrics.acceptance_by_position) >= 0.99
    assert metrics.n_drafting_rounds >= 25


@pytest.mark.parametrize("drafter", DRAFTERS)
@pytest.mark.parametrize("n", range(1, 21))
def test_max_tokens_is_exact(make_session, prompt, drafter, n):
    plain = run(make_session(), prompt, n=20).tokens
    generation = run(make_session(drafter=drafter), prompt, k=7, n=n)
    assert generation.tokens == plain[:n]
    assert generation.finish_reason == "length"


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("drafter", DRAFTERS)
def test_a_context_that_fills_during_a_draft_ends_the_answer_with_length(make_session, prompt, architecture, drafter):
    """Fault 15."""
    long = (prompt * 10)[:200]
    plain = run(make_session(architecture, n_ctx=512), long, n=56).tokens
    session = make_session(architecture, drafter, n_ctx=256, draft_ctx=256)
    generation = run(session, long, k=16, n=200)
    assert generation.finish_reason == "length"
    assert generation.tokens == plain
    assert len(session.context) == 256


@pytest.mark.parametrize("drafter", ["close model", "target itself"])
def test_a_draft_window_smaller_than_the_prompt_changes_nothing(make_session, prompt, drafter):
    """Fault 16."""
    long = (prompt * 10)[:300]
    plain = run(make_session(), long).tokens
    generation = run(make_session(drafter=drafter, draft_ctx=64), long, k=4)
    assert generation.tokens == plain
    assert generation.metrics.n_drafted > 40


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_a_stop_string_ends_text_and_cache_alike_for_every_draft_length(make_session, prompt, architecture):
    plain = run(make_session(architecture), prompt)
    for length in (1, 3):
        for start in range(4, len(plain.text) - length, 5):
            stop = plain.text[start : start + length]
            if "\ufffd" in stop:
                continue
            by_length = []
            for k in (0, 5):
                session = make_session(architecture, "target itself")
                generation = run(session, prompt, k=k, stop=(stop,))
                assert generation.text == plain.text[: plain.text.find(stop)]
                assert generation.finish_reason == "stop"
                assert session.target.n_past == len(session.context) - 1
                by_length.append((generation.tokens, generation.metrics.n_committed))
            assert by_length[0] == by_length[1]


def test_the_text_is_that_of_the_tokens(make_session, prompt):
    session = make_session(drafter="close model")
    generation = run(session, prompt, k=4, n=100)
    assert generation.text == detokenize(session.target.vocab, generation.tokens)


def test_prompts_of_one_token_work_and_of_none_or_too_many_are_refused(make_session, prompt):
    session = make_session(drafter="lookup", n_ctx=256)
    assert len(run(session, [synthetic.BOS], k=4, n=5).tokens) == 5
    for wrong, says in (([], "empty"), ((prompt * 10)[:256], r"256 tokens .* 256")):
        with pytest.raises(ContextFull, match=says) as error:
            session.generate(wrong, KeyedSampler(GREEDY), 4, GenerateConfig())
        assert error.value.hint


# ---- several turns ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("drafter", DRAFTERS)
def test_a_second_turn_reads_only_what_is_new(make_session, prompt, architecture, drafter):
    """Fault 18."""
    session = make_session(architecture, drafter)
    for stop in ((), ("e",)):
        run(session, prompt, k=5, n=30, stop=stop)
        assert session.target.n_past == len(session.context) - 1
        longer = [*session.context, *prompt[:20]]
        fresh = run(make_session(architecture), longer).tokens
        n_cached = session.target.n_past
        second = run(session, longer, k=5)
        assert second.metrics.n_reused == n_cached
        assert second.tokens == fresh


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("n_shared", [0, 1, 30])
def test_another_prompt_reuses_what_it_shares_and_forgets_the_rest(make_session, prompt, architecture, n_shared):
    other = [*prompt[:n_shared], 100, *prompt[40:70]]
    session = make_session(architecture, "target itself")
    run(session, prompt, k=5)
    generation = run(session, other, k=5)
    assert generation.metrics.n_reused == n_shared
    assert generation.tokens == run(make_session(architecture), other).tokens


def test_the_same_prompt_again_reads_only_its_last_token(make_session, prompt):
    session = make_session(drafter="lookup")
    first = run(session, prompt, k=5).tokens
    again = run(session, prompt, k=5)
    assert again.metrics.n_reused == len(prompt) - 1
    assert again.tokens == first


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("drafter", [name for name in DRAFTERS if name != "auto"])  # that one keeps what it learned
def test_nothing_of_a_long_request_leaks_into_the_next(make_session, prompt, architecture, drafter):
    """Fault 6: drafts and rounds, not only tokens, are those of a fresh session."""
    long, short = (prompt * 10)[:300], prompt[:30]
    used, fresh = make_session(architecture, drafter), make_session(architecture, drafter)
    run(used, long, k=6)
    of_both = []
    for session in (used, fresh):
        rounds = rounds_of(session.generate(short, KeyedSampler(GREEDY), 6, GenerateConfig(max_tokens=60)))
        of_both.append([(round.tokens, round.draft) for round in rounds])
    assert of_both[0] == of_both[1]


# ---- Ctrl-C ----------------------------------------------------------------------------------------------------------


class Interrupting:
    """Calls through to `function` and raises KeyboardInterrupt at its n-th call, before or after what it does."""

    def __init__(self, function, at_call: int, *, after: bool = False) -> None:
        self.function, self.calls_left, self.after = function, at_call, after

    def __call__(self, *arguments, **keywords):
        self.calls_left -= 1
        if self.calls_left == 0 and not self.after:
            raise KeyboardInterrupt
        result = self.function(*arguments, **keywords)
        if self.calls_left == 0:
            raise KeyboardInterrupt
        return result


def interrupted_turn(session: Session, prompt: list[int], place: str, at_call: int, monkeypatch) -> Generation:
    """A turn that Ctrl-C ends in the given place of some round."""
    sampler = KeyedSampler(GREEDY)
    generation = session.generate(prompt, sampler, 4, GenerateConfig(max_tokens=60))
    steps = iter(generation)
    for _ in range(4):
        next(steps)  # the prefill and some rounds
    with monkeypatch.context() as patch:
        owner, name, after = {
            "draft": (session.drafter, "propose", False),
            "end of draft": (session.drafter, "propose", True),
            "draft forward": (session.draft_model, "forward", False),
            "verify": (session.target, "forward", False),
            "end of verify": (session.target, "forward", True),
            "commit": (sampler, "pick", False),
            "end of commit": (sampler, "pick", True),
            "rollback": (session.target, "rollback", False),
            "end of rollback": (session.target, "rollback", True),
            "observe": (session.drafter, "observe", False),
            "print": (None, None, None),
        }[place]
        if owner is not None:
            patch.setattr(owner, name, Interrupting(getattr(owner, name), at_call, after=after))
            for _ in steps:
                pass
    if place == "print":
        generation.interrupt()
    assert generation.finish_reason == "interrupted"
    return generation


PLACES = [
    "draft", "end of draft", "draft forward", "verify", "end of verify", "commit", "end of commit", "rollback",
    "end of rollback", "observe", "print",
]  # fmt: skip


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("place", PLACES)
def test_after_ctrl_c_anywhere_the_next_turn_is_that_of_a_fresh_process(
    make_session, prompt, monkeypatch, architecture, place
):
    """Fault 19."""
    for at_call in (1, 2, 3):
        for goes_on in (True, False):
            session = make_session(architecture, "close model")
            interrupted_turn(session, prompt, place, at_call, monkeypatch)
            following = [*session.context, 100, 101] if goes_on else [*prompt[:30], 100, *prompt[40:60]]
            fresh = run(make_session(architecture), following).tokens
            assert run(session, following, k=4).tokens == fresh, (at_call, goes_on)
            assert session.target.n_past == len(session.context) - 1


def test_ctrl_c_in_the_rollback_to_another_prompt_leaves_no_wrong_cache(make_session, prompt, monkeypatch):
    other = [*prompt[:30], 100, *prompt[40:60]]
    session = make_session()
    run(session, prompt)
    with monkeypatch.context() as patch:
        patch.setattr(session.target, "rollback", Interrupting(session.target.rollback, 1))
        assert run(session, other).finish_reason == "interrupted"
    assert run(session, other).tokens == run(make_session(), other).tokens


def test_ctrl_c_while_the_prompt_is_read_leaves_what_was_read(make_session, prompt, monkeypatch):
    long = prompt * 12
    session = make_session(n_ctx=2048)
    with monkeypatch.context() as patch:
        patch.setattr(session.target, "forward", Interrupting(session.target.forward, 2))
        generation = run(session, long)
    assert (generation.finish_reason, generation.text) == ("interrupted", "")
    again = run(session, long)
    assert again.metrics.n_reused == 512  # one step of the prefill
    assert again.tokens == run(make_session(n_ctx=2048), long).tokens


# ---- the trace -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("drafter", ["none", "lookup", "close model"])
def test_a_trace_has_a_line_a_round_and_adds_up_to_the_figures_and_the_text(
    make_session, prompt, tmp_path: Path, drafter
):
    session = make_session(drafter=drafter)
    vocab = session.target.vocab
    generation = session.generate(prompt, KeyedSampler(GREEDY), 5, GenerateConfig(max_tokens=50))
    path = tmp_path / "trace.jsonl"
    with TraceWriter(path, lambda token: vocab.piece(token, shows_special=True).decode(errors="replace")) as writer:
        shown = "".join(chunk.text for chunks in traced(generation, writer) for chunk in chunks)
    lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    metrics = generation.metrics
    assert [line["round"] for line in lines] == list(range(metrics.n_rounds))
    tokens = [token for line in lines for token in line["tokens"]]
    assert tokens == generation.tokens
    assert detokenize(vocab, tokens) == generation.text == shown
    assert all(len(line["texts"]) == len(line["tokens"]) == line["n_accepted"] + 1 for line in lines)
    assert all(line["width"] == len(line["draft"]) + 1 for line in lines)
    assert all(line["tokens"][: line["n_accepted"]] == line["draft"][: line["n_accepted"]] for line in lines)
    assert sum(len(line["draft"]) for line in lines) == metrics.n_drafted
    assert sum(line["n_accepted"] for line in lines) == metrics.n_accepted
    for name in ("draft_s", "verify_s", "rest_s"):
        assert sum(line[name] for line in lines) == pytest.approx(getattr(metrics, name))
    assert [line["reason"] for line in lines] == [None] * (len(lines) - 1) + ["length"]
    assert lines[0]["prompt"] == {"n_prompt": len(prompt), "n_reused": 0, "prefill_s": metrics.prefill_s}
    assert not any("prompt" in line for line in lines[1:])
    assert list(tmp_path.iterdir()) == [path]  # nothing is left beside it
