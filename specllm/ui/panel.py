"""Draws the panel of the live view: the last rounds as bars, acceptance by position, the figures so far.

Every function here returns rows of text and knows no terminal. A bar is as high as the draft was long, solid as far as it was
accepted, in the colour of the drafter, whose letter stands below it: without colour, and in ASCII, nothing is lost.
"""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

from specllm.decoding.metrics import Metrics, recent_tok_per_s
from specllm.decoding.protocols import Round
from specllm.ui.generate import against_plain, shown_speed

MAX_ROUNDS = 256  # no window has room for the bars of more
_COLOURS = {"lookup": "cyan", "model": "green", "reference": "magenta", "store": "blue", "grammar": "yellow"}
_OTHER_COLOUR = "white"
_REJECTED_COLOUR = "color(243)"  # a grey of the fixed 256: the theme's own may be the background
_DIM = "dim"
_MIN_SCALE = 4  # tokens: without it, drafts of one token would fill the height
_FRAME_ROWS = 5  # beside the bars: captions, letters, legend, figures, strategy
_MIN_BAR_ROWS = 2
_MIN_COLUMNS_FOR_POSITIONS = 60
_LEAST_POSITIONS, _MOST_POSITIONS = 10, 16
_AXIS_COLUMNS = 5  # `100%|`
_GAP = 2


@dataclass(frozen=True, slots=True)
class Style:
    """What the terminal can show."""

    is_unicode: bool = True
    is_coloured: bool = True

    @property
    def blocks(self) -> str:
        """A cell filled from nothing to whole. Without colour only whole ones: accepted has to differ from rejected."""
        if not self.is_unicode:
            return " #"
        return " ▁▂▃▄▅▆▇█" if self.is_coloured else " █"

    @property
    def rejected(self) -> str:
        return "░" if self.is_unicode else ":"

    @property
    def plain(self) -> str:
        return "·" if self.is_unicode else "."

    @property
    def rule(self) -> str:
        return "─" if self.is_unicode else "-"

    @property
    def axis(self) -> str:
        return "│" if self.is_unicode else "|"

    @property
    def separator(self) -> str:
        return " · " if self.is_unicode else " | "


class Bar(NamedTuple):
    """Shares of the full height."""

    accepted: float
    drafted: float
    colour: str


class State(NamedTuple):
    """What the panel is about."""

    metrics: Metrics
    rounds: Sequence[Round]  # the last ones
    strategy: str


def panel_height(window_rows: int) -> int:
    """Rows that the panel takes of a window: about a third, one line where that holds no bars."""
    if window_rows < 12:
        return 1
    if window_rows < 18:
        return 2
    return min(window_rows // 3, 12)


def has_bars(rows: int) -> bool:
    """Whether a panel of so many rows has room for bars."""
    return rows >= _FRAME_ROWS + _MIN_BAR_ROWS


def panel(state: State, columns: int, rows: int, style: Style) -> list[Text]:
    """The whole panel in so many rows."""
    figures = [_figures(state, columns, style)]
    if state.strategy != "plain decoding":
        figures.append(Text(f" {state.strategy}", _DIM))
    drawn = charts(state, columns, rows - _FRAME_ROWS, style) if has_bars(rows) else []
    return [_cut(row, columns) for row in (*drawn, *figures)][:rows]


def charts(state: State, columns: int, n_bar_rows: int, style: Style) -> list[Text]:
    """Rounds and positions side by side under their captions, and the legend: three rows more than the bars have."""
    n_positions = 0
    if columns >= _MIN_COLUMNS_FOR_POSITIONS:
        n_positions = min(max(columns // 10, _LEAST_POSITIONS), _MOST_POSITIONS)
    right_columns = _GAP + _AXIS_COLUMNS + 2 * n_positions if n_positions else 0
    left = _rounds_chart(state.rounds, columns - right_columns, n_bar_rows, style)
    right = _positions_chart(state.metrics, n_positions, n_bar_rows, style)
    rows = []
    for i, row in enumerate(left):
        if n_positions:
            pad = style.rule if i == 0 else " "
            row.append(pad * (columns - right_columns - row.cell_len), _DIM if i == 0 else "")
            row.append(pad * _GAP, _DIM)
            row.append_text(right[i])
        rows.append(row)
    return [_cut(row, columns) for row in (*rows, _legend(state.metrics, columns, style))]


def as_ansi(rows: Sequence[Text], style: Style) -> list[str]:
    """The rows as a terminal takes them."""
    console = Console(
        file=io.StringIO(), force_terminal=True, color_system="auto" if style.is_coloured else None, width=1000,
        highlight=False, legacy_windows=False,
    )  # fmt: skip
    drawn = []
    for row in rows:
        with console.capture() as capture:
            console.print(row, end="", no_wrap=True, overflow="ignore", crop=False)
        drawn.append(capture.get())
    return drawn


def _rounds_chart(rounds: Sequence[Round], columns: int, n_rows: int, style: Style) -> list[Text]:
    """Caption, bars with the scale in tokens, letters."""
    shown = list(rounds)[-max(1, (columns - _AXIS_COLUMNS) // 2) :]
    most = max([_MIN_SCALE, *(len(round.draft.tokens) for round in shown)])
    bars = [
        Bar(round.n_accepted / most, len(round.draft.tokens) / most, _colour(round.draft.source)) for round in shown
    ]
    rows = [_caption(f" drafts of the last {len(shown)} rounds ", columns, style)]
    rows += _chart(bars, str(most), n_rows, style)
    letters = Text(" " * _AXIS_COLUMNS)
    for round in shown:
        source = round.draft.source
        letter = _letter(source) if round.draft.tokens else style.plain
        letters.append(f"{letter} ", _colour(source) if round.draft.tokens else _DIM)
    return [*rows, letters]


def _positions_chart(metrics: Metrics, n_positions: int, n_rows: int, style: Style) -> list[Text]:
    """Caption, bars with the scale in percent, the position's numbers from 1."""
    shares = metrics.acceptance_by_position[:n_positions]
    bars = [Bar(share, 1.0, "default") for share in shares]
    numbers = Text(" " * _AXIS_COLUMNS, _DIM)
    for i in range(1, n_positions + 1):
        numbers.append(f"{i if i == 1 or i % 4 == 0 else '':<2}", _DIM)
    caption = _caption(" accepted at position ", _AXIS_COLUMNS + 2 * n_positions, style)
    return [caption, *_chart(bars, "100%", n_rows, style), numbers]


def _chart(bars: Sequence[Bar], scale: str, n_rows: int, style: Style) -> list[Text]:
    """The bars behind an axis, the highest row first."""
    n_steps = len(style.blocks) - 1
    levels = [_levels(bar, n_rows * n_steps) for bar in bars]
    rows = []
    for i in reversed(range(n_rows)):
        row = Text().append(f"{scale if i == n_rows - 1 else '':>{_AXIS_COLUMNS - 1}}{style.axis}", _DIM)
        for bar, (accepted, drafted) in zip(bars, levels, strict=True):
            inside = [min(max(level - i * n_steps, 0), n_steps) for level in (accepted, drafted)]
            row.append(*_cell(inside[0], inside[1], bar.colour, style))
            row.append(" ")
        rows.append(row)
    return rows


def _levels(bar: Bar, height: int) -> tuple[int, int]:
    """Accepted and drafted in steps of the height. Whatever there is of either kind is at least one step."""
    n_accepted = max(round(bar.accepted * height), 1) if bar.accepted else 0
    if bar.drafted <= bar.accepted:
        return n_accepted, n_accepted
    n_accepted = min(n_accepted, height - 1)
    return n_accepted, min(max(round(bar.drafted * height), n_accepted + 1), height)


def _cell(accepted: int, drafted: int, colour: str, style: Style) -> tuple[str, str]:
    """One character and its style, for what lies inside it."""
    blocks = style.blocks
    if accepted:
        is_mixed = drafted > accepted
        return blocks[accepted], f"{colour} on {_REJECTED_COLOUR}" if is_mixed else colour
    if drafted and style.is_coloured and style.is_unicode:
        return blocks[drafted], _REJECTED_COLOUR
    return (style.rejected, _REJECTED_COLOUR) if drafted else (" ", "")


def _legend(metrics: Metrics, columns: int, style: Style) -> Text:
    """What is solid and what is not, and whose letter and colour is whose, with everyone's share of the rounds."""
    rejected = style.blocks[-1] if style.is_coloured and style.is_unicode else style.rejected
    row = Text(" ").append(style.blocks[-1]).append(" accepted ", _DIM)
    row.append(rejected, _REJECTED_COLOUR).append(" rejected", _DIM)
    shares = {source: f"{n / metrics.n_rounds:.0%}" for source, n in metrics.rounds_by_source.items()}
    plain = shares.pop("none", None)
    parts = [(f"  {_letter(source)} {source} {share}", _colour(source)) for source, share in shares.items()]
    parts += [(f"  {style.plain} plain {plain}", _DIM)] if plain else []
    for text, look in [*parts, (" of the rounds", _DIM)]:
        if row.cell_len + cell_len(text) <= columns:
            row.append(text, look)
    return row


def _figures(state: State, columns: int, style: Style) -> Text:
    """The figures on one line, the least important ones left out where they do not fit."""
    parts = list(_figure_parts(state))
    while len(parts) > 1 and cell_len(style.separator.join(parts)) + 1 > columns:
        parts.pop()
    row = Text(" ")
    for i, part in enumerate(parts):
        if i:
            row.append(style.separator, _DIM)
        row.append(part, "bold" if " now" in part else "")
    return row


def _figure_parts(state: State) -> Iterator[str]:
    metrics = state.metrics
    yield f"{metrics.n_committed} tokens"
    if (now := recent_tok_per_s(state.rounds)) is not None:
        yield f"{shown_speed(now)} tok/s now"
    if (speed := metrics.decode_tok_per_s) is not None:
        yield f"{shown_speed(speed)} overall{against_plain(speed, metrics)}"
    if metrics.tokens_per_forward is not None:
        yield f"{metrics.tokens_per_forward:.2f} tok/forward"
    if metrics.acceptance_rate is not None:
        yield f"{metrics.acceptance_rate:.0%} accepted"


def _caption(text: str, columns: int, style: Style) -> Text:
    row = Text().append(style.rule * 2, _DIM).append(text)
    return row.append(style.rule * max(0, columns - row.cell_len), _DIM)


def _letter(source: str) -> str:
    return source[:1]


def _colour(source: str) -> str:
    return _COLOURS.get(source, _OTHER_COLOUR)


def _cut(row: Text, columns: int) -> Text:
    row.truncate(columns)
    return row
