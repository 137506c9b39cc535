"""A trace and what comes of it: the same rounds, figures and text, at the same pace."""

from __future__ import annotations

import inspect
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specllm.app.generate import GenerateRequest
from specllm.app.generate import answer as answering
from specllm.app.trace import replay
from specllm.app.trace.reader import Trace, read_trace
from specllm.app.trace.replay import AT_ONCE, Replay
from specllm.app.trace.writer import TraceWriter
from specllm.config import ContextConfig, DraftConfig, GenerateConfig
from specllm.decoding.metrics import Metrics
from specllm.decoding.protocols import Draft, Round
from specllm.errors import StorageError
from tests.app.trace.traces import EOG, logprobs, runs, seconds, text_of, write


def played(trace: Trace, **options: Any) -> Replay:
    answer = Replay(trace, speed=AT_ONCE, **options)
    answer.finish()
    return answer


@settings(deadline=None)
@given(run=runs, n_prediction=st.integers(0, 9), prefill_s=seconds)
def test_a_replay_has_every_round_every_figure_and_the_text(tmp_path_factory, run, n_prediction, prefill_s) -> None:
    path = tmp_path_factory.mktemp("trace") / "trace.jsonl"
    metrics = Metrics(n_prompt=50, n_reused=7, n_prediction=n_prediction, prefill_s=prefill_s)
    text = write(path, run, metrics)
    trace = read_trace(path)
    assert [step.round for step in trace.steps] == run
    answer = played(trace)
    assert answer.metrics == metrics
    assert answer.metrics.as_dict() == metrics.as_dict()
    assert answer.result()["text"] == text
    assert (answer.finish_reason, answer.strategy) == ("length", "lookup k=4")
    assert answer.last_round == run[-1]


@settings(deadline=None, max_examples=20)
@given(run=runs)
def test_a_replay_has_the_log_probabilities_of_the_run(tmp_path_factory, run) -> None:
    path = tmp_path_factory.mktemp("trace") / "trace.jsonl"
    write(path, run, Metrics(n_prompt=5), has_logprobs=True)
    answer = played(read_trace(path))
    assert answer.result()["logprobs"] == [record for round in run for record in logprobs(round)]
    write(path, run, Metrics(n_prompt=5))
    assert "logprobs" not in played(read_trace(path)).result()


def test_a_trace_of_the_first_kind_has_the_texts_of_its_tokens(tmp_path: Path) -> None:
    """Without `shown` and `end`: the reason of the last round and the texts have to do."""
    path = tmp_path / "trace.jsonl"
    run = [
        Round((0, 0, 1), Draft((0, 0, 0), "lookup"), 0.0, 0.1, 0.0),
        Round((0, EOG), Draft((0,), "model"), 0.0, 0.1, 0.0, "eog"),
    ]
    with TraceWriter(path, lambda token: "<end>" if token == EOG else text_of(token)) as writer:
        for round in run:
            writer.write(round, Metrics())
    lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    path.write_text("".join(json.dumps({k: v for k, v in line.items() if k != "shown"}) + "\n" for line in lines))
    answer = played(read_trace(path))
    assert answer.result()["text"] == "aa\na"
    assert (answer.finish_reason, answer.strategy) == ("stop", "lookup, model")


def test_an_older_trace_has_one_speed_of_plain_decoding_for_all_its_rounds(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    write(path, [Round((0, 0, 1), Draft((0, 0, 0), "lookup"), 0.0, 0.1, 0.0)] * 3, Metrics())
    *lines, last = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    last["end"]["plain_tok_per_s"] = 12.5
    path.write_text("".join(json.dumps(line) + "\n" for line in [*lines, last]), encoding="utf-8")
    metrics = played(read_trace(path)).metrics
    assert metrics.plain_tok_per_s == pytest.approx(12.5)
    assert metrics.speedup_over_plain == pytest.approx(30 / 12.5)


def test_a_run_that_was_killed_has_no_finish_reason(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    write(path, [Round((0,), Draft((), "none"), 0.0, 0.1, 0.0)], Metrics(), is_ended=False)
    answer = played(read_trace(path))
    assert (answer.finish_reason, answer.strategy) == (None, "plain decoding")


# ---- pace ------------------------------------------------------------------------------------------------------------


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """A time that passes only in waits."""
    now = [100.0]
    monkeypatch.setattr(replay, "perf_counter", lambda: now[0])
    monkeypatch.setattr(replay, "sleep", lambda seconds: now.__setitem__(0, now[0] + seconds))
    return now


@pytest.mark.parametrize("speed", [1.0, 2.0, 0.25])
def test_text_comes_when_it_came(clock, tmp_path: Path, speed: float) -> None:
    path = tmp_path / "trace.jsonl"
    run = [Round((0,), Draft((), "none"), 0.1, 0.2 * i, 0.05) for i in range(5)]
    write(path, run, Metrics(n_prompt=5, prefill_s=2.0))
    came = [clock[0] - 100 for chunks in Replay(read_trace(path), speed=speed) if chunks]
    expected = [(2.0 + sum(0.15 + 0.2 * j for j in range(i + 1))) / speed for i in range(5)]
    assert came == pytest.approx(expected)


def test_drawing_costs_no_time(clock, tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    write(path, [Round((0,), Draft((), "none"), 0.0, 0.5, 0.0)] * 6, Metrics(n_prompt=5))
    for chunks in Replay(read_trace(path)):
        if chunks:
            clock[0] += 0.3
    assert clock[0] - 100 == pytest.approx(6 * 0.5 + 0.3)  # the last drawing ends later


def test_the_prefill_is_seen_to_go_on(clock, tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    write(path, [Round((0,), Draft((), "none"), 0.0, 0.5, 0.0)], Metrics(n_prompt=5, prefill_s=4.0))
    answer = Replay(read_trace(path), speed=2)
    seen = [answer.metrics.prefill_s for _ in answer if not answer.metrics.n_rounds]
    assert seen == sorted(seen)
    assert len(seen) > 15
    assert 0 < seen[1] < 1
    assert answer.metrics.prefill_s == 4.0


def test_an_interrupted_replay_knows_what_was_played(clock, tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    write(path, [Round((0,), Draft((), "none"), 0.0, 0.01, 0.0)] * 6, Metrics(n_prompt=5))
    answer = Replay(read_trace(path))
    for _ in answer:
        if answer.metrics.n_rounds == 2:
            answer.interrupt()
            break
    assert (answer.finish_reason, answer.is_complete, answer.metrics.n_committed) == ("interrupted", False, 2)
    assert answer.result()["text"] == "aa"


def test_a_last_line_that_does_not_fit_on_the_disk_is_told() -> None:
    """It is written when the trace ends: too large for any buffer, so the write itself fails."""
    with (
        pytest.raises(StorageError, match="No space left"),
        TraceWriter(Path("/dev/full"), lambda token: "x" * 1_000_000) as writer,
    ):
        writer.write(Round((0,), Draft((), "none"), 0.0, 0.1, 0.0), Metrics())


def test_an_answer_that_was_interrupted_between_rounds_leaves_a_trace_and_nothing_running(
    llama_gguf: Path, tmp_path: Path
) -> None:
    path = tmp_path / "trace.jsonl"
    request = GenerateRequest(
        prompt="hi", target=str(llama_gguf), sampling={"temperature": 0.0, "seed": 1}, context=ContextConfig(threads=1),
        draft=DraftConfig(drafter="lookup", draft_length=3), generate=GenerateConfig(is_raw=True, trace=path),
    )  # fmt: skip
    with answering(request) as running:
        for _ in running:
            if running.metrics.n_rounds == 4:
                break
        running.interrupt()
    assert inspect.getgeneratorstate(running._chunks) == inspect.GEN_CLOSED
    again = played(read_trace(path))
    assert again.result() == running.result()
    assert (again.finish_reason, again.metrics.n_rounds) == ("interrupted", 4)
