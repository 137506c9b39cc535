"""The panel of the live view, drawn without a terminal."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.cells import cell_len

from specllm.decoding.metrics import Metrics
from specllm.decoding.protocols import Draft, Round
from specllm.ui.panel import State, Style, as_ansi, has_bars, panel, panel_height

MONO = Style(is_coloured=False)
ASCII = Style(is_unicode=False, is_coloured=False)
STYLES = [Style(), MONO, ASCII]
SOURCES = ("lookup", "model", "reference", "grammar", "a_drafter_of_a_name_that_is_long")


PLAIN_S = 0.1  # per token of plain decoding


def round_of(n_draft: int, n_accepted: int, source: str = "lookup", seconds: float = 0.1) -> Round:
    draft = Draft(tuple(range(n_draft)), source if n_draft else "none")
    return Round((*draft.tokens[:n_accepted], 999), draft, 0.0, seconds, 0.0, plain_s=PLAIN_S * (n_accepted + 1))


def state_of(rounds: list[Round], *, strategy: str = "auto: lookup 3-8, model 2") -> State:
    metrics = Metrics(n_prompt=10, prefill_s=0.5)
    for round in rounds:
        metrics.add(round)
    return State(metrics, rounds, strategy)


drafts = st.integers(0, 127).flatmap(lambda n: st.tuples(st.just(n), st.integers(0, n)))
many_rounds = st.lists(
    st.builds(lambda n, source: round_of(*n, source), drafts, st.sampled_from(SOURCES)), min_size=1, max_size=60
)


def test_a_panel_says_what_happened() -> None:
    rounds = [round_of(4, 4), round_of(0, 0), round_of(4, 1, "model"), round_of(2, 0), round_of(3, 3, "reference", 0.8)]
    rows = panel(state_of(rounds), 70, 8, MONO)
    assert [row.plain.rstrip() for row in rows] == [
        "── drafts of the last 5 rounds ──────────────── accepted at position ─",
        "   4│█   ░                                   100%│░ ░ █ █",
        "    │█   ░ ░ █                                   │█ █ █ █",
        "    │█   █ ░ █                                   │█ █ █ █",
        "     l · m l r                                    1     4       8",
        " █ accepted ░ rejected  l lookup 40%  m model 20%  r reference 20%",
        " 13 tokens · 7.0 tok/s now · 7.3 overall, 0.73 x plain",
        " auto: lookup 3-8, model 2",
    ]


def test_without_unicode_it_says_the_same() -> None:
    rows = panel(state_of([round_of(4, 1), round_of(0, 0)]), 60, 7, ASCII)
    assert [row.plain.rstrip() for row in rows] == [
        "-- drafts of the last 2 rounds ------ accepted at position -",
        "   4|:                             100%|# :",
        "    |#                                 |# :",
        "     l .                                1     4       8",
        " # accepted : rejected  l lookup 50%  . plain 50%",
        " 3 tokens | 15.0 tok/s now | 10.0 overall, 1.00 x plain",
        " auto: lookup 3-8, model 2",
    ]


def test_plain_decoding_has_no_word_about_drafts_or_a_speed_nobody_measured() -> None:
    rounds = [replace(round_of(0, 0), plain_s=None)] * 3
    rows = panel(state_of(rounds, strategy="plain decoding"), 80, 2, MONO)
    assert [row.plain for row in rows] == [" 3 tokens · 10.0 tok/s now · 10.0 overall · 1.00 tok/forward"]


@settings(deadline=None)
@given(many_rounds, st.integers(20, 250), st.integers(4, 80), st.sampled_from(STYLES))
def test_a_panel_fits_its_place(rounds: list[Round], columns: int, window_rows: int, style: Style) -> None:
    height = panel_height(window_rows)
    rows = panel(state_of(rounds), columns, height, style)
    assert 1 <= len(rows) <= height <= max(1, window_rows // 3)
    assert all(cell_len(row.plain) <= columns and "\n" not in row.plain for row in rows)
    if has_bars(height):
        assert len(rows) == height
    if style is ASCII:
        assert all(line.isascii() for line in as_ansi(rows, style))


@settings(deadline=None)
@given(drafts, st.integers(7, 12), st.sampled_from([MONO, ASCII]))
def test_every_bar_shows_whether_anything_was_accepted_and_rejected(
    draft: tuple[int, int], height: int, style: Style
) -> None:
    """However long the longest draft is, nothing rounds away."""
    n_drafted, n_accepted = draft
    rows = panel(state_of([round_of(127, 0), round_of(n_drafted, n_accepted)]), 40, height, style)
    bar = "".join(row.plain[7] for row in rows[1 : height - 4])
    assert (style.blocks[-1] in bar) == (n_accepted > 0)
    assert (style.rejected in bar) == (n_drafted > n_accepted)
    assert bar.lstrip(" ").rstrip(style.blocks[-1]).strip(style.rejected) == ""  # solid below hollow below nothing


@pytest.mark.parametrize(("style", "has_escapes"), [(Style(), True), (MONO, False), (ASCII, False)])
def test_without_colour_there_is_no_escape_sequence(
    style: Style, has_escapes: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")
    rows = as_ansi(panel(state_of([round_of(4, 1)]), 80, 8, style), style)
    assert any("\x1b" in row for row in rows) == has_escapes


def test_a_bar_has_the_colour_of_its_drafter(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")
    drawn = "".join(
        as_ansi(panel(state_of([round_of(4, 4, "lookup"), round_of(4, 4, "model")]), 40, 7, Style()), Style())
    )
    assert "\x1b[36m█" in drawn
    assert "\x1b[32m█" in drawn
