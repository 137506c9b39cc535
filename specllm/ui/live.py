"""The live view: text above, and below it a panel that shows what speculation does with it."""

from __future__ import annotations

import os
import sys
from collections import deque

from specllm.decoding.protocols import Round
from specllm.ui.console import has_colour, is_terminal
from specllm.ui.generate import Answer, AnswerView, status_line
from specllm.ui.panel import MAX_ROUNDS, State, Style, as_ansi, charts, has_bars, panel, panel_height
from specllm.ui.status import Panel, StatusLine, window_size

_GLYPHS = "█▁░·─│×"
_BAR_ROWS_LEFT_BEHIND = 3


class LiveView(AnswerView):
    """An `AnswerView` with a panel for its status line.

    Where there is no room for the panel, or no terminal that text and panel share, it is just that.
    """

    def __init__(self, *, has_text: bool = True, has_status: bool = True, colours_accepted: bool = True) -> None:
        super().__init__(has_text=has_text, has_status=has_status, colours_accepted=colours_accepted)
        self._line = StatusLine(is_wanted=has_status, height=panel_height)
        self._style = Style(is_unicode=_can_show(_GLYPHS), is_coloured=has_colour(sys.stderr))
        self._rounds: deque[Round] = deque(maxlen=MAX_ROUNDS)
        self._n_rounds = 0
        self._has_left_bars = False  # they explain the colours

    def stream(self, answer: Answer) -> None:
        self._rounds.clear()
        self._n_rounds = 0
        super().stream(answer)

    def close(self, answer: Answer, *, has_table: bool = False) -> None:
        """Leaves the last state of the bars behind, then all that an `AnswerView` says."""
        size = window_size()
        self._has_left_bars = (
            self._is_visible and self._has_status and bool(self._rounds) and is_terminal(sys.stderr)
            and size is not None and has_bars(panel_height(size.lines))
        )  # fmt: skip
        if size and self._has_left_bars:
            self._leave_bars(answer, size)
        super().close(answer, has_table=has_table)

    def _legend(self, answer: Answer) -> str:
        return "" if self._has_left_bars else super()._legend(answer)

    def _leave_bars(self, answer: Answer, size: os.terminal_size) -> None:
        drawn = charts(self._state(answer), size.columns - 1, _BAR_ROWS_LEFT_BEHIND, self._style)
        print("\n".join(as_ansi(drawn, self._style)), file=sys.stderr)

    def _status(self, answer: Answer) -> str | Panel:
        round, n_rounds = answer.last_round, answer.metrics.n_rounds
        if round is None or not n_rounds:
            return status_line(answer)
        if n_rounds > self._n_rounds:  # else nothing but text came
            self._n_rounds = n_rounds
            self._rounds.append(round)
        return lambda columns, rows: as_ansi(panel(self._state(answer), columns, rows, self._style), self._style)

    def _state(self, answer: Answer) -> State:
        return State(answer.metrics, self._rounds, answer.strategy)


def _can_show(glyphs: str) -> bool:
    try:
        glyphs.encode(sys.stderr.encoding or "ascii")
    except (UnicodeEncodeError, LookupError):
        return False
    return True
