"""`specllm chat` on a real terminal: typing, pasting, Ctrl-C, Ctrl-Z, resizing, terminals that can little."""

from __future__ import annotations

import contextlib
import os
import pty
import re
import resource
import select
import signal
import subprocess
import termios
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests import synthetic
from tests.cli.conftest import COMMAND, TIMEOUT_S, run
from tests.cli.terminal import PROMPT as SHELL
from tests.cli.terminal import Terminal
from tests.synthetic import EOS, FIRST_BYTE, IM_END

# Words instead of bytes and control characters: what is on the screen can be compared.
WORDS = ("sea ", "wave, ", "海", "🌊", "é", "tide. ", "salt ", "**wind** ")
FIRST_WORD = FIRST_BYTE + 256
SPEAKS = [word for token in range(len(WORDS)) for word in ("--logit-bias", f"{FIRST_WORD + token}=60")]
QUICK = ["--threads", "1", "--seed", "1", "-d", "lookup", "-k", "5", "-t", "4", "--top-p", "1", "--min-p", "0", *SPEAKS,
         "--logit-bias", f"{EOS}=-inf", "--logit-bias", f"{IM_END}=-inf"]  # fmt: skip
BAR = "context"  # stands in the bar below the input line


@pytest.fixture(scope="session")
def talking_gguf(synthetic_models: Path) -> Path:
    """A model that needs a few milliseconds for every token, and says `WORDS`."""
    texts = {FIRST_WORD + place: word.replace(" ", synthetic.SPACE) for place, word in enumerate(WORDS)}
    return synthetic.write_llama(synthetic_models / "talking.gguf", n_layer=6, n_embd=256, token_texts=texts)


def start(terminal: Terminal, model: Path, *arguments: str, env: str = "") -> None:
    terminal.type(" ".join([env, "specllm", "chat", "-m", str(model), *QUICK, *arguments, "# begins"]))
    terminal.wait_for(lambda: waits(terminal))


def screen(terminal: Terminal) -> str:
    return "\n".join(terminal.rows())


def waits(terminal: Terminal) -> bool:
    """Whether the chat waits for a line: an empty one above the bar."""
    rows = [row for row in terminal.rows() if row.strip()]
    return len(rows) > 1 and BAR in rows[-1] and rows[-2].strip() == ">"


def answers(terminal: Terminal) -> bool:
    return "tok/s" in terminal.rows()[-1] and not waits(terminal)


def has_left(terminal: Terminal) -> bool:
    return [row for row in terminal.rows() if row][-1] == SHELL.strip()


def said(terminal: Terminal, message: str) -> None:
    terminal.type(message)
    terminal.wait_for(lambda: f"> {message}" in screen(terminal) and waits(terminal))


@pytest.mark.parametrize(("columns", "rows"), [(80, 24), (200, 50)])
def test_a_conversation(terminal: Terminal, talking_gguf: Path, tmp_path: Path, columns: int, rows: int) -> None:
    """A message, an edited line, several lines, history, completion, /edit, the file of the conversation, leaving."""
    terminal.resize(columns, rows)
    start(terminal, talking_gguf, "-n", "12")
    said(terminal, "hello 海")
    assert "reused 0, read" in terminal.rows()[-1]
    terminal.press("-l", "two")
    terminal.press("M-Enter")
    terminal.press("-l", "linex")
    terminal.press("BSpace", "Home", "m", "y", "Space")
    terminal.wait_for(lambda: "> two\n. my line" in "\n".join(row.rstrip() for row in terminal.rows()))
    terminal.press("Enter")
    terminal.wait_for(lambda: waits(terminal))
    assert "reused 0" not in terminal.rows()[-1]
    terminal.press("-l", "/ed")
    terminal.wait_for_text("change the last message")  # a Tab while the menu is made would be lost
    terminal.press("Tab")
    terminal.wait_for_text("> /edit")
    terminal.press("Enter", "Enter")  # the completion, the command
    terminal.wait_for(lambda: screen(terminal).count("> two") == 2)
    terminal.press("BSpace", "BSpace", "Enter")
    terminal.wait_for(lambda: waits(terminal))
    saved = tmp_path / "talk.jsonl"
    terminal.type(f"/save {saved}")
    terminal.wait_for_text("saved 2 turns")
    assert '"content": "two\\nmy li"' in saved.read_text(encoding="utf-8")
    terminal.press("Up", "Up")
    terminal.wait_for_text("> two\n. my li")
    terminal.press("C-c")
    terminal.press("C-d")
    terminal.wait_for(lambda: has_left(terminal))
    terminal.type("echo code $?")
    terminal.wait_for_text("code 0")


def test_ctrl_c_stops_the_answer_and_a_second_one_leaves(terminal: Terminal, talking_gguf: Path) -> None:
    start(terminal, talking_gguf, "-n", "3000")
    terminal.type("hello")
    terminal.wait_for(lambda: answers(terminal))
    terminal.press("C-c")
    terminal.wait_for(lambda: waits(terminal))
    assert "before Ctrl-C" in screen(terminal)
    said(terminal, "/tokens")
    assert "turn 1 " in screen(terminal)
    terminal.press("-l", "half a line")
    terminal.press("C-c")
    terminal.wait_for(lambda: waits(terminal))
    terminal.press("C-c")
    terminal.wait_for_text("Ctrl-C again")
    terminal.wait_for(lambda: waits(terminal))
    terminal.press("C-c")
    terminal.wait_for(lambda: has_left(terminal))
    terminal.type("echo code $?")
    terminal.wait_for_text("code 130")


def test_pasted_lines_are_one_message(terminal: Terminal, talking_gguf: Path, tmp_path: Path) -> None:
    """Bracketed paste: twenty thousand lines arrive whole, are refused with numbers, and the chat goes on."""
    start(terminal, talking_gguf, "-n", "8", "-c", "1024")
    for n_lines, message in ((3, "a line"), (20_000, "many a line")):
        pasted = tmp_path / "pasted"
        pasted.write_text("\n".join(f"{message} {i}" for i in range(n_lines)), encoding="utf-8")
        terminal._call("load-buffer", str(pasted))
        terminal._call("paste-buffer", "-p")
        terminal.wait_for_text(f"{message} {n_lines - 1}")
        terminal.press("Enter")
        terminal.wait_for(lambda: waits(terminal))
        if n_lines == 3:
            said(terminal, "/tokens")
            assert "turn 1 " in screen(terminal)
            assert "turn 2 " not in screen(terminal)
    assert "stands around it, and the context holds 1,024" in terminal.everything()
    said(terminal, "still there?")
    assert "tok/s" in terminal.rows()[-1]


def test_suspending_and_resizing_leave_a_chat_that_goes_on(terminal: Terminal, talking_gguf: Path) -> None:
    """Ctrl-Z at the input line and in an answer, a smaller and a larger window."""
    start(terminal, talking_gguf, "-n", "300")
    terminal.press("C-z")
    terminal.wait_for_text("Stopped")
    terminal.type("fg")
    terminal.wait_for(lambda: waits(terminal))
    terminal.type("hello")
    terminal.wait_for(lambda: answers(terminal))
    terminal.press("C-z")
    terminal.wait_for(lambda: has_left(terminal))
    terminal.type("fg")
    terminal.wait_for(lambda: waits(terminal))
    for columns, rows in ((40, 8), (120, 30), (80, 24)):
        terminal.resize(columns, rows)
        time.sleep(0.3)  # tmux tells of one resize in 250 ms
        terminal.type("/set max_tokens 9")
        terminal.wait_for(lambda: waits(terminal))
    said(terminal, "and now")
    assert "cut after 9 tokens" in screen(terminal)


def test_what_is_typed_while_an_answer_comes_waits_for_the_next_line(
    terminal: Terminal, talking_gguf: Path, tmp_path: Path
) -> None:
    """It is not echoed into the answer, also not after Ctrl-Z; the shell always has its echo."""
    start(terminal, talking_gguf, "-n", "2000")
    assert "context" in terminal.everything().partition("# begins")[2].splitlines()[1]  # the greeting
    terminal.type("hello")
    terminal.wait_for(lambda: answers(terminal))
    terminal.press("C-z")
    terminal.wait_for(lambda: has_left(terminal))
    terminal.type(f"stty -a > {tmp_path}/shell; fg")
    terminal.wait_for(lambda: answers(terminal))
    terminal.press("-l", "typed")
    terminal.press("M-Enter")
    terminal.press("-l", "ahead")
    terminal.wait_for(lambda: "cut after" in screen(terminal))
    terminal.wait_for(lambda: "> typed\n. ahead" in "\n".join(row.rstrip() for row in terminal.rows()))
    assert terminal.everything().count("ahead") == 1
    terminal.press("Enter")
    terminal.wait_for(lambda: answers(terminal))
    terminal.press("C-c")
    terminal.wait_for(lambda: waits(terminal))
    terminal.press("C-d")
    terminal.wait_for(lambda: has_left(terminal))
    terminal.type(f"stty -a > {tmp_path}/after; echo done")
    terminal.wait_for_text("\ndone")
    for name in ("shell", "after"):
        assert " echo " in (tmp_path / name).read_text(encoding="utf-8")


@pytest.mark.parametrize("markdown", [False, True], ids=["plain", "markdown"])
def test_the_answer_is_all_there(terminal: Terminal, talking_gguf: Path, markdown: bool) -> None:
    start(terminal, talking_gguf, "-n", "60", *(["--markdown"] if markdown else []))
    terminal.type("hello")
    terminal.wait_for(lambda: waits(terminal) and "cut after" in screen(terminal))
    text = squeezed(terminal.everything().partition("> hello")[2].partition("the answer was cut")[0])
    piped = run("chat", "-m", str(talking_gguf), *QUICK, "-n", "60", "-q", "--message", "hello").stdout
    assert text == squeezed(piped.replace("**", "") if markdown else piped)


def test_what_is_said_of_a_full_context_stands_on_a_line_of_its_own(terminal: Terminal, talking_gguf: Path) -> None:
    start(terminal, talking_gguf, "-n", "100", "-c", "256")
    for message in ("one", "two", "three"):
        said(terminal, message)
    assert "\nthe context is full: the model no longer reads" in terminal.everything()


def squeezed(text: str) -> str:
    """Without what wrapping adds or takes."""
    return re.sub(r"\s", "", text)


# ---- terminals that can little -----------------------------------------------------------------------------------------


def test_no_color_is_respected(terminal: Terminal, talking_gguf: Path) -> None:
    start(terminal, talking_gguf, "-n", "9", "--color-accepted", env="NO_COLOR=1")
    said(terminal, "hello")
    said(terminal, "/hlep")
    colours = re.findall(r"\x1b\[[\d;]*m", terminal._call("capture-pane", "-p", "-e"))
    assert not [colour for colour in colours if re.search(r"\b(3\d|9\d|38)\b", colour)]


@pytest.mark.parametrize(
    "env", ["LC_ALL=C", "LC_ALL=POSIX PYTHONUTF8=0 PYTHONCOERCECLOCALE=0", "PYTHONIOENCODING=latin1"]
)
def test_a_locale_without_utf8_does_not_end_it(terminal: Terminal, talking_gguf: Path, env: str) -> None:
    start(terminal, talking_gguf, "-n", "9", env=env)
    for _ in range(2):
        terminal.type("caf\u00e9 海")
        terminal.wait_for(lambda: waits(terminal))
    said(terminal, "/tokens")
    assert "turn 2 " in screen(terminal)


def on_terminal(
    model: Path, marker: bytes, act: Callable[[subprocess.Popen[bytes], int], bool], *arguments: str, **env: str
) -> tuple[int, bytes]:
    """Exit code and all that was sent to a terminal. Whenever `marker` has come, `act` may type or send a signal; it
    returns False once it is done."""
    ours, theirs = pty.openpty()
    termios.tcsetwinsize(theirs, (24, 80))
    process = subprocess.Popen(
        [*COMMAND, "chat", "-m", str(model), *QUICK, "-n", "5", *arguments], stdin=theirs, stdout=theirs, stderr=theirs,
        env={**os.environ, "TERM": "xterm-256color", **env}, start_new_session=True,
    )  # fmt: skip
    os.close(theirs)
    received, n_seen, goes_on = bytearray(), 0, True
    with contextlib.suppress(OSError):  # the other side is closed: it has ended
        while select.select([ours], [], [], TIMEOUT_S)[0]:
            received += os.read(ours, 65536)
            if goes_on and received.count(marker) > n_seen:
                n_seen = received.count(marker)
                goes_on = act(process, ours)
    process.kill()
    os.close(ours)
    return process.wait(), bytes(received)


def test_a_dumb_terminal_gets_plain_lines(talking_gguf: Path) -> None:
    lines = [b"hello\n", b"/tokens\n", b"/edit\n", b"\x04"]

    def act(process: subprocess.Popen[bytes], terminal: int) -> bool:
        os.write(terminal, lines.pop(0))
        return bool(lines)

    code, sent = on_terminal(talking_gguf, b"> ", act, TERM="dumb")
    assert code == 0
    assert b"\x1b" not in sent
    assert b"turn 1 " in sent
    assert b"write /edit TEXT" in sent
    assert sent.endswith(b"> \r\n")


def test_sigterm_at_the_input_line_ends_it_and_gives_the_terminal_back(talking_gguf: Path) -> None:
    def act(process: subprocess.Popen[bytes], terminal: int) -> bool:
        process.send_signal(signal.SIGTERM)
        return False

    code, sent = on_terminal(talking_gguf, b"\x1b[?2004h", act, PROMPT_TOOLKIT_NO_CPR="1")
    assert code == -signal.SIGTERM
    assert b"Traceback" not in sent
    assert sent.rindex(b"\x1b[?2004l") > sent.rindex(b"\x1b[?2004h")  # bracketed paste is off again


@pytest.mark.parametrize(("by", "arguments"), [(signal.SIGTERM, ()), (signal.SIGQUIT, ()), (signal.SIGTERM, ("-q",))])
def test_a_signal_in_an_answer_gives_the_echo_back(
    talking_gguf: Path, by: signal.Signals, arguments: tuple[str, ...]
) -> None:
    resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))  # SIGQUIT dumps one
    ended_with: list[int] = []
    typed: list[int] = []  # by the input line's first escape sequence; those of the colours come with the answer

    def act(process: subprocess.Popen[bytes], terminal: int) -> bool:
        if not typed:
            typed.append(os.write(terminal, b"hello\r"))
        modes = termios.tcgetattr(terminal)[3]
        if not modes & termios.ICANON or modes & termios.ECHO:
            return True  # the input line has the terminal, or nobody
        process.send_signal(by)
        process.wait(TIMEOUT_S)
        ended_with.append(termios.tcgetattr(terminal)[3] & termios.ECHO)
        return False

    code, sent = on_terminal(talking_gguf, b"\x1b[", act, "-n", "300", "--color-accepted", *arguments)
    assert code == -by
    assert ended_with == [termios.ECHO]
    assert b"loading" not in sent.partition(b"\x1b[?2004h")[2]  # an answer of a chat loads nothing
