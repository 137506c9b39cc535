"""`specllm replay` on what `specllm generate` wrote, and `--prediction`."""

from __future__ import annotations

import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest

from specllm.cli.main import Invocation
from tests.cli.conftest import QUICK, run, run_all
from tests.cli.test_output import EMOJI, always

GENERATE = ("generate", *QUICK, "-n", "60", "-t", "0")


def test_a_replay_says_what_the_run_said(llama_gguf: Path, close_draft_gguf: Path, tmp_path: Path) -> None:
    """Emoji from bytes, in drafts that are accepted or not: characters are split over tokens and over rounds."""
    first, again = str(tmp_path / "first.jsonl"), str(tmp_path / "again.jsonl")
    ask = [*GENERATE, "-m", str(llama_gguf), *always(EMOJI), "--draft-model", str(close_draft_gguf), "-d", "model",
           "--confidence", "0", "-k", "4", "hi"]  # fmt: skip
    document, told = run_all([partial(run, *ask, "--trace", first, "--json"), partial(run, *ask, "--trace", again)])
    ran = document.document["result"]
    assert ran["stats"]["n_accepted"] > 0
    replayed, played, piped = run_all([
        partial(run, "replay", first, "--json"),
        partial(run, "replay", again, "--speed", "max"),
        partial(run, "replay", "-", "--speed", "0", "--no-live", "--stats", stdin=Path(again).read_text(encoding="utf-8")),
    ])  # fmt: skip
    assert replayed.document["result"] == ran
    assert (replayed.document["command"], replayed.document["params"]) == ("replay", {"trace": first, "speed": None})
    assert (played.code, played.stdout, played.stderr) == (0, told.stdout, told.stderr)
    assert piped.stdout == told.stdout
    assert piped.stderr.startswith(told.stderr)
    assert "acceptance by position" in piped.stderr


def test_no_model_and_no_llama_cpp_is_needed(tmp_path: Path) -> None:
    code = (
        "import sys, specllm.__main__ as entry\n"
        "sys.argv = ['specllm', 'replay', sys.argv[1]]\n"
        "try:\n    entry.main()\n"
        "except SystemExit as done:\n"
        "    print(done.code, [m for m in ('llama_cpp', 'specllm.runtime', 'jinja2') if m in sys.modules])\n"
    )
    empty = tmp_path / "empty.jsonl"
    empty.touch()
    done = subprocess.run([sys.executable, "-c", code, str(empty)], capture_output=True, text=True, check=False)
    assert done.stdout == "2 []\n"
    assert done.stderr.startswith(f"error: {empty} is empty: the answer ended before its first round\nhint: ")


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (["nowhere"], "cannot read nowhere: No such file or directory"),
        (["nowhere", "--speed", "fast"], "--speed fast"),
        (["nowhere", "--speed", "-1"], "--speed -1"),
        (["nowhere", "--speed", "nan"], "--speed nan"),
    ],
)
def test_what_cannot_be_played_is_said(arguments: list[str], error: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert Invocation(["replay", *arguments]).run() == 2
    told = capsys.readouterr()
    assert (told.out, told.err.splitlines()[0]) == ("", f"error: {error}")
    assert told.err.splitlines()[1].startswith("hint: ")


# ---- predictions -----------------------------------------------------------------------------------------------------


def test_a_prediction_that_comes_true_is_accepted(llama_gguf: Path, tmp_path: Path) -> None:
    ask = ["generate", "-m", str(llama_gguf), *QUICK, "-n", "40", "-t", "0", "--json", "hi"]
    plain = run(*ask, "-k", "0").document["result"]
    file = tmp_path / "prediction.txt"
    file.write_text(plain["text"], encoding="utf-8")
    predict = partial(run, *ask, "-d", "reference", "-k", "8", "--stats", "--prediction")
    told, piped = run_all([partial(predict, str(file)), partial(predict, "-", stdin=plain["text"])])
    result = told.document["result"]
    stats = result["stats"]
    assert result["text"] == piped.document["result"]["text"] == plain["text"]
    assert stats["n_prediction_accepted"] > 0
    assert stats["n_prediction_accepted"] == stats["accepted_by_source"]["reference"]
    assert stats["n_prediction_accepted"] + stats["n_prediction_rejected"] == stats["n_drafted"]
    assert piped.document["result"]["stats"]["n_prediction_accepted"] == stats["n_prediction_accepted"]
    assert (
        piped.document["result"]["stats"]["n_prompt"] == plain["stats"]["n_prompt"]
    )  # what is piped in is no part of it
    assert plain["stats"]["n_prediction_accepted"] is None
    assert f"{stats['n_prediction_accepted']} tokens accepted, {stats['n_prediction_rejected']} rejected" in told.stderr


STDIN_TWICE = ["error: stdin cannot be both the prompt and the prediction", "hint: give one of them as a file"]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["hi", "--prediction", "nowhere"],
         ["error: cannot read nowhere: No such file or directory", "hint: check --prediction"]),
        (["hi", "--prediction", "empty"],
         ["error: the prediction is empty", "hint: give the text that the answer will resemble, or leave it out"]),
        (["hi", "--prediction", "wide"],
         ["error: wide is not UTF-8 (byte 0)", "hint: convert it: iconv -f utf-16 -t utf-8"]),
        (["-", "--prediction", "-"], STDIN_TWICE),
        (["-f", "-", "--prediction", "-"], STDIN_TWICE),
        (["--prediction", "-"],
         ["error: there is no prompt", 'hint: give one: specllm generate "...", --prompt-file FILE, or pipe it in']),
        (["hi", "--prediction", "empty", "-d", "lookup"],
         ["error: --drafter lookup drafts from no prediction", "hint: use --drafter auto or reference"]),
    ],
)  # fmt: skip
def test_a_prediction_that_cannot_be_used_is_refused(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    says: list[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("empty").touch()
    Path("wide").write_bytes("hi".encode("utf-16"))
    Path("piped").write_text("text", encoding="utf-8")
    with open("piped", encoding="utf-8") as stdin:
        monkeypatch.setattr("sys.stdin", stdin)
        assert Invocation(["generate", *arguments]).run() == 2
    told = capsys.readouterr()
    said = [line for line in told.err.splitlines() if not line.startswith("note: the text on stdin is not read")]
    assert (told.out, said) == ("", says)
