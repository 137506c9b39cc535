"""How models look on a terminal of 80 columns, and in a pipe: tables on stdout, progress on stderr."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from specllm.ui.console import harmless, write_note
from specllm.units import sized

Row = Mapping[str, Any]  # one of the objects that the JSON document of the same command has

PIPE_COLUMNS = 200  # in a pipe nothing is cut: a row stays a line


def print_listing(listing: Row) -> None:
    """Models, pairs, and files of other tools where they were looked for."""
    console = _stdout()
    console.print(_models_table(console, listing["models"]))
    console.print()
    console.print(_pairs_table(console, listing["pairs"]))
    if listing["found"] is not None:
        console.print()
        _print_found(console, listing["found"])
    if not any(model["is_installed"] for model in listing["models"]):
        default = next((pair["name"] for pair in listing["pairs"] if pair["is_default"]), "NAME")
        write_note(f"\nnothing is installed yet; to begin: specllm models pull {default}")
    if console.is_terminal:
        notes = Console(stderr=True, highlight=False)
        mark, star = _mark(console), "*"
        notes.print(f"\n{mark} installed  {star} default", style="dim")
        _print_place(notes, "models in", listing["models_dir"])
        _print_place(notes, "your entries in", listing["user_file"])


def print_details(model: Row) -> None:
    """All that is known about one model, a line each."""
    lines = [("name", model["name"]), ("about", model["description"])]
    traits = (model["family"], model["parameters"], model["quantization"])
    lines.append(("model", " ".join(trait for trait in traits if trait)))
    lines.append(("licence", ", ".join(part for part in (model["licence"], model["licence_note"]) if part)))
    lines.append(("", model["licence_url"]))
    n_bytes = model["bytes"]
    size = "not known before the first pull" if n_bytes is None else f"{sized(n_bytes)} ({n_bytes:,} bytes)"
    lines.append(("size", size))
    lines += [("sha256", _digest(model)), ("", _digest_origin(model))]
    if model["context_tokens"]:
        lines.append(("context", f"{model['context_tokens']:,} tokens"))
    for pair in model["pairs"]:
        role = "target" if pair["target"] == model["name"] else "draft model"
        lines.append(("pair", f"{pair['name']} ({role}; drafter: {pair['drafter']})"))
    lines.append(("drafter", f"{model['drafter']} when no draft model is used"))
    lines.append(("sampling", ", ".join(f"{name} {value:g}" for name, value in model["sampling"].items())))
    lines += [("source", source) for source in model["sources"]]
    lines.append(("installed", model["path"] or f"no; specllm models pull {model['name']}"))
    if header := model["header"]:
        context = f", trained for {header['context_tokens']:,} tokens" if header["context_tokens"] else ""
        lines.append(("file", f"architecture {header['architecture']}, {header['n_tensors']} tensors{context}"))
    lines.append(("damaged", model["header_error"]))
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="dim", no_wrap=True)
    grid.add_column(overflow="fold")
    for label, value in lines:
        if value:
            grid.add_row(label, _text(value))
    _stdout().print(grid)


def print_pulled(pulled: Sequence[Row]) -> None:
    """stderr says what happened, stdout has the paths."""
    for one in pulled:
        how = "already installed" if one["was_there"] else "installed"
        checked = "" if one["was_there"] else ", sha256 verified"
        write_note(f"{one['name']}: {how}, {sized(one['bytes'])}{checked}")
        print_path(one["path"])


def print_verified(verified: Sequence[Row]) -> None:
    """stdout has a line `digest  path` for each, as sha256sum writes it."""
    for one in verified:
        if one["is_first_record"]:
            write_note(f"{one['name']}: nobody promised a digest; this one is recorded and checked from now on")
        else:
            write_note(f"{one['name']}: sha256 is the expected one")
        sys.stdout.write(f"{one['sha256']}  {one['path']}\n")


def print_made_draft(made: Row) -> None:
    """What was tried and what it costs, a line each, and how to use it."""
    console = _stdout()
    table = Table(box=None, pad_edge=False)
    table.add_column("tried")
    for title in ("weights", "ms/token"):
        table.add_column(title, justify="right")
    for one in made["candidates"]:
        table.add_row(one["label"], sized(one["n_bytes"]), f"{one['token_s'] * 1e3:.1f}")
    console.print(table)
    if made["coverage"] is not None:
        write_note(f"the kept tokens are {made['coverage']:.1%} of the text that was counted")
    write_note(
        f"{made['name']} is {made['gain']:.2f} x as fast as its source; use it with --draft-model {made['name']}"
    )


def print_made_target(made: Row) -> None:
    """What was tried and what its forwards cost, a line each, and how to use it."""
    console = _stdout()
    table = Table(box=None, pad_edge=False)
    table.add_column("tried")
    widths = list(made["candidates"][0]["verify_s_by_width"])
    for title in ("weights", *(f"V({width}) ms" for width in widths), "plain", f"drafts right {made['chance']:.0%}"):
        table.add_column(title, justify="right")
    for one in made["candidates"]:
        costs = (f"{one['verify_s_by_width'][width] * 1e3:.0f}" for width in widths)
        rates = (f"{one[name]:.1f} tok/s" for name in ("plain_tok_per_s", "drafted_tok_per_s"))
        table.add_row(one["label"], sized(one["n_bytes"]), *costs, *rates)
    console.print(table)
    write_note(
        f"{made['name']} is another model than its source: the same weights in other numbers, and texts of its own"
    )
    if made["is_quantized_twice"]:
        write_note(
            "its source has few bits already: one in F16 or Q8_0 makes a better target, or a Q4_0 file of the publisher's"
        )
    write_note(f"with such drafts it is {made['gain']:.2f} x as fast; use it with -m {made['name']}")


def print_path(path: Path | str) -> None:
    """stdout has the path and nothing else."""
    sys.stdout.write(f"{path}\n")


def print_added(name: str, user_file: Path) -> None:
    write_note(f"{name} is in {user_file}; try: specllm models show {name}")


def _digest(model: Row) -> str:
    promised: str | None = model["sha256"] or model["recorded_sha256"]
    return promised or f"recorded {'by the first specllm models verify' if model['path'] else 'at the first pull'}"


def _digest_origin(model: Row) -> str:
    """Since when a digest that nobody promises is known; empty where somebody does, or none is known."""
    source = model["recorded_source"]
    if model["sha256"] or not source:
        return ""
    if source == "verify":
        return "recorded by models verify"
    return f"recorded when it {'was' if source.startswith('made of ') else 'came from'} {source}"


def _stdout() -> Console:
    console = Console(highlight=False, markup=False, emoji=False)
    return console if console.is_terminal else Console(width=PIPE_COLUMNS, highlight=False, markup=False, emoji=False)


def _mark(console: Console) -> str:
    return "✓" if console.encoding.startswith("utf") else "+"


def _text(value: str) -> Text:
    """`value` with nothing in it that would move the cursor: names and files come from strangers."""
    return Text(harmless(value))


def _table() -> Table:
    return Table(box=None, padding=(0, 2, 0, 0), header_style="dim", pad_edge=False)


def _models_table(console: Console, rows: Sequence[Row]) -> Table:
    table = _table()
    table.add_column("  model", no_wrap=True)
    table.add_column("size", justify="right", no_wrap=True)
    table.add_column("licence", no_wrap=True)
    table.add_column("in pairs", overflow="fold")
    for row in rows:
        table.add_row(
            _marked(console, row["name"], is_installed=row["is_installed"]),
            sized(row["bytes"]) if row["bytes"] is not None else "?",
            _text(row["licence"] or "?"),
            _text(_roles(row)),
        )
    return table


def _marked(console: Console, name: str, *, is_installed: bool) -> Text:
    """The name behind its mark, in one column: rich would squeeze a column of marks to nothing first."""
    mark = Text(f"{_mark(console)} ", style="green") if is_installed else Text("  ")
    return Text.assemble(mark, _text(name))


def _roles(row: Row) -> str:
    roles = [f"target of {_counted(row['target_of'])}"] if row["target_of"] else []
    roles += [f"draft of {_counted(row['draft_of'])}"] if row["draft_of"] else []
    return ", ".join(roles)


def _counted(pairs: Sequence[str]) -> str:
    return pairs[0] if len(pairs) == 1 else f"{len(pairs)} pairs"


def _pairs_table(console: Console, rows: Sequence[Row]) -> Table:
    table = _table()
    for title in ("  pair", "draft model", "drafter"):
        table.add_column(title, no_wrap=True)
    table.add_column("for", overflow="fold")
    for row in rows:
        name = row["name"] + ("*" if row["is_default"] else "")
        table.add_row(
            _marked(console, name, is_installed=row["is_installed"]),
            _text(row["draft"]),
            row["drafter"],
            _text(row["description"]),
        )
    return table


def _print_found(console: Console, found: Sequence[Row]) -> None:
    if not found:
        write_note("no models of other tools found")
        return
    table = _table()
    table.add_column("found", overflow="fold")
    table.add_column("size", justify="right", no_wrap=True)
    table.add_column("left by", no_wrap=True)
    for entry in found:
        table.add_row(_text(entry["name"]), sized(entry["bytes"]), entry["origin"])
    console.print(table)


def _print_place(console: Console, label: str, path: str) -> None:
    console.print(_text(f"{label} {path}"), style="dim", soft_wrap=True)
