"""The charts of a report, drawn by matplotlib as SVG that takes its text colours from the page around it.

Every chart has the same colour for the same arm. A chart whose figures are not in the document is not drawn.
"""

from __future__ import annotations

import io
import re
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

from specllm.errors import ConfigError
from specllm.ui.document import ALL, chosen_widths, cost_of, number, rows_of, run_of, table_of, total_of, totals_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Okabe and Ito 2008, told apart with any colour vision; without their black and yellow, which vanish on a dark or light page.
LIGHT = ("#0072B2", "#D48A00", "#009E73", "#BE5C93", "#D55E00", "#3A9AD0")
DARK = (
    "#58A9E6",
    "#F0B03A",
    "#2FC498",
    "#E29AC5",
    "#F5824A",
    "#86CBF3",
)  # the same hues, as bright as a dark page needs
COLOURS = tuple(f"#0a0b{place:02x}" for place in range(len(LIGHT)))  # stand-ins as below
PLAIN_COLOUR = "#8a8f98"
PLAIN_ARMS = ("plain", "none")
TEXT, SOFT, GRID = "#010203", "#040506", "#070809"  # stand-ins that become the page's colours
_PAGE_COLOURS = {TEXT: "var(--text)", SOFT: "var(--soft)", GRID: "var(--line)"}
_PAGE_COLOURS |= {colour: f"var(--arm-{place})" for place, colour in enumerate(COLOURS)}
WIDE, NARROW = (10.2, 3.6), (5.4, 3.4)  # inches
MAX_ROUNDS_SHOWN = 600  # of one run
_MAX_LABEL = 28


class Chart(NamedTuple):
    heading: str
    note: str
    svg: str

    @property
    def is_wide(self) -> bool:
        return self.heading in (SPEEDUP, COST, SPLIT, DRAFTED)


SPEEDUP = "Speed-up by category"
COST = "What a forward costs"
SPLIT = "Where the time goes"
DRAFTED = "Draft length over time"


class Arms:
    """The arms in their order, each with its colour."""

    def __init__(self, names: Sequence[str]) -> None:
        self.names = list(dict.fromkeys(names))
        drafting = [name for name in self.names if name not in PLAIN_ARMS]
        self._colours = {name: COLOURS[i % len(COLOURS)] for i, name in enumerate(drafting)}

    def colour(self, name: str) -> str:
        """What a drawing takes; `page_colour` comes of it."""
        return self._colours.get(name, PLAIN_COLOUR)

    def page_colour(self, name: str) -> str:
        return _PAGE_COLOURS.get(self.colour(name), PLAIN_COLOUR)

    @property
    def drafting(self) -> list[str]:
        return [name for name in self.names if name not in PLAIN_ARMS]


def charts(document: Mapping[str, object], arms: Arms) -> list[Chart]:
    """Every chart that the document has figures for."""
    try:
        import matplotlib
    except ImportError:
        raise ConfigError("the report draws its charts with matplotlib, which is not installed",
                          "pip install 'matplotlib>=3.8'") from None  # fmt: skip
    matplotlib.use("svg", force=False)
    rows = rows_of(document)
    style: Any = {
        "svg.fonttype": "none", "svg.hashsalt": "specllm", "font.family": "sans-serif", "font.size": 10,
        "text.color": TEXT, "axes.labelcolor": SOFT, "xtick.color": SOFT, "ytick.color": SOFT, "axes.edgecolor": GRID,
        "axes.spines.top": False, "axes.spines.right": False, "grid.color": GRID, "legend.frameon": False, "axes.axisbelow": True,
        "text.parse_math": False,
    }  # fmt: skip
    with matplotlib.rc_context(style), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # characters its font lacks: the browser's fonts draw the text
        drawn = [
            _speedup(rows, arms), _cost(cost_of(document), rows, arms), _split(rows, arms),
            _drafted({arm: run_of(document, rows, arm)[:MAX_ROUNDS_SHOWN] for arm in arms.drafting}, arms),
            _positions(rows, arms), _lengths(rows, arms),
        ]  # fmt: skip
    return [chart for chart in drawn if chart is not None]


def _figure(size: tuple[float, float]) -> Figure:
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure

    figure = Figure(figsize=size, layout="constrained")
    FigureCanvasSVG(figure)
    return figure


@contextmanager
def _axes(size: tuple[float, float]) -> Iterator[tuple[Figure, Axes]]:
    figure = _figure(size)
    axes = figure.add_subplot()
    yield figure, axes


def _svg(figure: Figure, label: str) -> str:
    """The drawing as an element of the page; ids are made unique by `label`, which must be a plain word."""
    out = io.StringIO()
    figure.savefig(out, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    svg = out.getvalue()
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    svg = re.sub(r'\b(id="|href="#|url\(#)', rf"\g<1>{label}-", svg)
    for stand_in, colour in _PAGE_COLOURS.items():
        svg = svg.replace(stand_in, colour)
    return svg.replace("<svg", f'<svg role="img" aria-label="{label}" ', 1)


def _short(name: str) -> str:
    """A label that leaves room for the drawing; characters that XML has no place for are dropped."""
    clean = "".join(character if character.isprintable() else "?" for character in name)
    return clean if len(clean) <= _MAX_LABEL else f"{clean[: _MAX_LABEL - 1]}…"


def _legend(axes: Axes, **options: Any) -> None:
    handles, labels = axes.get_legend_handles_labels()
    if len(labels) > 1:
        axes.legend(handles, labels, **options)


def _speedup(rows: Sequence[Mapping[str, Any]], arms: Arms) -> Chart | None:
    """Points with intervals, not bars: the distance from 1 is what counts, not the length from 0."""
    known = [row for row in rows if str(row["arm"]) in arms.drafting and (number(row.get("speedup")) or 0) > 0]
    if not known:
        return None
    categories = list(dict.fromkeys(str(row["category"]) for row in known))
    names = [name for name in arms.drafting if any(str(row["arm"]) == name for row in known)]
    with _axes((WIDE[0], max(2.4, 0.9 + len(categories) * (0.24 + 0.17 * len(names))))) as (figure, axes):
        for i, name in enumerate(names):
            offset = (i - (len(names) - 1) / 2) * 0.7 / max(len(names), 1)
            ours = [row for row in known if str(row["arm"]) == name]
            values = [number(row["speedup"]) or 0.0 for row in ours]
            lows = [value - _bound(row, "speedup_low", value, min) for row, value in zip(ours, values, strict=True)]
            highs = [_bound(row, "speedup_high", value, max) - value for row, value in zip(ours, values, strict=True)]
            places = [categories.index(str(row["category"])) + offset for row in ours]
            axes.errorbar(values, places, xerr=[lows, highs], fmt="o", ms=6, capsize=3, color=arms.colour(name),
                          label=_short(name))  # fmt: skip
        axes.axvline(1.0, color=SOFT, lw=1.2, ls="--", zorder=0)
        axes.set_yticks(range(len(categories)), [_short(name) for name in categories])
        axes.tick_params(axis="y", length=0, labelcolor=TEXT)
        for i in range(1, len(categories)):
            axes.axhline(i - 0.5, color=SOFT if categories[i] == ALL else GRID, lw=0.8, zorder=0)
        axes.set_ylim(len(categories) - 0.5, -0.5)
        axes.set_xlabel("times plain decoding")
        axes.grid(axis="x", lw=0.8)
        _legend(axes, loc="center left", bbox_to_anchor=(1.01, 0.5))
        note = "Decode speed over plain decoding, pair by pair, with 95 % intervals. Left of the dashed line is slower."
        return Chart(SPEEDUP, note, _svg(figure, "speedup"))


def _bound(row: Mapping[str, Any], key: str, value: float, side: Callable[[float, float], float]) -> float:
    known = number(row.get(key))
    return value if known is None else side(known, value)


def _cost(points: Mapping[int, float], rows: Sequence[Mapping[str, Any]], arms: Arms) -> Chart | None:
    """The curve, and below it a line of dots for each arm that shows which widths it drafted."""
    if len(points) < 2:
        return None
    widths, values = list(points), [seconds * 1e3 for seconds in points.values()]
    chosen = {arm: chosen_widths(rows, arm) for arm in arms.drafting}
    chosen = {arm: counts for arm, counts in chosen.items() if counts}
    figure = _figure((WIDE[0], 3.2 + 0.35 * len(chosen)))
    panels = figure.subplots(2 if chosen else 1, 1, sharex=True, squeeze=False,
                             height_ratios=[2.8, 0.35 * len(chosen)] if chosen else None)[:, 0]  # fmt: skip
    curve, last = panels[0], panels[-1]
    curve.plot(widths, values, color=TEXT, lw=1.5, marker=".", ms=7)
    curve.set_xscale("log", base=2)
    curve.set_yscale("log")
    steps = [m * 10.0**e for e in range(-4, 10) for m in (1, 2, 5)]
    ticks = [step for step in steps if min(values) * 0.7 <= step <= max(values) * 1.4]
    curve.set_yticks(ticks, [f"{tick:,g}" for tick in ticks])
    curve.set_ylabel("milliseconds")
    curve.grid(lw=0.8)
    curve.minorticks_off()
    for place, (arm, counts) in enumerate(chosen.items()):
        most = max(counts.values())
        sizes = [12 + 160 * n / most for n in counts.values()]
        last.scatter(list(counts), [place] * len(counts), s=sizes, color=arms.colour(arm), lw=0)
    if chosen:
        last.set_yticks(range(len(chosen)), [_short(arm) for arm in chosen])
        last.set_ylim(len(chosen) - 0.4, -0.6)
        last.tick_params(axis="y", length=0, labelcolor=TEXT)
        last.grid(axis="x", lw=0.8)
    shown = [
        2**e for e in range(20) if widths[0] <= 2**e <= max(widths[-1], *(w for one in chosen.values() for w in one), 1)
    ]
    last.set_xticks(shown, [str(width) for width in shown])
    last.minorticks_off()
    last.set_xlabel("width: tokens in one forward")
    note = "Time of one target forward by its width, both axes logarithmic."
    more = " Below, the widths at which each arm drafted: larger is more often." if chosen else ""
    return Chart(COST, note + more, _svg(figure, "cost"))


def _positions(rows: Sequence[Mapping[str, Any]], arms: Arms) -> Chart | None:
    """Over all categories; the mean of their rates where the document has no row for all of them."""
    from matplotlib.ticker import MaxNLocator

    with _axes(NARROW) as (figure, axes):
        for arm in arms.drafting:
            tables = [table_of(row.get("acceptance_by_position")) for row in totals_of(rows, arm)]
            places = sorted({place for table in tables for place in table})[:64]
            means = [_mean([table[place] for table in tables if place in table]) for place in places]
            if places:
                axes.plot(
                    [place + 1 for place in places],
                    means,
                    color=arms.colour(arm),
                    lw=1.8,
                    marker=".",
                    label=_short(arm),
                )
        if not axes.lines:
            return None
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.set_ylim(0, 1.03)
        axes.set_xlabel("position in the draft")
        axes.set_ylabel("accepted, where reached")
        axes.grid(lw=0.8)
        _legend(axes, loc="lower right")
        note = "The chance that a drafted token is kept, given that those before it were."
        return Chart("Acceptance by position", note, _svg(figure, "positions"))


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def _drafted(runs: Mapping[str, Sequence[int]], arms: Arms) -> Chart | None:
    """A panel for each arm: their steps would hide each other."""
    runs = {arm: run for arm, run in runs.items() if any(run)}
    if not runs:
        return None
    figure = _figure((WIDE[0], 0.9 + 1.0 * len(runs)))
    panels = figure.subplots(len(runs), 1, sharex=True, squeeze=False)[:, 0]
    for axes, (arm, run) in zip(panels, runs.items(), strict=True):
        axes.fill_between(range(1, len(run) + 1), run, step="mid", color=arms.colour(arm), alpha=0.35, lw=0)
        axes.step(range(1, len(run) + 1), run, where="mid", color=arms.colour(arm), lw=1.3)
        axes.set_ylim(bottom=0)
        axes.grid(axis="y", lw=0.8)
        axes.set_ylabel(_short(arm), rotation=0, ha="right", va="center", color=TEXT)
    panels[-1].set_xlabel("round")
    note = "Tokens drafted in each round of one answer; 0 is plain decoding."
    return Chart(DRAFTED, note, _svg(figure, "drafted"))


def _lengths(rows: Sequence[Mapping[str, Any]], arms: Arms) -> Chart | None:
    """Shares of each arm's rounds, side by side; long accepted drafts in classes."""
    classes: tuple[tuple[int, int], ...] = ((0, 0), (1, 1), (2, 2), (3, 3), (4, 7), (8, 15), (16, 31), (32, 999_999))
    totals = {
        arm: total for arm in arms.drafting if sum((total := total_of(rows, arm, "accepted_lengths")).values()) > 0
    }
    if not totals:
        return None
    longest = max(max(total) for total in totals.values())
    classes = classes[: sum(low <= max(longest, 3) for low, _ in classes)]
    with _axes(NARROW) as (figure, axes):
        bar = 0.8 / len(totals)
        for i, (arm, total) in enumerate(totals.items()):
            n = sum(total.values())
            shares = [100 * sum(v for k, v in total.items() if low <= k <= high) / n for low, high in classes]
            axes.bar([place + (i - (len(totals) - 1) / 2) * bar for place in range(len(classes))], shares, bar,
                     color=arms.colour(arm), label=_short(arm))  # fmt: skip
        labels = [str(low) if low == high else f"{low}+" if high > 1000 else f"{low}-{high}" for low, high in classes]
        axes.set_xticks(range(len(classes)), labels)
        axes.set_xlabel("tokens accepted in a round")
        axes.set_ylabel("% of rounds")
        axes.grid(axis="y", lw=0.8)
        _legend(axes, loc="upper right")
        return Chart(
            "Accepted lengths", "How many drafted tokens a round kept, over all categories.", _svg(figure, "lengths")
        )


def _split(rows: Sequence[Mapping[str, Any]], arms: Arms) -> Chart | None:
    parts = (("verify_s", "target forwards", 1.0), ("draft_s", "drafting", 0.6), ("rest_s", "sampling and rest", 0.3))
    totals = {
        arm: [sum(number(row.get(key)) or 0.0 for row in totals_of(rows, arm)) for key, _, _ in parts]
        for arm in arms.names
    }
    totals = {arm: seconds for arm, seconds in totals.items() if sum(seconds) > 0 and min(seconds) >= 0}
    if not totals:
        return None
    with _axes((WIDE[0], 1.2 + 0.4 * len(totals))) as (figure, axes):
        for place, (arm, seconds) in enumerate(totals.items()):
            left = 0.0
            for value, (_, _, alpha) in zip(seconds, parts, strict=True):
                share = 100 * value / sum(seconds)
                axes.barh(place, share, left=left, height=0.62, color=arms.colour(arm), alpha=alpha)
                left += share
            shares = " / ".join(f"{100 * value / sum(seconds):.0f}" for value in seconds)
            axes.text(101, place, f"{shares} %", ha="left", va="center", color=TEXT)
        axes.set_yticks(range(len(totals)), [_short(arm) for arm in totals])
        axes.tick_params(axis="y", length=0, labelcolor=TEXT)
        axes.invert_yaxis()
        axes.set_xlim(0, 100)
        axes.set_xlabel("% of decode time")
        note = "Decode time of each arm; from strong to pale: " + ", ".join(name for _, name, _ in parts) + "."
        return Chart(SPLIT, note, _svg(figure, "split"))
