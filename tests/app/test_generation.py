"""Generations on tiny real models: whatever is drafted, the tokens are those of plain decoding."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from specllm.app.generation import traced
from specllm.app.trace.writer import TraceWriter
from specllm.config import GenerateConfig, SamplingConfig
from specllm.decoding.sampling import KeyedSampler
from specllm.errors import ContextFull
from specllm.runtime.vocab import detokenize
from tests import synthetic
from tests.app.sessions import ARCHITECTURES, DRAFTERS, GREEDY, run

SAMPLINGS = [(0.0, 1.0), (0.0, 1.3), (0.7, 1.0), (0.7, 1.3), (1.3, 1.3)]  # temperature, repeat penalty


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
