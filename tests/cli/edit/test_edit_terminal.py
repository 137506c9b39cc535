"""`specllm edit` where somebody sits: the question, its answers, the editor, Ctrl-C at every moment."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from specllm.app.edit.history import apply_edit
from specllm.cli.editor import edit_in_editor, interrupts_ignored
from specllm.errors import ConfigError, StorageError
from tests.cli.terminal import PROMPT, Terminal

ROOT = Path(__file__).parents[3]
BEFORE = "def add(a, b):\n    return a - b\n"
AFTER = BEFORE.replace("-", "+")
QUESTION = "apply? [y/n/e]"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    file = tmp_path / "t.py"
    file.write_text(BEFORE)
    return file


@pytest.fixture
def fix(tmp_path: Path, llama_gguf: Path, file: Path) -> Path:
    """A command that edits `file`; the model says AFTER."""
    (tmp_path / "reply").write_text(f"{AFTER}```")
    words = [sys.executable, "-m", "tests.cli.edit.says", "reply", "edit", "t.py", "Fix add", "-m", str(llama_gguf)]
    quick = ["--threads", "1", "-k", "0"]
    script = tmp_path / "fix"
    command = f"exec env PYTHONPATH={shlex.quote(str(ROOT))} {shlex.join([*words, *quick])}"
    script.write_text(f'#!/bin/sh\ncd {shlex.quote(str(tmp_path))}\n{command} "$@"\n')
    script.chmod(0o755)
    return script


@pytest.fixture
def asked(terminal: Terminal, fix: Path) -> Callable[..., None]:
    """Starts the edit in the terminal, up to its question."""

    def asked(before: str = "") -> None:
        terminal.type(f"{before} {fix}")
        terminal.wait_for_text(QUESTION)

    return asked


def ended(terminal: Terminal) -> Callable[[], bool]:
    return lambda: [row for row in terminal.rows() if row][-1] == PROMPT.strip()


def code(terminal: Terminal) -> int:
    """The exit code of what was run last."""
    terminal.type("echo code=$?=")
    terminal.wait_for(lambda: any(row.startswith("code=") for row in terminal.rows()))
    return int(next(row for row in terminal.rows() if row.startswith("code=")).split("=")[1])


def test_yes_applies(terminal: Terminal, asked: Callable[..., None], file: Path) -> None:
    asked()
    rows = "\n".join(terminal.rows())
    assert "-    return a - b\n+    return a + b\n" in rows
    assert file.read_text() == BEFORE
    terminal.type("maybe")
    terminal.wait_for_text("e: open the new text in your editor first")
    terminal.type("y")
    terminal.wait_for(ended(terminal))
    assert "edited t.py" in "\n".join(terminal.rows())
    assert (code(terminal), file.read_text()) == (0, AFTER)


@pytest.mark.parametrize(("key", "exit_code"), [("", 0), ("C-d", 0), ("C-c", 130)])
def test_anything_else_applies_nothing(
    terminal: Terminal, asked: Callable[..., None], file: Path, key: str, exit_code: int
) -> None:
    asked()
    if not key:
        terminal.type("")
        assert file.read_text() == BEFORE
        terminal.type("no")
    else:
        terminal.press(key)
    terminal.wait_for(ended(terminal))
    assert ("nothing was applied" if exit_code == 0 else "interrupted") in "\n".join(terminal.rows())
    assert (code(terminal), file.read_text()) == (exit_code, BEFORE)


def test_the_editor_has_the_last_word(
    terminal: Terminal, asked: Callable[..., None], file: Path, tmp_path: Path
) -> None:
    """A missing one, one that fails, one that changes the text: each time the question comes again."""
    editor = tmp_path / "my editor"
    editor.write_text('#!/bin/sh\n[ -e "$0.fails" ] && exit 3\nsed -i "s/a + b/b + a/" "$1"\n')
    asked(f"VISUAL={shlex.quote(shlex.quote(str(editor)))}")
    for wrong in ("cannot run the editor", "ended with 3"):
        terminal.type("e")
        terminal.wait_for_text(wrong)
        editor.chmod(0o755)
        (tmp_path / "my editor.fails").touch()
        terminal.wait_for(lambda: [row for row in terminal.rows() if row][-1].startswith(QUESTION))
    (tmp_path / "my editor.fails").unlink()
    assert file.read_text() == BEFORE
    terminal.type("e")
    terminal.wait_for_text("+    return b + a")
    terminal.type("y")
    terminal.wait_for(ended(terminal))
    assert file.read_text() == BEFORE.replace("a - b", "b + a")


def test_a_text_that_cannot_be_taken_can_be_edited_again(
    terminal: Terminal, asked: Callable[..., None], file: Path, tmp_path: Path
) -> None:
    editor = tmp_path / "editor"
    editor.write_text(
        '#!/bin/sh\ngrep -q mine "$1" && printf "mine = 2\\n" > "$1" || printf "mine = \\377\\n" > "$1"\n'
    )
    editor.chmod(0o755)
    asked(f"VISUAL={shlex.quote(str(editor))}")
    terminal.type("e")
    terminal.wait_for_text("hint: save it in the file's encoding; the new text is kept in")
    terminal.wait_for(lambda: [row for row in terminal.rows() if row][-1].startswith(QUESTION))
    terminal.type("e")
    terminal.wait_for_text("+mine = 2")
    terminal.type("y")
    terminal.wait_for(ended(terminal))
    assert file.read_text() == "mine = 2\n"


def test_a_reply_that_cannot_be_used_is_on_the_screen(terminal: Terminal, fix: Path, tmp_path: Path) -> None:
    (tmp_path / "reply").write_text("return a 🌊 b\n\x1b[2J")
    terminal.type(str(fix))
    terminal.wait_for(lambda: "last-reply\n" in terminal.everything())  # at the end of a line of any length
    screen = terminal.everything()
    assert "```python\nreturn a 🌊 b\n␛[2J\nerror: the reply's code block does not end\nhint: say" in screen


def test_warnings_are_on_the_screen_whatever_the_diff(
    terminal: Terminal, asked: Callable[..., None], tmp_path: Path
) -> None:
    (tmp_path / "reply").write_text("x = 1\n" * 60 + "# \x1b[2J rest unchanged ...\n```")
    asked()
    rows = [row for row in terminal.rows() if row]
    assert rows[-2:] == ["warning: line 61 may stand for text that was left out: # ␛[2J rest unchanged ...", QUESTION]


def test_what_was_typed_before_the_question_is_no_answer(terminal: Terminal, fix: Path, file: Path) -> None:
    terminal.type(str(fix))
    terminal.type("y")
    terminal.wait_for_text(QUESTION)
    terminal.type("n")  # answers the question, or is for the shell if that had its answer
    terminal.wait_for(ended(terminal))
    assert file.read_text() == BEFORE


@pytest.fixture
def interrupted(fix: Path, tmp_path: Path) -> Callable[[str], subprocess.CompletedProcess[str]]:
    """The edit with --yes, and Ctrl-C when a module of that name is imported."""
    hook = (
        "import os, signal, sys, threading\n"
        "def watch(event, arguments):\n"
        "    if event == 'import' and arguments[0] == os.environ.get('INTERRUPT_AT'):\n"
        "        threading.Timer(float(os.environ['AFTER']), os.kill, (os.getpid(), signal.SIGINT)).start()\n"
        "sys.addaudithook(watch)\n"
    )
    (tmp_path / "hooks").mkdir()
    (tmp_path / "hooks" / "sitecustomize.py").write_text(hook)
    script = fix.read_text().replace(f"PYTHONPATH={ROOT}", f"PYTHONPATH={ROOT}:{tmp_path / 'hooks'}")
    fix.write_text(script)

    def interrupted(module: str) -> subprocess.CompletedProcess[str]:
        environment = {"INTERRUPT_AT": module, "AFTER": "0"}
        return subprocess.run(
            ["env", *(f"{name}={value}" for name, value in environment.items()), str(fix), "--yes"],
            capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL,
        )  # fmt: skip

    return interrupted


@pytest.mark.parametrize("module", ["specllm.app.edit.use_case", "llama_cpp"])
def test_ctrl_c_before_the_text_is_there_writes_nothing(
    interrupted: Callable[[str], subprocess.CompletedProcess[str]], file: Path, module: str
) -> None:
    done = interrupted(module)
    assert (done.returncode, done.stdout) == (130, ""), done.stderr
    assert "error: interrupted" in done.stderr
    assert file.read_text() == BEFORE


def test_ctrl_c_while_writing_does_not_half_apply(file: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """It is written and said so: the moment is short, and what is said is true."""
    real = os.replace

    def replace(*arguments: str) -> None:
        signal.raise_signal(signal.SIGINT)
        real(*arguments)
        signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(os, "replace", replace)
    with interrupts_ignored():
        apply_edit(file, BEFORE.encode(), AFTER.encode())
    assert file.read_text() == AFTER
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_an_editor_that_cannot_be_run_is_an_error_with_a_step(monkeypatch: pytest.MonkeyPatch) -> None:
    for editor, kind, message in [
        ("/no/such/editor", ConfigError, "cannot find an editor '/no/such/editor'"),
        ("'unclosed", ConfigError, "cannot understand the editor"),
        ("false", StorageError, "the editor false ended with 1"),
        ("rm -f", ConfigError, "cannot find the text"),
    ]:
        monkeypatch.setenv("VISUAL", editor)
        with pytest.raises(kind, match=message) as raised:
            edit_in_editor(b"x", "x.py")
        assert "VISUAL" in raised.value.hint


def test_what_a_failing_editor_saved_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VISUAL", "sh -c 'echo mine > \"$0\"; exit 7'")
    with pytest.raises(StorageError, match="ended with 7") as raised:
        edit_in_editor(b"x", "x.py")
    what, _, kept = raised.value.hint.rpartition(" ")
    assert (what, Path(kept).read_text()) == ("what it saved is kept in", "mine\n")


def test_editors_go_by_visual_then_editor(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VISUAL", "sed -i s/x/visual/")
    monkeypatch.setenv("EDITOR", "sed -i s/x/editor/")
    assert edit_in_editor(b"x\r\n", "a b.py") == b"visual\r\n"
    monkeypatch.delenv("VISUAL")
    assert edit_in_editor(b"x", "a b.py") == b"editor"


def test_ctrl_c_in_the_editor_is_the_editors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VISUAL", "sh -c 'kill -INT $PPID; sed -i s/x/y/ $0'")
    assert edit_in_editor(b"x", "x.py") == b"y"
