"""What is no trace, and where it goes wrong."""

from __future__ import annotations

import io
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from specllm.app.trace.reader import read_trace
from specllm.decoding.metrics import Metrics
from specllm.decoding.protocols import Draft, Round
from specllm.errors import ConfigError
from tests.app.trace.traces import write


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
