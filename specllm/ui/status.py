"""A status line on the terminal's last row that streamed text never touches.

The rows above it become the scroll region (DECSTBM), as package managers do it for their progress bar: text scrolls there
by itself and the status is drawn outside with the cursor saved and restored. Where stdout goes elsewhere, nothing scrolls
and the line is simply rewritten in place.
"""

from __future__ import annotations

import os
import sys
from time import monotonic
from types import TracebackType

from rich.cells import set_cell_size

from specllm.ui.console import has_colour, is_terminal

_REDRAW_S = 0.1  # often enough to read, rare enough to cost nothing


class StatusLine:
    """Shows one line at a time on stderr while inside `with`; does nothing where stderr is no terminal."""

    def __init__(self, *, is_wanted: bool = True) -> None:
        self._is_on = is_wanted and is_terminal(sys.stderr)
        self._shares_terminal = is_terminal(sys.stdout)
        self._size: os.terminal_size | None = None
        self._drawn_at = 0.0

    def __enter__(self) -> StatusLine:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        if self._size:
            # Whole screen scrolls again; the cursor is where the text ended, the last row is free.
            self._write(f"\x1b7\x1b[r\x1b[{self._size.lines};1H\x1b[2K\x1b8" if self._shares_terminal else "\r\x1b[2K")
            self._size = None

    def show(self, text: str, *, is_urgent: bool = False) -> None:
        """Draws `text`, cut to the terminal's width; drops it where the last one is younger than a tenth of a second."""
        now = monotonic()
        if not self._is_on or (now - self._drawn_at < _REDRAW_S and not is_urgent):
            return
        self._drawn_at = now
        try:
            size = os.get_terminal_size(sys.stderr.fileno())
        except OSError:
            return
        if size.lines < 4:
            return
        line = set_cell_size(text, size.columns - 1)
        if has_colour(sys.stderr):
            line = f"\x1b[2m{line}\x1b[0m"
        if not self._shares_terminal:
            self._size = size
            self._write(f"\r\x1b[2K{line}")
            return
        sys.stdout.flush()
        if size != self._size:
            self._reserve(size)
        self._write(f"\x1b7\x1b[{size.lines};1H\x1b[2K{line}\x1b8")

    def _reserve(self, size: os.terminal_size) -> None:
        """Takes the last row out of the scroll region, with the cursor in the same place of the text."""
        self._size = size
        # A newline makes room where the cursor stands on the last row; setting the region moves it home, hence 7/8.
        self._write(f"\n\x1b7\x1b[1;{size.lines - 1}r\x1b8\x1b[1A")

    def _write(self, text: str) -> None:
        sys.stderr.write(text)
        sys.stderr.flush()
