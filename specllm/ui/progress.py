"""How far a long piece of work has come, on stderr: a bar on a terminal, else a line now and then."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)
from rich.progress import Progress as Bars
from rich.text import Text

from specllm.ui.console import harmless, write_note
from specllm.units import sized

PLAIN_STEP = 0.1  # without a terminal: a line for every tenth ..
PLAIN_PAUSE_S = 2.0  # .. but none for what is done in a moment ..
PLAIN_EVERY_S = 30.0  # .. and one at least this often


@contextmanager
def watch_progress() -> Iterator[BarProgress | PlainProgress]:
    """Progress on stderr: a bar with bytes, speed and time left on a terminal, else a line now and then."""
    console = Console(stderr=True, highlight=False, markup=False, emoji=False)
    if not console.is_terminal:
        yield PlainProgress()
        return
    bars = Bars(
        TextColumn("  {task.description:<13}", markup=False),
        BarColumn(bar_width=None),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeRemainingColumn(compact=True),
        console=console,
        transient=True,
    )
    with bars:
        yield BarProgress(bars)


class BarProgress:
    """One bar at a time; messages scroll by above it."""

    def __init__(self, bars: Bars) -> None:
        self.bars = bars
        self.task: TaskID | None = None

    def begin(self, label: str, total_bytes: int | None, done_bytes: int = 0) -> None:
        if self.task is not None:
            self.bars.remove_task(self.task)
        self.task = self.bars.add_task(label, total=total_bytes, completed=done_bytes)

    def advance(self, n_bytes: int) -> None:
        assert self.task is not None
        self.bars.advance(self.task, n_bytes)

    def message(self, text: str) -> None:
        self.bars.console.print(Text(harmless(text)))


class PlainProgress:
    """Sparse lines for logs."""

    def __init__(self) -> None:
        self.label = ""
        self.total_bytes: int | None = None
        self.done_bytes = 0
        self.told_bytes = 0
        self.told_at_s = 0.0

    def begin(self, label: str, total_bytes: int | None, done_bytes: int = 0) -> None:
        self.label, self.total_bytes, self.done_bytes = label, total_bytes, done_bytes
        self.told_bytes, self.told_at_s = done_bytes, time.monotonic()

    def advance(self, n_bytes: int) -> None:
        self.done_bytes += n_bytes
        step_bytes = (self.total_bytes or 1_000_000_000) * PLAIN_STEP
        now_s = time.monotonic()
        pause_s = PLAIN_PAUSE_S if self.done_bytes - self.told_bytes >= step_bytes else PLAIN_EVERY_S
        if now_s - self.told_at_s >= pause_s:
            self.told_bytes, self.told_at_s = self.done_bytes, now_s
            of = ""
            if self.total_bytes:
                of = f" of {sized(self.total_bytes)} ({min(100 * self.done_bytes // self.total_bytes, 100)} %)"
            write_note(f"  {self.label}: {sized(self.done_bytes)}{of}")

    def message(self, text: str) -> None:
        write_note(text)
