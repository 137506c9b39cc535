"""Ctrl-C, SIGTERM and SIGQUIT where Python's own way with them is not enough."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator
from types import FrameType


@contextlib.contextmanager
def interrupts_deferred() -> Iterator[None]:
    """Ctrl-C inside is raised at the end, a second one at once.

    For imports: Python drops an exception that is raised in the callbacks of its import locks, and a library that was
    interrupted half-way may turn it into an error of its own.
    """
    previous = signal.getsignal(signal.SIGINT)
    if not callable(previous):
        yield
        return
    came: list[int] = []

    def handle(signum: int, frame: FrameType | None) -> None:
        came.append(signum)
        if len(came) > 1:
            previous(signum, frame)

    signal.signal(signal.SIGINT, handle)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, previous)
    if came:
        raise KeyboardInterrupt


_terminations: list[int] = []  # SIGTERM or SIGQUIT came


def treat_termination_as_ctrl_c() -> list[int]:
    """SIGTERM and SIGQUIT (Ctrl-\\) end a command as Ctrl-C does: terminal restored, partial files in order.

    The list, empty until then, is what came.
    """
    came = _terminations
    came.clear()

    def handle(signum: int, frame: FrameType | None) -> None:
        came.append(signum)
        on_interrupt = signal.getsignal(signal.SIGINT)
        if callable(on_interrupt):
            on_interrupt(signal.SIGINT, frame)
        else:  # started in the background of a script: Ctrl-C is ignored, SIGTERM is not
            raise KeyboardInterrupt

    for signum in (signal.SIGTERM, getattr(signal, "SIGQUIT", signal.SIGTERM)):  # Windows has no SIGQUIT
        if signal.getsignal(signum) is signal.SIG_DFL:
            signal.signal(signum, handle)
    return came


def has_to_terminate() -> bool:
    """Whether a KeyboardInterrupt was none: for commands in which Ctrl-C ends less than the command."""
    return bool(_terminations)
