"""Draws a benchmark: progress on stderr, the table and one line that says what it means on stdout."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from types import TracebackType
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from specllm.ui.console import harmless, has_colour, is_terminal, write_note
from specllm.ui.status import StatusLine

Row = Mapping[str, Any]
ALL = "all"
_COLUMNS = ("category", "arm", "tok/s", "speed-up [95 %]", "tok/forward", "accepted")
_N_TEXT = 2  # the first columns are words, the others figures
_N_SHOWN = 5  # warnings, failures and differences in the table; --json has all


class BenchView:
    """What is shown while a benchmark runs, inside `with`."""

    def __init__(self, *, is_quiet: bool = False) -> None:
        self._line = StatusLine(is_wanted=not is_quiet)
        self._is_quiet = is_quiet

    def __enter__(self) -> BenchView:
        self._line.__enter__()
        self.notice("loading the models")
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._line.__exit__(kind, error, tb)

    def notice(self, text: str) -> None:
        """Shows what takes its time in the status line."""
        self._line.show(f" {text}", is_urgent=True)

    def step(self, n_done: int, n_answers: int, what: str) -> None:
        """Shows how far it is."""
        self._line.show(f" {n_done} of {n_answers} answers, {harmless(what)}", is_urgent=n_done == 0)


def print_bench(result: Mapping[str, Any]) -> None:
    """The table on stdout, rich on a terminal and aligned text elsewhere; what went wrong on stderr."""
    rows: Sequence[Row] = result["rows"]
    cells = [_cells(row) for row in rows]
    print(", ".join(result["labels"]))
    _print_table(_COLUMNS, cells, sections=[row["category"] for row in rows])
    print(verdict(result))
    _print_validity(result)
    _print_failures(result["failures"])
    if result["differences"] is not None:
        _print_differences(result["differences"])
    if result["is_interrupted"]:
        write_note("interrupted: only the prompts that were complete are counted")


def verdict(result: Mapping[str, Any]) -> str:
    """What the run says about `auto` (else about its best arm), in one line."""
    overall = [row for row in result["rows"] if row["category"] == ALL and row["arm"] != "none" and row["speedup"]]
    if not overall:
        return "no speed-up to tell: nothing was measured beside plain decoding"
    best = max(overall, key=lambda row: row["speedup"])
    shown = next((row for row in overall if row["arm"] == "auto"), best)
    low, high, n = shown["speedup_low"], shown["speedup_high"], shown["n_prompts"]
    if low is None:
        sureness = "one prompt tells nothing about others"
    elif low > 1:
        sureness = "surely faster"
    elif high < 1:
        sureness = "surely slower"
    else:
        sureness = f"no sure difference with {n} prompts"
    line = f"{shown['arm']}: {_speedup(shown)} x plain decoding, {sureness}"
    other = f"; best arm: {best['arm']}, {best['speedup']:.2f} x" if best is not shown else ""
    labels = [label for label in result["labels"] if label in ("forced output", "learned drafters")]
    suffix = f" ({', '.join(labels)})" if labels else ""
    return f"{line}{other}{suffix}"


def print_simulation(simulation: Mapping[str, Any]) -> None:
    """Speed-up and break-even acceptance by draft length, and the answer in one line."""
    accept, draft_cost = simulation["accept"], simulation["draft_cost"]
    print(f"supposed: {accept:.0%} accepted, a drafted token costs {draft_cost:.2f} forwards")
    cells = [
        (str(one["draft_length"]), f"{one['speedup']:.2f}", _share(one["break_even_acceptance"], none="never"))
        for one in simulation["lengths"]
    ]
    _print_table(("draft length", "speed-up", "pays from"), cells, n_text=0)
    least = simulation["break_even_acceptance"]
    if simulation["best_draft_length"]:
        print(f"best: {simulation['best_draft_length']} tokens, {simulation['best_speedup']:.2f} x plain decoding")
    elif least is not None:
        print(f"plain decoding is faster; a draft of that cost pays from {least:.0%} acceptance on")
    else:
        print("plain decoding is faster, and a draft of that cost can never pay here")


def print_comparison(comparison: Mapping[str, Any]) -> None:
    """What is slower than before, on stdout; what else has changed, on stderr."""
    for one in comparison["slower"]:
        old, new = (_speedup(one[side]) for side in ("old", "new"))
        print(f"slower: {harmless(one['category'])} {one['arm']}: {new}, was {old}")
    if not comparison["slower"]:
        print(f"not slower: {comparison['n_compared']} categories and arms compared")
    _print_some([f"warning: {warning}" for warning in comparison["warnings"]])


def _print_failures(failures: Sequence[Row]) -> None:
    _print_some([f"failed: {one['prompt']} ({one['category']}): {one['message']}" for one in failures])


def _print_validity(result: Mapping[str, Any]) -> None:
    """Of answers with a JSON schema: how many are valid, and what was wrong with the others."""
    overall = [row for row in result["rows"] if row["category"] == ALL and row.get("valid_share") is not None]
    if not overall:
        return
    n_invalid = sum(row["n_invalid"] for row in overall)
    n_judged = n_invalid + sum(row["n_valid"] for row in overall)
    shares = [row["constraint_share"] for row in overall if row["constraint_share"] is not None]
    most = f"; asking the grammar took at most {max(shares):.1%} of an arm's decode time" if shares else ""
    print(f"valid by their schemas: {n_judged - n_invalid} of {n_judged} answers{most}")
    wrong = [one for one in result["samples"] if one.get("problem") is not None]
    _print_some([f"invalid: {one['prompt']} {one['arm']}: {one['problem']}" for one in wrong])


def _print_differences(differences: Sequence[Row]) -> None:
    if not differences:
        print("checked: every answer is plain decoding's")
        return
    lines = []
    for one in sorted(differences, key=lambda one: str(one["kind"])):  # defects first
        gap = "" if one["gap"] is None else f", {one['gap']:.3f} apart, in its blocks {one['gap_in_blocks']:.3f}"
        where = f"{one['prompt']} {one['arm']} token {one['position']}"
        lines.append(f"{one['kind']}: {where}: {one['arm_text']!r} for {one['plain_text']!r}{gap}")
    _print_some(lines)


def _print_some(lines: Sequence[str]) -> None:
    for line in lines[:_N_SHOWN]:
        write_note(line)
    if len(lines) > _N_SHOWN:
        write_note(f"and {len(lines) - _N_SHOWN} more (--json has all)")


def _cells(row: Row) -> tuple[str, ...]:
    accepted = _share(row["acceptance_rate"], none="")
    speed, per_forward = _figure(row["decode_tok_per_s"], ".1f"), _figure(row["tokens_per_forward"], ".2f")
    return (harmless(row["category"]), row["arm"], speed, _speedup(row), per_forward, accepted)


def _speedup(row: Row) -> str:
    """`1.23 [1.10-1.38]`; no interval for plain decoding and for a single prompt."""
    if row["speedup"] is None:
        return "?"
    if row["speedup_low"] is None or row.get("arm") == "none":
        return f"{row['speedup']:.2f}"
    return f"{row['speedup']:.2f} [{row['speedup_low']:.2f}-{row['speedup_high']:.2f}]"


def _figure(value: float | None, form: str) -> str:
    return "?" if value is None else format(value, form)


def _share(value: float | None, *, none: str) -> str:
    return none if value is None else f"{value:.0%}"


def _print_table(
    names: Sequence[str], cells: Sequence[Sequence[str]], *, sections: Sequence[str] = (), n_text: int = _N_TEXT
) -> None:
    """A line between rows of different `sections`."""
    if not is_terminal(sys.stdout):
        _print_plain(names, cells, n_text)
        return
    table = Table(box=box.SIMPLE, pad_edge=False, collapse_padding=True)
    for i, name in enumerate(names):
        table.add_column(name, justify="left" if i < n_text else "right", no_wrap=i > 0, overflow="ellipsis")
    for i, row in enumerate(cells):
        table.add_row(*row, end_section=bool(sections) and sections[i] != (sections[i + 1 : i + 2] or [""])[0])
    Console(highlight=False, markup=False, no_color=not has_colour(sys.stdout)).print(table)


def _print_plain(names: Sequence[str], cells: Iterable[Sequence[str]], n_text: int) -> None:
    lines = [tuple(names), *map(tuple, cells)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    for line in lines:
        columns = zip(line, widths, strict=True)
        padded = [cell.ljust(width) if i < n_text else cell.rjust(width) for i, (cell, width) in enumerate(columns)]
        print("  ".join(padded).rstrip())
