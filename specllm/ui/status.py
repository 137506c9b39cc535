"""A status line on the terminal's last row that streamed text never touches.

The rows above it become the scroll region (DECSTBM), as package managers do it for their progress bar: text scrolls there
by itself and the status is drawn outside with the cursor saved and restored. Where stdout goes elsewhere, nothing scrolls
and the line is simply rewritten in place.

Every change of the screen is one write of its own, so that whatever interrupts leaves whole escape sequences behind.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
from time import monotonic
from types import FrameType, TracebackType

from rich.cells import set_cell_size

from specllm.ui.console import has_colour, is_terminal

_REDRAW_S = 0.1  # often enough to read, rare enough to cost nothing
_MIN_ROWS = 4  # a smaller window has no row to spare

_SAVE, _RESTORE = "\x1b7", "\x1b8"  # cursor and its colours (DECSC, DECRC)
_DOWN = "\x1bD"  # one row down in the same column, scrolling at the end (IND); a newline would return to the first column
_UP = "\x1b[A"
_WHOLE_SCREEN_SCROLLS = "\x1b[r"
_ERASE_LINE, _ERASE_BELOW = "\x1b[2K", "\x1b[J"


class StatusLine:
    """Shows one line at a time on stderr while inside `with`; does nothing where stderr is no terminal."""

    def __init__(self, *, is_wanted: bool = True) -> None:
        self._is_on = is_wanted and is_terminal(sys.stderr)
        self._shares_terminal = self._is_on and is_terminal(sys.stdout)
        self._size: os.terminal_size | None = None  # of the window whose last row is reserved (or, alone, was written to)
        self._drawn_at = 0.0
        self._watches_suspend = False

    def __enter__(self) -> StatusLine:
        self._watch_suspend()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._is_on = False
        self._release(_window())
        if self._watches_suspend:
            signal.signal(signal.SIGTSTP, signal.SIG_DFL)

    def write(self, text: str) -> None:
        """Puts text on stdout, above the line."""
        if self._shares_terminal and self._size:
            self._follow_window()
        sys.stdout.write(text)
        sys.stdout.flush()

    def show(self, text: str, *, is_urgent: bool = False) -> None:
        """Draws `text`, cut to the terminal's width; drops it where the last one is younger than a tenth of a second."""
        now = monotonic()
        if not self._is_on or (now - self._drawn_at < _REDRAW_S and not is_urgent):
            return
        self._drawn_at = now
        self._follow_window()
        if self._size is None:
            return
        line = set_cell_size(text, self._size.columns - 1)
        if has_colour(sys.stderr):
            line = f"\x1b[2m{line}\x1b[0m"
        if self._shares_terminal:
            _draw(f"{_SAVE}\x1b[{self._size.lines};1H{_ERASE_LINE}{line}{_RESTORE}")
        else:
            _draw(f"\r{_ERASE_LINE}{line}")

    def _follow_window(self) -> None:
        """The last row is reserved, whatever became of the window's size; not where it is too small."""
        size = _window()
        if size == self._size:
            return
        self._release(size)
        if size is None or size.lines < _MIN_ROWS:
            return
        if self._shares_terminal:
            _draw(f"{_DOWN}{_UP}{_SAVE}\x1b[1;{size.lines - 1}r{_RESTORE}")  # setting the region moves the cursor
        self._size = size

    def _release(self, size: os.terminal_size | None) -> None:
        """The whole screen scrolls again, the line is gone, the cursor is where the text ended. `size` is that of now."""
        if self._size is None:
            return
        if not self._shares_terminal:
            _draw(f"\r{_ERASE_LINE}")
        elif size == self._size:
            _draw(f"{_SAVE}{_WHOLE_SCREEN_SCROLLS}\x1b[{size.lines};1H{_ERASE_LINE}{_RESTORE}")
        else:  # a resized terminal moved its rows: the old line is somewhere below the text
            _draw(f"{_SAVE}{_WHOLE_SCREEN_SCROLLS}{_RESTORE}{_ERASE_BELOW}")
        self._size = None

    def _watch_suspend(self) -> None:
        """Ctrl-Z gives the shell a whole screen; the line comes back with the next text."""
        if not self._shares_terminal or not hasattr(signal, "SIGTSTP"):
            return
        if threading.current_thread() is threading.main_thread() and signal.getsignal(signal.SIGTSTP) is signal.SIG_DFL:
            signal.signal(signal.SIGTSTP, self._suspend)
            self._watches_suspend = True

    def _suspend(self, signum: int, frame: FrameType | None) -> None:
        self._release(_window())
        signal.signal(signal.SIGTSTP, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGTSTP)  # stops here until somebody continues the process
        signal.signal(signal.SIGTSTP, self._suspend)


def _window() -> os.terminal_size | None:
    try:
        return os.get_terminal_size(sys.stderr.fileno())
    except OSError:
        return None


def _draw(text: str) -> None:
    """Straight to the terminal: a signal handler may come in the middle of a buffered write."""
    with contextlib.suppress(OSError):  # a terminal that is gone needs no status
        os.write(sys.stderr.fileno(), text.encode(sys.stderr.encoding or "ascii", errors="replace"))
