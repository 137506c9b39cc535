"""Whatever is wrong with an edit: the file is as it was, and the message names the next step."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from specllm.app.edit import use_case as app
from specllm.app.text_file import MAX_BYTES, read_text_file
from specllm.cli.edit_apply import _ask
from specllm.decoding.sampling import KeyedSampler
from specllm.errors import StorageError
from tests.cli.edit.conftest import AFTER, DIFF, Edit, untouched


@pytest.mark.parametrize(
    ("reply", "message"),
    [
        ("x = 1", "code block does not end"),
        ("```", "the new text is empty"),
        ("\n\n```", "the new text is empty"),
        ('"""\n```sh\nls\n```\n"""\n```', "code block does not end"),
        (b"\xff\xfe", "code block does not end"),
    ],
)
def test_a_reply_that_is_no_file_is_refused(edit: Edit, folder: Path, reply: str | bytes, message: str) -> None:
    result = edit("t.py", "--yes", "Fix add", "--json", reply=reply)
    assert (result.code, result.document["error"]["type"]) == (1, "BadReply")
    assert message in result.document["error"]["message"]
    assert untouched(folder)


def test_a_reply_that_cannot_be_used_is_kept(edit: Edit, folder: Path) -> None:
    for reply in ("x = '🌊'\n", "y = 1"):
        told = edit("t.py", "Fix add", "--json", "--dry-run", reply=reply).document["error"]
        assert told["reply"] == f"```python\n{reply}"
        assert Path(told["kept_in"]).read_text(encoding="utf-8") == told["reply"]
        assert told["hint"].endswith(f"; the reply is kept in {told['kept_in']}")
    result = edit("t.py", "Fix add", reply="z")
    assert (result.code, result.stdout) == (1, "")
    assert result.stderr.endswith(
        f"; the reply is kept in {told['kept_in']}\n"
    )  # it is in the file and not on the screen
    assert Path(told["kept_in"]).read_text() == "```python\nz"
    edit("t.py", "-n", "5", "Fix add", reply=AFTER)
    assert Path(told["kept_in"]).read_text() == f"```python\n{AFTER[:5]}"


def test_a_reply_that_cannot_be_kept_is_shown(edit: Edit, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPECLLM_STATE_DIR", str(folder / "t.py"))
    result = edit("t.py", "Fix add", "--dry-run", reply="x \x1b[2J")
    assert result.stderr.startswith("```python\nx \u241b[2J\nerror: the reply's code block does not end\nhint: say")
    assert "kept" not in result.stderr
    assert edit("t.py", "Fix add", "--dry-run", "--json", reply="x").document["error"]["kept_in"] is None


def test_a_reply_is_not_lost_with_its_trace(edit: Edit, folder: Path) -> None:
    told = edit("t.py", "Fix add", "--json", "--trace", "/dev/full", reply=f"{AFTER}```").document["error"]
    assert told["type"] == "StorageError"
    assert AFTER.startswith(Path(told["kept_in"]).read_text().removeprefix("```python\n"))


@pytest.mark.parametrize("arguments", [["--yes"], ["-o", "new.py"]], ids=" ".join)
def test_a_new_text_that_cannot_be_written_is_kept(
    edit: Edit, folder: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str]
) -> None:
    def full(*_: object, **__: object) -> None:
        raise StorageError("no space left", "free some")

    monkeypatch.setattr("specllm.app.edit.history.apply_edit", full)
    monkeypatch.setattr("specllm.app.apply.write_beside", full)
    result = edit("t.py", *arguments, "--json", "Fix add", reply=f"{AFTER}```")
    told = result.document["error"]
    assert (result.code, told["type"], told["message"], told["diff"]) == (1, "StorageError", "no space left", DIFF)
    assert Path(told["kept_in"]).read_text() == AFTER
    assert f"hint: free some; the new text is kept in {told['kept_in']}\n" in result.stderr
    result = edit("t.py", *arguments, "-q", "Fix add", reply=f"{AFTER}```")
    assert (result.stdout, told["hint"] in result.stderr) == (DIFF, True)
    assert untouched(folder)


@pytest.mark.parametrize("gone", [OSError(28, "full"), BrokenPipeError()])
def test_a_new_text_is_not_lost_with_the_output(
    edit: Edit, folder: Path, monkeypatch: pytest.MonkeyPatch, gone: OSError
) -> None:
    def draw(*_: object, **__: object) -> None:
        raise gone

    monkeypatch.setattr("specllm.ui.edit.draw_diff", draw)
    if isinstance(gone, BrokenPipeError):  # the reader has seen enough
        with pytest.raises(BrokenPipeError):
            edit("t.py", "Fix add", reply=f"{AFTER}```")
        return
    result = edit("t.py", "Fix add", reply=f"{AFTER}```")
    assert (result.code, "error: cannot write the output: full\n" in result.stderr) == (1, True)
    assert Path(result.stderr.strip().rpartition("kept in ")[2]).read_text() == AFTER
    monkeypatch.setattr("specllm.cli.envelope.emit", draw)
    result = edit("t.py", "--json", "Repair add", reply=f"{AFTER}\n```")
    assert Path(result.stderr.strip().rpartition("kept in ")[2]).read_text() == f"{AFTER}\n"


def test_a_text_that_cannot_be_applied_after_a_yes_is_kept(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def say_yes() -> str:
        (folder / "t.py").write_text("mine")
        return "y"

    monkeypatch.setattr("specllm.ui.edit.ask_to_apply", say_yes)
    new = app.Edit(read_text_file(folder / "t.py"), AFTER.encode(), ())
    with pytest.raises(StorageError, match="changed meanwhile") as raised:
        _ask(new, ())
    assert Path(raised.value.hint.rpartition("kept in ")[2]).read_text() == AFTER


def test_a_character_that_the_encoding_does_not_have_is_refused(edit: Edit, folder: Path) -> None:
    (folder / "f.txt").write_bytes(b"\xe4\n")
    result = edit("f.txt", "--yes", "Add a wave", reply="🌊\n```")
    assert (result.code, "cp1252 does not have" in result.stderr) == (1, True)
    assert (folder / "f.txt").read_bytes() == b"\xe4\n"


def test_a_truncated_reply_is_refused_with_the_numbers(edit: Edit, folder: Path) -> None:
    result = edit("t.py", "--yes", "-n", "20", "Fix add", reply=f"{AFTER}```")
    assert result.code == 1
    assert "cut after 20 tokens\nhint: pass a larger -n; or edit a part of it: --lines A:B" in result.stderr
    assert untouched(folder)


@pytest.mark.parametrize(
    "arguments",
    [
        ["big.py", "-c", "256"],
        ["big.py", "-c", "1024"],
        ["t.py", "--symbol", "add", "--context", "big.py", "-c", "512"],
    ],
    ids=len,
)
def test_what_the_context_cannot_hold_is_refused_with_the_numbers(
    edit: Edit, folder: Path, arguments: list[str]
) -> None:
    (folder / "big.py").write_text("x = 1\n" * 120)
    result = edit(*arguments, "--yes", "Fix add", reply=f"{AFTER}```")
    assert result.code == 1
    assert f"the context holds {int(arguments[-1]):,}" in result.stderr
    assert "hint: edit a part of it: --lines A:B or --symbol NAME; or pass --ctx" in result.stderr


def test_ctrl_c_while_generating_writes_nothing(edit: Edit, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = app.answer

    @contextlib.contextmanager
    def answer(*arguments: Any) -> Iterator[Any]:
        with real(*arguments) as opened:
            says = KeyedSampler.pick

            def pick(self: KeyedSampler, logits: Any, context: Any) -> int:
                if opened.metrics.n_committed == 20:
                    signal.raise_signal(signal.SIGINT)
                return says(self, logits, context)

            monkeypatch.setattr(KeyedSampler, "pick", pick)
            yield opened

    monkeypatch.setattr(app, "answer", answer)
    result = edit("t.py", "--yes", "Fix add", reply=f"{AFTER}```")
    assert (result.code, result.stdout) == (130, "")
    assert result.stderr == "error: interrupted\n"
    assert untouched(folder)


def test_a_file_that_changes_while_generating_is_left_alone(
    edit: Edit, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = app.conclude

    def conclude(*arguments: Any) -> Any:
        (folder / "t.py").write_text("mine")
        return real(*arguments)

    monkeypatch.setattr(app, "conclude", conclude)
    result = edit("t.py", "--yes", "Fix add", reply=f"{AFTER}```")
    assert (result.code, result.stdout) == (1, DIFF)  # what took its time is not lost
    assert "t.py changed meanwhile, so nothing was written" in result.stderr
    assert (folder / "t.py").read_text() == "mine"


def test_an_output_that_appears_while_generating_is_left_alone(
    edit: Edit, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = app.conclude

    def conclude(*arguments: Any) -> Any:
        (folder / "new.py").write_text("mine")
        return real(*arguments)

    monkeypatch.setattr(app, "conclude", conclude)
    result = edit("t.py", "-o", "new.py", "Fix add", reply=f"{AFTER}```")
    assert (result.code, result.stdout) == (1, DIFF)
    assert "new.py appeared meanwhile, so nothing was written" in result.stderr
    assert (folder / "new.py").read_text() == "mine"


@pytest.mark.parametrize("what", ["changed", "gone", "appeared", "file gone"])
def test_an_output_that_is_another_file_by_now_is_left_alone(
    edit: Edit, folder: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    real, new = app.conclude, folder / "new.py"
    if what in ("changed", "gone"):
        new.write_text("was there")

    def conclude(*arguments: Any) -> Any:
        if what == "gone":
            new.unlink()
        elif what == "file gone":
            (folder / "t.py").unlink()
        else:
            new.write_text("mine")
        return real(*arguments)

    monkeypatch.setattr(app, "conclude", conclude)
    where = [] if what == "file gone" else ["-o", "new.py"]
    result = edit("t.py", *where, "--yes", "Fix add", reply=f"{AFTER}```")
    name = "t.py" if what == "file gone" else "new.py"
    assert (result.code, result.stdout) == (1, DIFF)
    if "gone" in what:
        assert f"error: {name} is gone by now, so nothing was written\n" in result.stderr
        assert not (folder / name).exists()
    else:
        assert f"error: {name} {what} meanwhile, so nothing was written" in result.stderr
        assert new.read_text() == "mine"
    assert "space" not in result.stderr
    assert Path(result.stderr.strip().rpartition("kept in ")[2]).read_text() == AFTER
    assert edit("--undo").code == 2  # nothing was done


def test_a_replaced_output_can_be_had_back(edit: Edit, folder: Path) -> None:
    (folder / "new.py").write_bytes(b"\xff\0 mine")
    result = edit("t.py", "-o", "new.py", "--yes", "-q", "Fix add", reply=f"{AFTER}```")
    assert result.stderr == "wrote new.py; specllm edit --undo new.py takes it back\n"
    assert (folder / "new.py").read_text() == AFTER
    assert edit("new.py", "--undo").code == 0
    assert (folder / "new.py").read_bytes() == b"\xff\0 mine"
    (folder / "link").symlink_to("new.py")
    assert edit("t.py", "-o", "link", "--yes", "-q", "Fix add", reply=f"{AFTER}```").code == 0
    assert ((folder / "link").is_symlink(), (folder / "new.py").read_text()) == (True, AFTER)


BAD_ARGUMENTS = [
    ([], "there is no file to edit"),
    (["t.py"], "there is no instruction"),
    (["t.py", " "], "there is no instruction"),
    (["t.py", "-"], "there is no instruction"),
    (["missing.py", "x"], "cannot read missing.py: No such file"),
    ([".", "x"], "is a folder"),
    (["binary", "x"], "is binary"),
    (["read-only", "x"], "is read-only"),
    (["t.py", "x", "--lines", "9:10"], "has lines 1 to 6"),
    (["t.py", "x", "--lines", "9" * 5000], "no lines"),
    (["t.py", "x", "--lines", "1", "--symbol", "add"], "both name the region"),
    (["t.py", "x", "--symbol", "sub"], "has no sub"),
    (["t.py", "x", "--context", "missing.py"], "cannot read missing.py"),
    (["t.py", "x", "--encoding", "klingon"], "no encoding"),
    (["t.py", "x", "--encoding", "undefined"], "no encoding"),
    (["t.py", "x", "--encoding", "\udcff"], "no encoding"),
    (["t.py", "x", "-o", "-"], "--output takes a file"),
    (["t.py", "x", "--yes", "--dry-run"], "contradict"),
    (["t.py", "x", "-o", "t.py"], "names the file itself"),
    (["t.py", "x", "-o", "none/t.py"], "there is no folder"),
    (["t.py", "x", "-o", "."], "is a folder or a device"),
    (["t.py", "x", "-o", "/dev/null", "--yes"], "is a folder or a device"),
    (["t.py", "x", "-o", "large", "--yes"], "too large to be kept for --undo"),
    (["t.py", "x", "--force"], "--force belongs to --undo"),
    (["t.py", "x", "--prompt-variant", "none"], "no prompt variant"),
    (["t.py", "x", "-n", "0"], "max tokens is 0"),
    (["t.py", "x", "-m", "missing.gguf"], "no file missing.gguf"),
    (["t.py", "x", "--undo"], "--undo takes a file and no instruction"),
    (["t.py", "--undo", "--lines", "1"], "--undo does nothing with --lines"),
    (["t.py", "--undo", "--context", "t.py"], "--undo does nothing with --context"),
    (["--undo", "-o", "new.py"], "--undo does nothing with --output"),
    (["--undo", "-t", "0"], "--undo does nothing with --temperature"),
    (["--undo", "--confidence", "0.5"], "--undo does nothing with --confidence"),
    (["--undo", "--yes", "--dry-run"], "contradict"),
    (["t.py", "Add a final newline"], "keeps line ends and the final newline"),
    (["--undo"], "there is no edit to undo"),
]


@pytest.mark.parametrize(("arguments", "message"), BAD_ARGUMENTS, ids=lambda value: " ".join(value)[:40])
def test_bad_arguments_are_refused_before_a_model_is_loaded(
    edit: Edit, folder: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], message: str
) -> None:
    def load(*_: object, **__: object) -> None:
        pytest.fail("a model is loaded")

    monkeypatch.setattr("specllm.app.loading.Weights", load)
    (folder / "binary").write_bytes(b"\0\1\2")
    (folder / "read-only").write_text("x")
    (folder / "large").write_bytes(b"x" * (MAX_BYTES + 1))
    (folder / "read-only").chmod(0o444)
    result = edit(*arguments, "--json")
    assert result.code == (1 if "missing.gguf" in arguments else 2)
    assert message in result.document["error"]["message"]
    assert result.document["error"]["hint"]
