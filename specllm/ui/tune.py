"""How a tuned machine looks in 80 columns: V(width) as bars, what drafts need and bring, and the best setting."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table
from rich.text import Text

from specllm.decoding.calibrate import NOISY
from specllm.decoding.controller import HOPE
from specllm.ui.console import harmless, has_colour, is_terminal, write_note
from specllm.ui.status import StatusLine

if TYPE_CHECKING:
    from specllm.app.calibration import Kept
    from specllm.app.tune.tuning import Category, Promise, Replay
    from specllm.app.tune.use_case import Tuning

COLUMNS = 80
BAR_CELLS = 40
_EIGHTHS = " ▏▎▍▌▋▊▉█"


class TuneProgress:
    """Stages as lines on stderr; steps on the status line, where there is a terminal for it."""

    def __init__(self) -> None:
        self._status = StatusLine()
        self._has_status = is_terminal(sys.stderr)

    def __enter__(self) -> TuneProgress:
        self._status.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        self._status.__exit__(None, None, None)

    def stage(self, text: str) -> None:
        if self._has_status:
            self._status.show(harmless(text), is_urgent=True)
        else:
            write_note(text)

    def step(self, text: str) -> None:
        self._status.show(harmless(text))


def print_tuning(result: Tuning) -> None:
    """stdout has everything that was measured and what follows from it."""
    console = _console()
    plan = result.plan
    names = [plan.target.name] + ([plan.draft_model.name] if plan.draft_model else [])
    console.print(Text(harmless(" + ".join(names)), style="bold"))
    _print_bars(console, result)
    _print_rollback(console, result)
    _print_draft_cost(console, result)
    console.print()
    _print_promises(console, result.promises, has_model=result.draft_cost is not None)
    if result.categories:
        console.print()
        _print_categories(console, result.categories, has_model=result.draft_cost is not None)
    if result.left_out:
        console.print(f"not tried, for want of time or context: {harmless(', '.join(result.left_out))}", style="dim")
    console.print()
    _print_advice(console, result)


def tell_kept(calibrations: Sequence[Kept]) -> None:
    """stderr says where an earlier calibration was replaced or stays, and why."""
    for one in calibrations:
        if one.earlier_spread is None:
            continue
        new = "were not repeated" if one.spread is None else f"differ by {one.spread:.0%}"
        earlier = f"those of the earlier calibration by {one.earlier_spread:.0%}"
        end = "these are kept" if one.is_new else "the earlier one is kept (--recalibrate replaces it)"
        write_note(f"{one.file}: readings {new}, {earlier}: {end}")


def bar(share: float, cells: int, *, is_ascii: bool) -> str:
    """A bar of that share of `cells`; at least something, so that no row looks empty."""
    if is_ascii:
        return "#" * max(1, round(share * cells))
    eighths = max(1, round(share * cells * 8))
    return "█" * (eighths // 8) + (_EIGHTHS[eighths % 8] if eighths % 8 else "")


def milliseconds(seconds: float) -> str:
    """Three digits, as far as they mean something."""
    value = seconds * 1e3
    return f"{value:,.0f} ms" if value >= 100 else f"{value:.1f} ms" if value >= 1 else f"{value:.3f} ms"


def _console() -> Console:
    columns = None if is_terminal(sys.stdout) else COLUMNS
    return Console(width=columns, highlight=False, markup=False, emoji=False, no_color=not has_colour(sys.stdout))


def _is_ascii(console: Console) -> bool:
    return not console.encoding.lower().startswith("utf")


def _table(*titles: str) -> Table:
    """The first column is text, the others are numbers."""
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim", pad_edge=False)
    for i, title in enumerate(titles):
        table.add_column(title, justify="right" if i else "left", no_wrap=True)
    return table


def _print_bars(console: Console, result: Tuning) -> None:
    points, good = result.points, set(result.good_steps)
    plain, most = points[1], max(points.values())
    n_readings = max(map(len, result.readings.values()))
    console.print(f"a forward by its width, {result.depth} tokens deep, best of {n_readings} readings")
    console.print("  width  seconds      tokens per V(1)   * a good step", style="dim")
    for width, seconds in points.items():
        is_good = width in good
        mark = "*" if is_good else " "
        figures = f"{mark} {width:>5}  {milliseconds(seconds):>11}  {width * plain / seconds:>5.2f}  "
        shown = bar(seconds / most, BAR_CELLS, is_ascii=_is_ascii(console))
        console.print(Text.assemble((figures, "bold" if is_good else ""), (shown, "green" if is_good else "dim")))
    if result.spread is not None and result.spread > NOISY:
        warning = f"readings differ by {result.spread:.0%}: something else is running; tune again when it is quiet"
        console.print(warning, style="yellow")
    elif result.deep_factor is not None:  # two measurements apart in time tell nothing where something else runs
        console.print(
            f"{result.deep_depth:,} tokens deep a forward takes {result.deep_factor:.2f} times as long", style="dim"
        )


def _print_rollback(console: Console, result: Tuning) -> None:
    trial, kind = result.rollback, result.rollback_kind
    if trial is None:
        return
    if not trial.is_exact:
        console.print(f"rollback by {kind} leaves traces of what was rejected: use --drafter none", style="yellow")
        return
    included = "" if kind == "trim" else ", part of every width above"
    console.print(f"rollback by {kind}: a rejection costs {milliseconds(trial.rejection_s)}{included}", style="dim")


def _print_draft_cost(console: Console, result: Tuning) -> None:
    cost = result.draft_cost
    if cost is None:
        return
    share = cost.token_s / result.points[1]
    console.print(
        f"a drafted token costs {milliseconds(cost.token_s)}, {share:.2f} of a forward "
        f"(catching up: {milliseconds(cost.prefill_token_s)})"
    )


def _print_promises(console: Console, promises: Sequence[Promise], *, has_model: bool) -> None:
    if not promises:
        console.print("no wider block is cheaper per token than width 1: drafting cannot pay on this machine")
        return
    console.print("drafting k tokens: pays from this acceptance on; speed-up at 0.5 / 0.7 / 0.9")
    titles = ["k", "lookup from", "speed-up", *(["draft model from", "speed-up"] if has_model else [])]
    table = _table(*titles)
    for row in promises:
        cells = [_threshold(row.free_break_even), _speedups(row.free_speedups)]
        if has_model:
            cells += [_threshold(row.model_break_even), _speedups(row.model_speedups)]
        table.add_row(str(row.length), *cells)
    console.print(table)


def _threshold(acceptance: float | None) -> str:
    return "never" if acceptance is None else f"{acceptance:.2f}"


def _speedups(values: Sequence[float]) -> str:
    return " / ".join(f"{value:.2f}" for value in values)


def _print_categories(console: Console, categories: Sequence[Category], *, has_model: bool) -> None:
    n_tokens = max(kind.n_tokens for kind in categories)
    console.print(f"expected speed-up, from an answer of each kind (up to {n_tokens} tokens)")
    table = _table("kind of text", "lookup hits", "speed-up", *(["draft model hits", "speed-up"] if has_model else []))
    for kind in categories:
        cells = [cell for name in ("lookup", "model")[: 1 + has_model] for cell in _cells(kind.best(name))]
        table.add_row(Text(harmless(kind.name)), *cells)
    console.print(table)


def _cells(best: Replay | None) -> tuple[str, Text]:
    if best is None:
        return "", Text("")
    hits = "nothing tried" if best.acceptance is None else f"{best.acceptance:.2f}"
    style = "green" if best.speedup >= 1.01 else "red" if best.speedup < 0.99 else ""
    return hits, Text(f"{best.speedup:.2f} at k={best.length}", style=style)


def _print_advice(console: Console, result: Tuning) -> None:
    best = result.best
    if result.is_interrupted:
        console.print("interrupted: what was measured until then is kept; run it again for the rest", style="yellow")
    console.print(
        Text.assemble("best setting: ", ("--drafter auto", "bold"), " (the default; uses these figures from now on)")
    )
    if result.can_model_pay is False:
        console.print(f"the draft model would not pay even with {HOPE:.0%} accepted: auto leaves it out")
        console.print("a faster one can be made of it: specllm models make-draft NAME", style="dim")
    if not result.categories:
        return
    if best.length:
        console.print(
            f"best fixed one: --drafter {best.drafter} -k {best.length} ({best.speedup:.2f} over these kinds)"
        )
    else:
        console.print("no fixed setting beats plain decoding over these kinds")
    if result.applied:
        console.print(Text(harmless(f"written to {result.applied}")), soft_wrap=True)
    elif result.snippet:
        console.print("for your models.toml (or run it again with --apply):")
        console.print(Text(harmless(result.snippet.rstrip())), style="dim", soft_wrap=True)
