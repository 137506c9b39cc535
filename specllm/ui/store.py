"""How stores look: tables on stdout, what was added on stderr."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from specllm.ui.console import harmless, write_note
from specllm.units import sized

Row = Mapping[str, Any]  # one of the objects that the JSON document of the same command has

_MOST_NAMED = 5
_PIPE_COLUMNS = 200  # in a pipe nothing is cut: a row stays a line
_WHY = {
    "secret": "look like secrets",
    "binary": "are no text",
    "large": "are too large",
    "unreadable": "cannot be read",
}


def note_added(added: Row) -> None:
    """stderr says what the store holds now and what was left out."""
    counts = [
        f"{added[f'n_{what}']:,} {what}" for what in ("new", "changed", "unchanged", "dropped") if added[f"n_{what}"]
    ]
    n_files = added["n_new"] + added["n_changed"] + added["n_unchanged"]
    write_note(f"{added['store']}: {n_files:,} files ({', '.join(counts) or 'none'}), {added['n_tokens']:,} tokens, "
               f"{sized(added['n_bytes'])}")  # fmt: skip
    for why, paths in added["skipped"].items():
        named = ", ".join(paths[:_MOST_NAMED]) if why in ("secret", "unreadable") else ""
        more = ", .." if named and len(paths) > _MOST_NAMED else ""
        write_note(f"  left out: {len(paths):,} that {_WHY[why]}{': ' if named else ''}{named}{more}")


def print_stores(stores: Sequence[Row]) -> None:
    """A row for each part of each store."""
    if not stores:
        write_note("no stores yet; try: specllm store add PATH")
        return
    _print([(store["name"], part) for store in stores for part in store["parts"]], "store")


def print_stats(store: Row) -> None:
    """A row for each part, and the folders that its files come from."""
    _print([(part["tokenizer"], part) for part in store["parts"]], "tokenizer")
    console = _stdout()
    for root in sorted({root for part in store["parts"] for root in part["roots"]}):
        console.print(Text(harmless(f"from {root}")), soft_wrap=True)
    for part in store["parts"]:
        if part["problem"]:
            write_note(part["problem"])


def _print(rows: Sequence[tuple[str, Row]], title: str) -> None:
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim", pad_edge=False)
    table.add_column(title, no_wrap=True)
    table.add_column("kind", no_wrap=True)
    for name in ("documents", "tokens", "size"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("tokenizer of", overflow="fold")
    for name, part in rows:
        figures = (f"{part['n_documents']:,}", f"{part['n_tokens']:,}") if not part["problem"] else ("damaged", "")
        table.add_row(harmless(name), part["kind"], *figures, sized(part["n_bytes"]), Text(harmless(part["model"])))
    _stdout().print(table)


def _stdout() -> Console:
    console = Console(highlight=False, markup=False, emoji=False)
    return console if console.is_terminal else Console(width=_PIPE_COLUMNS, highlight=False, markup=False, emoji=False)
