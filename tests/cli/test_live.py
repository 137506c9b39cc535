"""The live view on a real terminal: text whole, the panel at its place, the terminal as it was. No model: traces are played."""

from __future__ import annotations

import random
import time
from functools import partial
from pathlib import Path

import pytest

from specllm.app.trace.reader import Chunk, read_trace
from specllm.app.trace.writer import TraceWriter
from specllm.decoding.metrics import Metrics
from specllm.decoding.protocols import Draft, Round
from specllm.ui.panel import panel_height
from tests.cli.conftest import QUICK, run, run_all
from tests.cli.terminal import Terminal
from tests.cli.test_terminal import TMUX_PAUSE_S, WORDS, is_sane, on_terminal, squeezed

ROUND_S = 0.03


def write_trace(path: Path, n_rounds: int, *, seed: int = 1) -> str:
    """A run of two drafters whose text is made of `WORDS`; returns the text."""
    random_ = random.Random(seed)
    metrics, text = Metrics(n_prompt=9), ""
    with TraceWriter(path, lambda token: WORDS[token]) as writer:
        for _ in range(n_rounds):
            source, n_draft = random_.choice([("lookup", 7), ("model", 3), ("none", 0)])
            draft = Draft(tuple(random_.randrange(len(WORDS)) for _ in range(n_draft)), source)
            n = random_.randint(0, n_draft)
            round = Round((*draft.tokens[:n], random_.randrange(len(WORDS))), draft, 0.0, ROUND_S, 0.0)
            metrics.add(round)
            writer.write(round, metrics)
            writer.show([Chunk(WORDS[t], source if i < n else "target") for i, t in enumerate(round.tokens)])
            text += "".join(WORDS[token] for token in round.tokens)
        writer.end(finish_reason="stop", strategy="auto: lookup 7, model 3")
    return text


def has_panel(terminal: Terminal, rows: int) -> bool:
    """The panel stands in the last rows, the text scrolls above it, and there is one of it."""
    height, screen = panel_height(rows), terminal.rows()
    if terminal.scroll_region() != (0, rows - 1 - height) or len(screen) != rows:
        return False
    panel = screen[rows - height :]
    assert sum("drafts of the last" in row for row in screen) <= 1
    if height == 1:
        return "tok/s now" in panel[0]
    return (
        "tok/s now" in panel[-2] and "auto: lookup 7" in panel[-1] and (height < 7 or "drafts of the last" in panel[0])
    )


def ends(terminal: Terminal, rows: int) -> bool:
    return is_sane(terminal, rows) and "tok/s ·" in "\n".join(terminal.rows())


@pytest.mark.parametrize(("columns", "rows", "starts_at_last_row"), [(80, 24, False), (200, 50, True), (60, 10, True)])
def test_the_text_is_never_torn(
    terminal: Terminal, tmp_path: Path, columns: int, rows: int, starts_at_last_row: bool
) -> None:
    text = write_trace(tmp_path / "trace.jsonl", 120)
    n_tokens = sum(len(step.round.tokens) for step in read_trace(tmp_path / "trace.jsonl").steps)
    terminal.resize(columns, rows)
    terminal.wait_for(lambda: len(terminal.rows()) == rows)
    if starts_at_last_row:
        terminal.type("seq 60")
        terminal.wait_for(lambda: terminal.rows()[-1].startswith("ready>"))
    terminal.type(f"specllm replay {tmp_path / 'trace.jsonl'} --speed 5 # begins")
    terminal.wait_for(lambda: ends(terminal, rows))
    drawn = terminal.everything().partition("# begins")[2]
    end = "── drafts of" if rows >= 24 else f"{n_tokens} tokens ·"
    assert squeezed(drawn.partition(end)[0]) == squeezed(text)


def test_a_resize_and_ctrl_c_leave_a_sane_terminal(terminal: Terminal, tmp_path: Path) -> None:
    """Through windows with and without bars while text comes; then Ctrl-C. The text is a beginning of the whole."""
    text = write_trace(tmp_path / "trace.jsonl", 2000)
    terminal.type(f"specllm replay {tmp_path / 'trace.jsonl'} # begins")
    for columns, rows in ((80, 24), (60, 10), (100, 40), (50, 14), (80, 24)):
        terminal.resize(columns, rows)
        terminal.wait_for(lambda rows=rows: has_panel(terminal, rows))
        time.sleep(TMUX_PAUSE_S)
    terminal.press("C-c")
    terminal.wait_for(lambda: is_sane(terminal, 24))
    assert "interrupted after" in "\n".join(terminal.rows())
    drawn = squeezed(terminal.everything().partition("# begins")[2].partition("── drafts")[0]).removesuffix("^C")
    assert len(drawn) > 100
    assert squeezed(text).startswith(drawn)
    terminal.type("echo code $?")
    terminal.wait_for_text("code 130")


def test_suspending_gives_the_shell_a_whole_screen(terminal: Terminal, tmp_path: Path) -> None:
    write_trace(tmp_path / "trace.jsonl", 2000)
    terminal.type(f"specllm replay {tmp_path / 'trace.jsonl'}")
    terminal.wait_for(lambda: has_panel(terminal, 24))
    terminal.press("C-z")
    terminal.wait_for_text("Stopped")
    terminal.wait_for(lambda: is_sane(terminal, 24))
    assert "tok/s now" not in "\n".join(terminal.rows())
    terminal.type("fg")
    terminal.wait_for(lambda: has_panel(terminal, 24))
    terminal.press("C-c")
    terminal.wait_for(lambda: is_sane(terminal, 24))


def test_ctrl_backslash_leaves_a_sane_terminal(terminal: Terminal, tmp_path: Path) -> None:
    write_trace(tmp_path / "trace.jsonl", 2000)
    terminal.type("ulimit -c 0")
    terminal.type(f"specllm replay {tmp_path / 'trace.jsonl'}")
    terminal.wait_for(lambda: has_panel(terminal, 24))
    terminal.press("C-\\")
    terminal.wait_for(lambda: is_sane(terminal, 24))
    terminal.type("echo code $?")
    terminal.wait_for_text("code 131")


@pytest.mark.parametrize(
    ("env", "has_panel", "has_colour", "has_blocks"),
    [
        ({"TERM": "xterm-256color"}, True, True, True),
        ({"NO_COLOR": "1"}, True, False, True),
        ({"PYTHONIOENCODING": "ascii"}, True, True, False),
        ({"TERM": "dumb"}, False, False, False),
    ],
    ids=["xterm", "NO_COLOR", "ascii", "dumb"],
)
def test_the_panel_is_what_the_terminal_can_show(
    tmp_path: Path, env: dict[str, str], has_panel: bool, has_colour: bool, has_blocks: bool
) -> None:
    write_trace(tmp_path / "trace.jsonl", 20)
    sent = on_terminal("replay", str(tmp_path / "trace.jsonl"), "--speed", "2", env=env)
    assert (b"\x1b[1;16r" in sent) == has_panel
    assert (b"drafts of the last" in sent) == has_panel
    assert (b"\x1b[36m" in sent) == has_colour
    assert ("█".encode() in sent) == has_blocks
    assert ("░".encode() in sent) == (has_blocks and not has_colour)
    assert (b"#" in sent) == (has_panel and not has_blocks)
    assert (b"\x1b" in sent) == has_panel
    assert b"loading" not in sent  # nothing is
    if not has_panel:
        assert b"tok/s \xc2\xb7" in sent  # the closing figures, as without it


def test_generate_with_it_says_the_same(llama_gguf: Path) -> None:
    """On a terminal the panel comes and goes and the text stays; in a pipe there is none."""
    arguments = ["generate", "-m", str(llama_gguf), *QUICK, "-n", "40", "-t", "0", "hi"]
    plain, live = run_all([partial(run, *arguments), partial(run, *arguments, "--live")])
    assert live.stdout == plain.stdout
    assert "\x1b" not in live.stderr
    assert live.stderr.count("\n") == plain.stderr.count("\n") == 1
    sent = on_terminal(*arguments, "--live", env={"NO_COLOR": "1"})
    assert b"drafts of the last" in sent
