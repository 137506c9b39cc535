"""The live status on a real terminal: text whole, the last row free again, the shell's prompt on a line of its own."""

from __future__ import annotations

import os
import pty
import re
import subprocess
import termios
import threading
import time
from pathlib import Path

import pytest

from tests import synthetic
from tests.cli.conftest import COMMAND, QUICK, run
from tests.cli.terminal import PROMPT, Terminal
from tests.synthetic import FIRST_BYTE

# A vocabulary of words that are wide, of several code points, longer than a syllable, or the end of a line.
WORDS = ("sea ", "wave, ", "海", "鲸鱼。", "🌊", "👍🏽", "é", "antidisestablishment", "~~", "\n")
FIRST_WORD = FIRST_BYTE + 256
SPEAKS = [word for token in range(len(WORDS)) for word in ("--logit-bias", f"{FIRST_WORD + token}=60")]
N_SPOKEN = 400
TMUX_PAUSE_S = 0.3  # tmux tells a process of one resize in 250 ms, but draws all of them
ESCAPE = FIRST_BYTE + 0x1B


@pytest.fixture(scope="session")
def speaking_gguf(synthetic_models: Path) -> Path:
    """A slow model whose first tokens after the bytes are `WORDS`."""
    texts = {FIRST_WORD + place: word.replace(" ", synthetic.SPACE) for place, word in enumerate(WORDS)}
    return synthetic.write_llama(synthetic_models / "speaking.gguf", n_layer=6, n_embd=256, token_texts=texts)


def arguments_for(model: Path, n: int) -> list[str]:
    all_words = ["-t", "4", "--top-p", "1", "--min-p", "0"]
    return ["generate", "-m", str(model), *QUICK, "-n", str(n), *SPEAKS, *all_words, "hi"]


@pytest.fixture(scope="session")
def spoken(speaking_gguf: Path) -> str:
    """What the model says, as a pipe gets it."""
    return run(*arguments_for(speaking_gguf, N_SPOKEN), "-q").stdout


def squeezed(text: str) -> str:
    """Without what wrapping adds or takes: a wide character that does not fit leaves a gap at the end of its row."""
    return re.sub(r"\s", "", text)


def is_sane(terminal: Terminal, rows: int) -> bool:
    """The whole screen scrolls and the shell waits on a line of its own."""
    lines = [line for line in terminal.rows() if line]
    return terminal.scroll_region() == (0, rows - 1) and lines[-1] == PROMPT.strip()


@pytest.mark.parametrize(("columns", "rows", "starts_at_last_row"), [(80, 24, False), (60, 10, True)])
def test_the_text_is_never_torn(
    terminal: Terminal, speaking_gguf: Path, spoken: str, columns: int, rows: int, starts_at_last_row: bool
) -> None:
    """More text than the screen holds, with wide characters: all of it is there, in order, and nothing else."""
    terminal.resize(columns, rows)
    terminal.wait_for(lambda: terminal.rows()[0] == PROMPT.strip() and len(terminal.rows()) == rows)
    if starts_at_last_row:
        terminal.type("seq 30")
        terminal.wait_for(lambda: terminal.rows()[-1] == PROMPT.strip())
    terminal.type("specllm " + " ".join(arguments_for(speaking_gguf, N_SPOKEN)) + " # begins")
    terminal.wait_for(lambda: terminal.scroll_region() == (0, rows - 2) and "tok/s" in terminal.rows()[-1])
    terminal.wait_for(lambda: is_sane(terminal, rows))
    everything = terminal.everything()
    text = everything.partition("# begins")[2].partition(f"{N_SPOKEN} tokens, cut")[0]
    assert squeezed(text) == squeezed(spoken)
    assert len(spoken) > columns * rows / 2


def test_a_resize_and_ctrl_c_leave_a_sane_terminal(terminal: Terminal, speaking_gguf: Path, spoken: str) -> None:
    """Smaller, larger and back while text comes; then Ctrl-C. The text is a beginning of what it would have been."""
    terminal.type("specllm " + " ".join(arguments_for(speaking_gguf, 4000)) + " # begins")
    for columns, rows in ((60, 10), (100, 30), (80, 24)):
        terminal.resize(columns, rows)
        terminal.wait_for(
            lambda rows=rows: terminal.scroll_region() == (0, rows - 2) and "tok/s" in terminal.rows()[-1]
        )
        assert sum("tok/s" in row for row in terminal.rows()) == 1
        time.sleep(TMUX_PAUSE_S)
    terminal.press("C-c")
    terminal.wait_for(lambda: is_sane(terminal, 24))
    assert "interrupted after" in "\n".join(terminal.rows())
    text = squeezed(terminal.everything().partition("# begins")[2].partition("interrupted after")[0]).removesuffix("^C")
    assert len(text) > 100
    assert squeezed(spoken).startswith(text) or text.startswith(squeezed(spoken))
    terminal.type("echo code $?")
    terminal.wait_for_text("code 130")


def test_suspending_gives_the_shell_a_whole_screen(terminal: Terminal, speaking_gguf: Path) -> None:
    terminal.type("specllm " + " ".join(arguments_for(speaking_gguf, 4000)))
    terminal.wait_for(lambda: terminal.scroll_region() == (0, 22) and "tok/s" in terminal.rows()[-1])
    terminal.press("C-z")
    terminal.wait_for_text("Stopped")
    terminal.wait_for(lambda: is_sane(terminal, 24))
    assert "tok/s" not in "\n".join(terminal.rows())
    terminal.type("fg")
    terminal.wait_for(lambda: terminal.scroll_region() == (0, 22) and "tok/s" in terminal.rows()[-1])
    terminal.type("")
    terminal.press("C-c")
    terminal.wait_for(lambda: is_sane(terminal, 24))


def on_terminal(*arguments: str, env: dict[str, str] | None = None) -> bytes:
    """All that the command sends to a terminal that is its stdin, stdout and stderr."""
    ours, theirs = pty.openpty()
    termios.tcsetwinsize(theirs, (24, 80))
    received = bytearray()

    def read() -> None:
        try:
            while data := os.read(ours, 65536):
                received.extend(data)
        except OSError:  # nobody has the other end open any more
            return

    reader = threading.Thread(target=read)
    reader.start()
    subprocess.run(
        [*COMMAND, *arguments], stdin=theirs, stdout=theirs, stderr=theirs, env={**os.environ, "TERM": "xterm", **(env or {})},
        timeout=60, check=False,
    )  # fmt: skip
    os.close(theirs)
    reader.join()
    os.close(ours)
    return bytes(received)


def test_an_escape_sequence_of_the_model_is_shown_and_not_obeyed(llama_gguf: Path) -> None:
    arguments = ["generate", "-m", str(llama_gguf), *QUICK, "-q", "-n", "3", "--logit-bias", f"{ESCAPE}=100", "hi"]
    assert on_terminal(*arguments).decode() == "␛␛␛\r\n"
    assert run(*arguments).stdout == "\x1b\x1b\x1b"  # in a pipe the text is data


@pytest.mark.parametrize(
    ("env", "has_status", "has_colour"),
    [({}, True, True), ({"NO_COLOR": "1"}, True, False), ({"TERM": "dumb"}, False, False)],
    ids=["xterm", "NO_COLOR", "dumb"],
)
def test_colour_and_status_are_for_terminals_that_can(
    speaking_gguf: Path, env: dict[str, str], has_status: bool, has_colour: bool
) -> None:
    """The target as its own draft: every token is accepted, so there is something to colour."""
    arguments = [
        *arguments_for(speaking_gguf, 500),
        "-d",
        "model",
        "--draft-model",
        str(speaking_gguf),
        "--confidence",
        "0",
    ]
    sent = on_terminal(*arguments, "--color-accepted", env=env)
    assert (b"\x1b7\x1b[1;" in sent) == has_status
    assert (b"\x1b[r" in sent) == has_status
    assert (b"\x1b[32m" in sent) == has_colour
    assert (b"accepted from model" in sent) == has_colour
    assert sent.endswith(b"\r\n")
    assert (b"\x1b" in sent) == has_status
