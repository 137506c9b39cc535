"""What a tuned machine looks like in 80 columns, in any encoding."""

from __future__ import annotations

import io
import json
import sys
from collections import defaultdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from specllm.app.calibration import Kept
from specllm.app.tune.tuning import Category, Replay
from specllm.app.tune.use_case import Tuning
from specllm.decoding.cost import DraftCost
from specllm.decoding.rollback_trial import RollbackTrial
from specllm.ui.tune import TuneProgress, bar, milliseconds, print_tuning, tell_kept
from tests.cli.conftest import run

POINTS = {1: 0.071, 2: 0.102, 3: 0.136, 4: 0.123, 8: 0.213, 16: 0.277, 64: 0.819, 128: 1.58}


def tuning(**changes: Any) -> Tuning:
    plan: Any = SimpleNamespace(
        target=SimpleNamespace(name="qwen2.5-coder-1.5b-instruct", model=None),
        draft_model=SimpleNamespace(name="qwen2.5-coder-0.5b-instruct", model=None),
    )
    kinds = [
        Category("edit", 40, (Replay("lookup", 15, 2.13, 30, 34), Replay("model", 3, 1.06, 33, 36))),
        Category("summarization", 40, (Replay("lookup", 15, 0.84, 0, 0), Replay("model", 3, 0.81, 20, 36))),
    ]
    readings = defaultdict(list, {width: [seconds * 1.01, seconds] for width, seconds in POINTS.items()})
    values: dict[str, Any] = {
        "readings": readings, "draft_cost": DraftCost(0.036, 0.006), "categories": kinds, "deep_depth": 901,
        "deep_points": {1: 0.08, 4: 0.13}, "left_out": ["extraction"],
    }  # fmt: skip
    return Tuning(plan, **(values | changes))


def printed(monkeypatch: pytest.MonkeyPatch, result: Tuning, encoding: str = "utf-8") -> str:
    """What goes into a pipe of that encoding; a character it lacks raises."""
    out = io.BytesIO()
    with monkeypatch.context() as patch:
        stream = io.TextIOWrapper(out, encoding=encoding, errors="strict")
        patch.setattr(sys, "stdout", stream)
        print_tuning(result)
        stream.flush()
        return out.getvalue().decode(encoding)


@pytest.mark.parametrize("encoding", ["utf-8", "ascii", "cp1252"])
def test_it_fits_80_columns_in_every_encoding(monkeypatch: pytest.MonkeyPatch, encoding: str) -> None:
    text = printed(monkeypatch, tuning(), encoding)
    assert max(map(cell_len, text.splitlines())) <= 80
    assert ("█" if encoding == "utf-8" else "###") in text
    sentences = [line for line in text.splitlines() if line.startswith(("a forward", "drafting k", "expected", "best"))]
    assert len(sentences) == 5  # none was broken into two


def test_the_way_back_is_named_with_its_cost(monkeypatch: pytest.MonkeyPatch) -> None:
    def shown(kind: str, deviation: float) -> str:
        result = tuning(rollback_kind=kind, rollback=RollbackTrial(deviation, 0.0021))
        (line,) = [line for line in printed(monkeypatch, result).splitlines() if line.startswith("rollback")]
        return line

    assert shown("trim", 0.0) == "rollback by trim: a rejection costs 2.1 ms"
    assert shown("snapshot", 0.0) == "rollback by snapshot: a rejection costs 2.1 ms, part of every width above"
    assert "use --drafter none" in shown("states", 0.9)
    assert "rollback" not in printed(monkeypatch, tuning())


def test_bars_grow_with_the_time_and_good_steps_are_marked(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = printed(monkeypatch, tuning(), "ascii").splitlines()
    rows = [line for line in lines if " ms " in line and "#" in line]
    assert [int(line[1:8]) for line in rows] == list(POINTS)
    marked = {int(line[1:8]) for line in rows if line.startswith("*")}
    assert marked == {1, 2, 4, 8, 16, 64, 128}
    lengths = [line.count("#") for line in rows]
    assert (lengths[0], lengths[-1]) == (2, 40)
    assert lengths == sorted(lengths)


@given(share=st.floats(0, 1), cells=st.integers(1, 200), is_ascii=st.booleans())
def test_a_bar_is_as_long_as_its_share_and_never_nothing(share: float, cells: int, is_ascii: bool) -> None:
    drawn = bar(share, cells, is_ascii=is_ascii)
    assert 1 <= cell_len(drawn) <= cells
    assert abs(cell_len(drawn) - share * cells) <= 1
    assert drawn.isascii() == is_ascii


def test_milliseconds_have_the_digits_that_mean_something() -> None:
    assert [milliseconds(s) for s in (1.58, 0.071, 0.0001564)] == ["1,580 ms", "71.0 ms", "0.156 ms"]


def test_the_advice_says_what_pays_and_what_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    text = printed(monkeypatch, tuning())
    assert "best setting: --drafter auto" in text
    assert "best fixed one: --drafter lookup -k 15" in text
    assert "0.51 of a forward" in text
    assert "901 tokens deep a forward takes 1.09 times as long" in text
    assert "not tried, for want of time or context: extraction" in text
    dear = printed(monkeypatch, tuning(draft_cost=DraftCost(0.2, 0.1)))
    assert "the draft model would not pay even with 95% accepted: auto leaves it out\n" in dear
    losing = [Category("chat", 40, (Replay("lookup", 3, 0.9, 0, 4),))]
    assert "no fixed setting beats plain decoding" in printed(monkeypatch, tuning(categories=losing, draft_cost=None))


def test_a_noisy_or_interrupted_run_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "readings differ" not in printed(monkeypatch, tuning())
    noisy = defaultdict(list, {width: [seconds * 1.6, seconds * 1.5, seconds] for width, seconds in POINTS.items()})
    text = printed(monkeypatch, tuning(readings=noisy))
    assert "readings differ by 50%" in text
    assert "901 tokens deep" not in text  # nothing can be said about it then
    alone = tuning(readings=defaultdict(list, {1: [0.07]}), categories=[], draft_cost=None, is_interrupted=True)
    text = printed(monkeypatch, alone)
    assert "interrupted: what was measured until then is kept" in text
    assert "drafting cannot pay" in text


def test_it_is_said_on_stderr_which_calibration_is_kept_and_why(capsys: pytest.CaptureFixture[str]) -> None:
    tell_kept(
        [
            Kept(file="first.gguf", is_new=True, spread=0.3, earlier_spread=None),
            Kept(file="better.gguf", is_new=True, spread=0.02, earlier_spread=0.3),
            Kept(file="worse.gguf", is_new=False, spread=0.3, earlier_spread=0.02),
            Kept(file="cut\x1b.gguf", is_new=False, spread=None, earlier_spread=0.02),
        ]
    )
    out, err = capsys.readouterr()
    lines = err.splitlines()
    assert out == ""
    assert lines[0] == "better.gguf: readings differ by 2%, those of the earlier calibration by 30%: these are kept"
    assert lines[1].startswith("worse.gguf: readings differ by 30%, those of the earlier calibration by 2%: ")
    assert lines[1].endswith("the earlier one is kept (--recalibrate replaces it)")
    assert "were not repeated" in lines[2]
    assert len(lines) == 3
    assert "\x1b" not in err


def test_names_are_shown_and_never_obeyed(monkeypatch: pytest.MonkeyPatch) -> None:
    result = tuning()
    result.plan.target.name = "evil\x1b[2J[bold]"  # type: ignore[misc]
    text = printed(monkeypatch, result)
    assert "\x1b" not in text
    assert "[bold]" in text


def test_progress_in_a_pipe_is_a_line_for_each_stage(capsys: pytest.CaptureFixture[str]) -> None:
    with TuneProgress() as progress:
        progress.stage("measuring")
        progress.step("width 4")
    assert capsys.readouterr() == ("", "measuring\n")


def test_the_command_prints_one_document(llama_gguf: Path, close_draft_gguf: Path) -> None:
    done = run("tune", "--model", str(llama_gguf), "--draft-model", str(close_draft_gguf), "--threads", "1", "--json")
    assert done.code == 0
    assert done.document["command"] == "tune"
    assert done.document["models"]["draft_model"]["file"] == close_draft_gguf.name
    assert done.document["params"]["threads"] == 1
    assert done.document["result"]["is_complete"] is True
    assert "measuring" in done.stderr
    assert json.loads(done.stdout)["result"]["cost"]["1"] > 0


def test_a_target_is_named_once(llama_gguf: Path) -> None:
    done = run("tune", "one", "--model", str(llama_gguf))
    assert (done.code, done.stdout) == (2, "")
    assert "name the target once" in done.stderr
