"""Reads the document that `bench --json` prints as what it is: a stranger's. What is missing or no number is left out."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

ALL = "all"  # the category of the rows over every category
MAX_LENGTH = 10_000  # tokens of a draft; more is nonsense


def number(value: object) -> float | None:
    """The value where it is a finite number."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        known = float(value)
    except OverflowError:
        return None
    return known if math.isfinite(known) and abs(known) < 1e12 else None


def listed(value: object) -> list[Any]:
    return list(value) if isinstance(value, list | tuple) else []


def rows_of(document: Mapping[str, object]) -> list[Mapping[str, Any]]:
    """The rows that name a category and an arm, categories together, in the order of their first row."""
    result = document.get("result")
    rows = listed(result.get("rows")) if isinstance(result, Mapping) else []
    whole = [row for row in rows if isinstance(row, Mapping) and {"category", "arm"} <= row.keys()]
    categories = list(dict.fromkeys(str(row["category"]) for row in whole))
    return sorted(whole, key=lambda row: categories.index(str(row["category"])))


def table_of(value: object) -> dict[int, float]:
    """Numbers by whole number, from a mapping or from a list (by index)."""
    items = value.items() if isinstance(value, Mapping) else enumerate(listed(value))
    table = {}
    for key, item in items:
        known, text = number(item), str(key)
        if known is not None and known >= 0 and re.fullmatch(r"[0-9]{1,6}", text):
            table[int(text)] = known
    return dict(sorted(table.items()))


def totals_of(rows: Sequence[Mapping[str, Any]], arm: str) -> list[Mapping[str, Any]]:
    """The rows to sum up for an arm: the one over all categories where there is one, else those of every category."""
    ours = [row for row in rows if str(row["arm"]) == arm]
    return [row for row in ours if row["category"] == ALL] or ours


def total_of(rows: Sequence[Mapping[str, Any]], arm: str, key: str) -> dict[int, float]:
    """The tables of an arm over all categories, summed."""
    total: dict[int, float] = {}
    for row in totals_of(rows, arm):
        for place, value in table_of(row.get(key)).items():
            total[place] = total.get(place, 0.0) + value
    return total


def cost_of(document: Mapping[str, object]) -> dict[int, float]:
    """V: seconds by width."""
    result = document.get("result")
    table = result.get("verify_s_by_width") or result.get("cost") if isinstance(result, Mapping) else None
    return {width: seconds for width, seconds in table_of(table).items() if width >= 1 and seconds > 0}


def run_of(document: Mapping[str, object], rows: Sequence[Mapping[str, Any]], arm: str) -> list[int]:
    """The tokens drafted in each round of one run of that arm; empty where there is none."""
    result = document.get("result")
    runs = result.get("k_over_time") if isinstance(result, Mapping) else None
    one = runs.get(arm) if isinstance(runs, Mapping) else None
    known = [_lengths(one.get("lengths") if isinstance(one, Mapping) else one)]
    known += [_lengths(row.get("drafted_lengths")) for row in rows if str(row["arm"]) == arm]
    return max(known, key=len)


def _lengths(value: object) -> list[int]:
    known = [number(length) for length in listed(value)]
    return [int(length) for length in known if length is not None and 0 <= length < MAX_LENGTH]


def chosen_widths(rows: Sequence[Mapping[str, Any]], arm: str) -> dict[int, float]:
    """How often each width was drafted, from the histogram (or the list) of draft lengths."""
    counts: dict[int, float] = {}
    for row in totals_of(rows, arm):
        value = row.get("drafted_lengths")
        table = table_of(value) if isinstance(value, Mapping) else Counter(_lengths(value))
        for length, n in table.items():
            if n > 0 and length < MAX_LENGTH:
                counts[length + 1] = counts.get(length + 1, 0.0) + n
    return counts
