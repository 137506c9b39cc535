"""A status line, or a panel of several rows, at the bottom of the terminal that streamed text never touches.

The rows above it become the scroll region (DECSTBM), as package managers do it for their progress bar: text scrolls there
by itself and the status is drawn outside with the cursor saved and restored. Before the first text, and where stdout goes
elsewhere, one line is simply rewritten in place: a native crash while loading then leaves a terminal that still scrolls.

Every change of the screen is one write of its own, so that whatever interrupts leaves whole escape sequences behind. None
is made while the text ends at the right margin: a terminal then waits with the wrap until the next character, and not every
one (tmux 3.3) keeps that in mind when the cursor is saved and restored; the next character would overwrite the last.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import sys
import threading
from collections.abc import Callable, Sequence
from time import monotonic
from types import FrameType, TracebackType

from rich.cells import cell_len, set_cell_size

from specllm.ui.console import clears_for_notes, harmless, has_colour, is_terminal

_REDRAW_S = 0.1  # often enough to read, rare enough to cost nothing
_MIN_TEXT_ROWS = 3  # a window with fewer for the text has none to spare

_SAVE, _RESTORE = "\x1b7", "\x1b8"  # cursor and its colours (DECSC, DECRC)
_DOWN = "\x1bD"  # one row down in the same column, scrolling at the end (IND); a newline would change the column
_WHOLE_SCREEN_SCROLLS = "\x1b[r"
_DOWN_TO_FIRST = "\r\x1b[B"  # never scrolls
_ERASE_LINE, _ERASE_REST, _ERASE_BELOW = "\x1b[2K", "\x1b[K", "\x1b[J"
_STYLE = re.compile(r"\x1b\[[\d;]*[mK]")
# Joiner, variation selectors, keycap, flags, skin tones: they change the width of their neighbours, or not.
_VAGUE = re.compile("[\u200d\ufe00-\ufe0f\u20e3\U0001f1e6-\U0001f1ff\U0001f3fb-\U0001f3ff]")
_TO_LAST_ROW = "\x1b[9999;1H"  # the terminal's own idea of it: it knows of a resize before we do

# Told how many columns and rows there are; returns at most so many rows, none of them wider.
Panel = Callable[[int, int], Sequence[str]]


class StatusLine:
    """Shows one line or panel at a time on stderr while inside `with`; does nothing where stderr is no terminal.

    `height` says how many rows it takes in a window of so many rows.
    """

    def __init__(self, *, is_wanted: bool = True, height: Callable[[int], int] = lambda rows: 1) -> None:
        self._is_on = is_wanted and is_terminal(sys.stderr)
        self._shares_terminal = self._is_on and is_terminal(sys.stdout)
        self._has_text = False
        self._row = ""  # the text since the last newline
        self._is_in_place = False  # a line stands where the cursor is
        self._height = height
        self._n_rows = 0  # reserved at the end of the window
        self._size: os.terminal_size | None = None  # of the window where they are
        self._drawn_at = 0.0
        self._watches_suspend = False

    def __enter__(self) -> StatusLine:
        clears_for_notes(self.clear)
        self._watch_suspend()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._is_on = False
        self._release()
        clears_for_notes(None)
        if self._watches_suspend:
            signal.signal(signal.SIGTSTP, signal.SIG_DFL)

    def write(self, text: str) -> None:
        """Puts text on stdout, above the line."""
        if self._size:
            if window_size() != self._size and not self._is_at_margin():
                self._follow_window()
            text = text.replace("\n", f"\n{_ERASE_REST}")  # rows that a resize moved up may stand there
        elif self._shares_terminal:
            self._release()
        self._has_text = True
        self._row = _STYLE.sub("", f"{self._row}{text}".rpartition("\n")[2])
        sys.stdout.write(text)
        sys.stdout.flush()

    def show(self, what: str | Panel, *, is_urgent: bool = False) -> None:
        """Draws a line, cut to the terminal's width, or a panel; drops it where the last one is younger than 0.1 s."""
        now = monotonic()
        if not self._is_on or (now - self._drawn_at < _REDRAW_S and not is_urgent) or self._is_at_margin():
            return
        self._drawn_at = now
        if self._shares_terminal and self._has_text:
            self._follow_window()
            if self._size:
                rows = _drawn(what, self._size, self._n_rows)
                rows += [""] * (self._n_rows - len(rows))
                drawn = _DOWN_TO_FIRST.join(f"{row}{_ERASE_REST}" for row in rows)  # erased last: nothing flickers
                _draw(f"{_SAVE}{self._to_first_row()}{drawn}{_RESTORE}")
        elif size := window_size():
            self._is_in_place = True
            _draw(f"\r{_ERASE_LINE}{''.join(_drawn(what, size, 1))}")

    def clear(self) -> None:
        """Takes the line away, so that something else can be printed; the next `show` draws it again."""
        self._release()

    def _is_at_margin(self) -> bool:
        size = window_size()
        return size is not None and may_end_at_margin(self._row, size.columns)

    def _follow_window(self) -> None:
        """The last rows are reserved, whatever became of the window's size; not where it is too small."""
        size = window_size()
        if size == self._size:
            return
        self._release()
        if size and size.lines > _MIN_TEXT_ROWS:
            self._n_rows = n = min(self._height(size.lines), size.lines - _MIN_TEXT_ROWS)
            _draw(
                f"{_DOWN * n}{_up(n)}{_SAVE}\x1b[1;{size.lines - n}r{_RESTORE}"
            )  # setting the region moves the cursor
            self._size = size

    def _to_first_row(self) -> str:
        return f"{_TO_LAST_ROW}{_up(self._n_rows - 1)}"

    def _release(self) -> None:
        """The whole screen scrolls again, the rows are free, the cursor is where the text ended."""
        if self._is_in_place:
            _draw(f"\r{_ERASE_LINE}")
        if self._size and self._size == window_size():
            _draw(f"{_SAVE}{_WHOLE_SCREEN_SCROLLS}{self._to_first_row()}{_ERASE_BELOW}{_RESTORE}")
        elif self._size:  # a resized terminal moved its rows: the old ones are somewhere below the text
            _draw(f"{_SAVE}{_WHOLE_SCREEN_SCROLLS}{_RESTORE}{_ERASE_BELOW}")
        self._is_in_place, self._size = False, None

    def _watch_suspend(self) -> None:
        """Ctrl-Z gives the shell a whole screen; the line comes back with the next text."""
        if not self._shares_terminal or not hasattr(signal, "SIGTSTP"):
            return
        if threading.current_thread() is threading.main_thread() and signal.getsignal(signal.SIGTSTP) is signal.SIG_DFL:
            signal.signal(signal.SIGTSTP, self._suspend)
            self._watches_suspend = True

    def _suspend(self, signum: int, frame: FrameType | None) -> None:
        self._release()
        signal.signal(signal.SIGTSTP, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGTSTP)  # stops here until somebody continues the process
        signal.signal(signal.SIGTSTP, self._suspend)
        self._row = ""  # the shell has left the cursor in the first column


def may_end_at_margin(text: str, columns: int) -> bool:
    """Whether `text`, printed from the first column on, may leave the cursor waiting behind the last one."""
    column = slack = 0  # the true column is at most `slack` away: terminals disagree about the width of emoji sequences
    for character in text:
        if character == "\t":
            column = min((column // 8 + 1) * 8, columns - 1)
            continue
        if _VAGUE.match(character):
            slack += 2
        width = cell_len(character)
        column = width if column + width > columns else column + width  # what does not fit is wrapped whole
    return column + slack >= columns or 0 < column <= slack


def _drawn(what: str | Panel, size: os.terminal_size, n_rows: int) -> list[str]:
    """The rows of a panel, or a line as the only one. Not in the last column: there a terminal would wrap."""
    return [_styled(what, size)] if isinstance(what, str) else list(what(size.columns - 1, n_rows))


def _up(n: int) -> str:
    return f"\x1b[{n}A" if n else ""  # 0 would count as 1


def _styled(text: str, size: os.terminal_size) -> str:
    """Cut to one row, and dim."""
    line = set_cell_size(harmless(text), size.columns - 1)
    return f"\x1b[2m{line}\x1b[0m" if has_colour(sys.stderr) else line


def window_size() -> os.terminal_size | None:
    """The terminal's size, None where it does not know it."""
    try:
        size = os.get_terminal_size(sys.stderr.fileno())
    except OSError:
        return None
    return size if size.columns else None


def _draw(text: str) -> None:
    """Straight to the terminal: a signal handler may come in the middle of a buffered write."""
    with contextlib.suppress(OSError):  # a terminal that is gone needs no status
        os.write(sys.stderr.fileno(), text.encode(sys.stderr.encoding or "ascii", errors="replace"))
