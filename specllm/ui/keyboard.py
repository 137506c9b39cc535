"""The terminal does not show what is typed while an answer is written; the input line that comes next does."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Iterator
from types import FrameType

try:
    import termios
except ImportError:  # Windows
    termios = None  # type: ignore[assignment]


@contextlib.contextmanager
def echo_off(*, is_wanted: bool = True) -> Iterator[None]:
    """Inside, keys are kept for whoever reads next, unseen. Does nothing where stdin is no terminal.

    Ctrl-Z gives the shell a terminal that echoes. Entered after whatever else handles SIGTSTP, left before it.
    """
    if not is_wanted or termios is None or not sys.stdin.isatty():
        yield
        return
    keyboard = _Keyboard(sys.stdin.fileno())
    try:
        keyboard.hush()
        yield
    finally:
        keyboard.restore()


class _Keyboard:
    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._found: list[object] | None = None  # what the terminal did before
        self._previous = signal.getsignal(signal.SIGTSTP)
        # Python delivers signals to the main thread; a shell without job control has Ctrl-Z ignored.
        self._can_watch = threading.current_thread() is threading.main_thread() and self._previous != signal.SIG_IGN

    def hush(self) -> None:
        if self._can_watch:
            signal.signal(signal.SIGTSTP, self._suspend)
        self._echo_off()

    def restore(self) -> None:
        self._echo_as_found()
        if self._can_watch:
            signal.signal(signal.SIGTSTP, self._previous)

    def _suspend(self, signum: int, frame: FrameType | None) -> None:
        self._echo_as_found()
        if callable(self._previous):
            self._previous(signum, frame)
        else:
            signal.signal(signal.SIGTSTP, signal.SIG_DFL)
            os.kill(os.getpid(), signal.SIGTSTP)  # stops here until somebody continues the process
        signal.signal(signal.SIGTSTP, self._suspend)
        self._echo_off()

    def _echo_off(self) -> None:
        with contextlib.suppress(OSError, termios.error):
            if not self._is_ours():
                return
            self._found = termios.tcgetattr(self._fd)
            hushed = termios.tcgetattr(self._fd)
            hushed[3] &= ~termios.ECHO  # local modes
            termios.tcsetattr(self._fd, termios.TCSANOW, hushed)  # TCSAFLUSH would drop what is typed already

    def _echo_as_found(self) -> None:
        found = self._found
        with contextlib.suppress(OSError, termios.error):
            if found is not None and self._is_ours():
                termios.tcsetattr(self._fd, termios.TCSANOW, found)  # type: ignore[arg-type]
        self._found = None

    def _is_ours(self) -> bool:
        """Not in the background: there a change of the terminal would stop us, and it is the shell's."""
        try:
            return os.tcgetpgrp(self._fd) == os.getpgrp()
        except OSError:  # not the terminal that controls us
            return True
