"""A trace and what comes of it: the same rounds, figures and text, or a message that names the line."""

from __future__ import annotations

import inspect
import io
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specllm.app import replay
from specllm.app.generate import GenerateRequest
from specllm.app.generate import answer as answering
from specllm.app.replay import AT_ONCE, Replay
from specllm.app.text import TextStream, sources
from specllm.app.trace import TraceWriter
from specllm.app.trace_reader import Trace, read_trace
from specllm.config import ContextConfig, DraftConfig, GenerateConfig
from specllm.decoding.metrics import Metrics
from specllm.decoding.protocols import FORCED, Draft, Round
from specllm.errors import ConfigError, StorageError

# A vocabulary in which characters are split, bytes are no text, and a token means nothing to a reader.
PIECES = (
    b"a",
    b"\n",
    "é".encode()[:1],
    "é".encode()[1:],
    "🌊".encode()[:3],
    "🌊".encode()[3:],
    b"\xff",
    b"",
    b"\x1b[",
    b"END",
)
STOP = "END"
EOG = 7


class Pieces:
    def piece(self, token: int) -> bytes:
        return PIECES[token]


def text_of(token: int) -> str:
    return PIECES[token].decode(errors="replace")


tokens = st.integers(0, len(PIECES) - 1)
seconds = st.floats(0, 1e3, allow_nan=False)


@st.composite
def rounds(draw: st.DrawFn) -> Round:
    accepted = draw(st.lists(tokens, max_size=4))
    rejected = draw(st.lists(tokens, max_size=3))
    draft = (*accepted, *rejected)
    evidence = tuple(draw(st.sampled_from([FORCED, 0, 3])) for _ in draft) if draw(st.booleans()) else ()
    source = draw(st.sampled_from(["lookup", "model", "reference"])) if draft else "none"
    return Round((*accepted, draw(tokens)), Draft(draft, source, evidence), draw(seconds), draw(seconds), draw(seconds))


runs = st.lists(rounds(), min_size=1, max_size=8)


def logprobs(round: Round) -> list[dict[str, Any]]:
    """Records as `logprobs.described` makes them."""
    best = [{"token": 3, "text": "\ufffd", "logprob": -0.25}]
    return [
        {"token": token, "text": text_of(token), "raw": {"logprob": -1.5 * token, "best": best},
         "sampled": {"logprob": None, "best": []}}
        for token in round.tokens
    ]  # fmt: skip


def write(
    path: Path, played: list[Round], metrics: Metrics, *, is_ended: bool = True, has_logprobs: bool = False
) -> str:
    """Writes the trace of a run that went like that, as a generation does; the text it showed."""
    stream, shown = TextStream(Pieces(), [STOP]), []
    with TraceWriter(path, text_of) as writer:
        for round in played:
            for token in round.tokens:
                stream.push(token)
            metrics.add(round)
            writer.write(round, metrics, logprobs(round) if has_logprobs else ())
            chunks = stream.settle(sources(round))
            writer.show(chunks)
            shown += chunks
        chunks = stream.finish()
        writer.show(chunks)
        shown += chunks
        if is_ended:
            writer.end(finish_reason="length", strategy="lookup k=4", plain_tok_per_s=12.5)
    return "".join(chunk.text for chunk in shown)


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
    assert (answer.finish_reason, answer.strategy, answer.plain_tok_per_s) == ("length", "lookup k=4", 12.5)
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


@pytest.mark.parametrize(
    "change",
    [
        lambda records: records.pop(),
        lambda records: records[0].update(token=9),
        lambda records: records[0].pop("raw"),
        lambda records: records[0]["raw"].update(logprob="0"),
        lambda records: records[0]["raw"]["best"].append({"token": 1}),
        lambda records: records[0]["sampled"].update(best=None),
        lambda records: records.append(3),
    ],
)
def test_log_probabilities_that_cannot_be_are_refused(tmp_path: Path, change) -> None:
    path = tmp_path / "trace.jsonl"
    write(path, [Round((1, 2), Draft((1, 4), "lookup"), 0.1, 0.2, 0.3)], Metrics(n_prompt=5), has_logprobs=True)
    line = json.loads(path.read_text(encoding="utf-8"))
    change(line["logprobs"])
    path.write_text(json.dumps(line) + "\n", encoding="utf-8")
    with pytest.raises(ConfigError, match=r"line 1: .*logprobs"):
        read_trace(path)


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
    assert (answer.finish_reason, answer.strategy, answer.plain_tok_per_s) == ("stop", "lookup, model", None)


def test_a_run_that_was_killed_has_no_finish_reason(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    write(path, [Round((0,), Draft((), "none"), 0.0, 0.1, 0.0)], Metrics(), is_ended=False)
    answer = played(read_trace(path))
    assert (answer.finish_reason, answer.strategy) == (None, "plain decoding")


# ---- what is no trace ------------------------------------------------------------------------------------------------


@pytest.fixture
def lines(tmp_path: Path) -> list[dict[str, Any]]:
    """A trace of three rounds that ends in its last."""
    path = tmp_path / "good.jsonl"
    run = [
        Round((0, 0, 1), Draft((0, 0, 0), "lookup"), 0.0, 0.1, 0.0),
        Round((0,), Draft((), "none"), 0.0, 0.1, 0.0),
        Round((0,), Draft((0,), "model"), 0.0, 0.1, 0.0, "length"),
    ]
    write(path, run, Metrics(n_prompt=5))
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def refused(path: Path) -> ConfigError:
    with pytest.raises(ConfigError) as caught:
        read_trace(path)
    assert caught.value.hint
    return caught.value


def set_to(line: int, value: object, *keys: str) -> Callable[[list[dict[str, Any]]], None]:
    def change(lines: list[dict[str, Any]]) -> None:
        place: Any = lines[line]
        for key in keys[:-1]:
            place = place[key]
        place[keys[-1]] = value

    return change


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (set_to(1, 7, "colour"), "line 2: unknown key 'colour'"),
        (lambda lines: lines[1].pop("draft_s"), "line 2: no draft_s"),
        (lambda lines: lines[1].pop("shown"), "line 2: no shown"),
        (lambda lines: lines[1].pop("round"), "line 2: not a round of a trace"),
        (lambda lines: lines[0].pop("prompt"), "line 1: nothing about the prompt"),
        (lambda lines: lines.pop(0), "line 1: round 1 where 0 should be"),
        (lambda lines: lines.pop(1), "line 2: round 2 where 1 should be"),
        (lambda lines: lines.append(lines[1]), "line 4: the answer ended before this line"),
        (set_to(0, "length", "reason"), "line 2: the answer ended before this line"),
        (set_to(2, "bored", "reason"), "line 3: reason cannot be 'bored'"),
        (set_to(1, [], "tokens"), r"line 2: tokens cannot be \[\]"),
        (set_to(1, [-1], "tokens"), r"line 2: tokens cannot be \[-1\]"),
        (set_to(1, [True], "tokens"), r"line 2: tokens cannot be \[True\]"),
        (set_to(1, [10**400], "tokens"), "line 2: tokens cannot be "),
        (set_to(1, "1", "verify_s"), "line 2: verify_s cannot be '1'"),
        (set_to(1, -0.1, "verify_s"), "line 2: verify_s cannot be -0.1"),
        (set_to(1, math.nan, "verify_s"), "line 2: no JSON"),
        (set_to(1, "\x1b[2J", "source"), r"line 2: source cannot be '\\x1b\[2J'"),
        (set_to(1, [["a", "x y"]], "shown"), "line 2: shown cannot be "),
        (set_to(1, [["a"]], "shown"), "line 2: shown cannot be "),
        (set_to(0, 0, "n_accepted"), "line 1: tokens, texts, draft, n_accepted and width contradict each other"),
        (set_to(0, [0, 1, 0], "draft"), "line 1: tokens, texts, draft, n_accepted and width contradict each other"),
        (set_to(0, 3, "width"), "line 1: tokens, texts, draft, n_accepted and width contradict each other"),
        (set_to(0, ["a"], "texts"), "line 1: tokens, texts, draft, n_accepted and width contradict each other"),
        (set_to(0, [0] * 4, "evidence"), "line 1: tokens, texts, draft, n_accepted and width contradict each other"),
        (set_to(0, [-2], "evidence"), "line 1: evidence cannot be "),
        (set_to(0, 6, "prompt", "n_reused"), "line 1: more of the prompt is reused than there is"),
        (set_to(0, None, "prompt", "n_prompt"), "line 1: n_prompt cannot be None"),
        (set_to(0, 1, "prompt", "words"), "line 1: unknown key 'words'"),
        (set_to(1, {}, "prompt"), "line 2: unknown key 'prompt'"),
        (set_to(2, None, "end"), "line 3: end cannot be None"),
        (set_to(2, "\n", "end", "strategy"), r"line 3: strategy cannot be '\\n'"),
        (set_to(2, 0, "end", "plain_tok_per_s"), "line 3: plain_tok_per_s cannot be 0"),
        (set_to(2, "tired", "end", "finish_reason"), "line 3: finish_reason cannot be 'tired'"),
    ],
)  # fmt: skip
def test_a_line_that_is_no_round_is_named(lines, tmp_path: Path, change, says: str) -> None:
    change(lines)
    path = tmp_path / "changed.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    with pytest.raises(ConfigError, match=says):
        read_trace(path)


def test_a_cut_trace_says_how_to_play_what_is_whole(lines, tmp_path: Path) -> None:
    path = tmp_path / "cut.jsonl"
    path.write_text("\n".join(json.dumps(line) for line in lines)[:-20])
    error = refused(path)
    assert error.message == f"{path}, line 3: cut off in the middle: the run was killed, or the disk full"
    assert "head -n 2 FILE | specllm replay -" in error.hint


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"", "is empty"),
        (b"GGUF\x03\x00\xff\xfe", "line 1: no JSON"),
        (b"once upon a time\n", "line 1: no JSON"),
        (b'{"schema": 1, "command": "generate"}\n', "line 1: not a round of a trace"),
        (b"[" * 100_000, "line 1: no JSON"),
        (b"3\n", "line 1: not a round of a trace"),
        (b"1" * 5000, "line 1: no JSON"),
    ],
)
def test_another_file_is_no_trace(tmp_path: Path, data: bytes, says: str) -> None:
    path = tmp_path / "other"
    path.write_bytes(data)
    assert says in refused(path).message


def test_a_missing_an_endless_and_a_wrong_kind_of_file_are_refused(tmp_path: Path) -> None:
    assert "No such file" in refused(tmp_path / "missing").message
    assert "Is a directory" in refused(tmp_path).message
    assert "longer than 4 MiB" in refused(Path("/dev/zero")).message


def test_a_trace_can_be_piped_in(lines, monkeypatch: pytest.MonkeyPatch) -> None:
    data = "".join(json.dumps(line) + "\n" for line in lines).encode()
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(data)))
    assert len(read_trace(Path("-")).steps) == 3


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
