"""How models look on a terminal of 80 columns, and in a pipe: tables on stdout, progress on stderr."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)
from rich.progress import Progress as Bars
from rich.table import Table
from rich.text import Text

from specllm.models.catalogue import Details, Listing, ModelRow, PairRow
from specllm.models.disk import sized
from specllm.models.found import Found
from specllm.models.progress import Progress
from specllm.models.pull import Pulled
from specllm.models.store import Verified
from specllm.ui.console import harmless, write_note

PIPE_COLUMNS = 200  # in a pipe nothing is cut: a row stays a line
PLAIN_STEP = 0.1  # without a terminal: a line for every tenth ..
PLAIN_PAUSE_S = 2.0  # .. but none for what is done in a moment ..
PLAIN_EVERY_S = 30.0  # .. and one at least this often


def print_listing(listing: Listing) -> None:
    """Models, pairs, and files of other tools where they were looked for."""
    console = _stdout()
    console.print(_models_table(console, listing.models))
    console.print()
    console.print(_pairs_table(console, listing.pairs))
    if listing.found is not None:
        console.print()
        _print_found(console, listing.found)
    if console.is_terminal:
        notes = Console(stderr=True, highlight=False)
        mark, star = _mark(console), "*"
        notes.print(f"\n{mark} installed  {star} default", style="dim")
        _print_place(notes, "models in", listing.folder)
        _print_place(notes, "your entries in", listing.user_file)


def print_details(details: Details) -> None:
    """All that is known about one model, a line each."""
    model, row = details.row.model, details.row
    lines = [("name", model.name), ("about", model.description)]
    traits = (model.family, model.parameters, model.quantization)
    lines.append(("model", " ".join(trait for trait in traits if trait)))
    if model.licence:
        lines.append(("licence", ", ".join(part for part in (model.licence.name, model.licence.note) if part)))
        lines.append(("", model.licence.url))
    size = "not known before the first pull" if row.bytes is None else f"{sized(row.bytes)} ({row.bytes:,} bytes)"
    lines.append(("size", size))
    lines.append(("sha256", model.sha256 or details.recorded_sha256 or "recorded at the first pull"))
    if model.context:
        lines.append(("context", f"{model.context:,} tokens"))
    for pair in details.pairs:
        role = "target" if pair.target == model.name else "draft model"
        lines.append(("pair", f"{pair.name} ({role}; drafter: {pair.drafter})"))
    lines.append(("drafter", f"{model.drafter} when no draft model is used"))
    if model.sampling:
        lines.append(("sampling", ", ".join(f"{name} {value:g}" for name, value in model.sampling.items())))
    lines += [("source", str(source)) for source in model.sources]
    lines.append(("installed", str(row.path) if row.path else f"no; specllm models pull {model.name}"))
    if details.header:
        header = details.header
        context = f", trained for {header.context:,} tokens" if header.context else ""
        lines.append(("file", f"architecture {header.architecture}, {header.n_tensors} tensors{context}"))
    if details.header_error:
        lines.append(("damaged", details.header_error))
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="dim", no_wrap=True)
    grid.add_column(overflow="fold")
    for label, value in lines:
        if value:
            grid.add_row(label, _text(value))
    _stdout().print(grid)


def print_pulled(pulled: Sequence[Pulled]) -> None:
    """stderr says what happened, stdout has the paths."""
    for one in pulled:
        if one.was_there:
            write_note(f"{one.name}: already installed, {sized(one.bytes)}")
        else:
            write_note(f"{one.name}: installed, {sized(one.bytes)}, sha256 verified")
        print_path(one.path)


def print_verified(verified: Sequence[Verified]) -> None:
    """stdout has a line `digest  path` for each, as sha256sum writes it."""
    for one in verified:
        if one.is_first_record:
            write_note(f"{one.name}: nobody promised a digest; this one is recorded and checked from now on")
        else:
            write_note(f"{one.name}: sha256 is the expected one")
        sys.stdout.write(f"{one.sha256}  {one.path}\n")


def print_path(path: Path) -> None:
    """stdout has the path and nothing else."""
    sys.stdout.write(f"{path}\n")


def print_added(name: str, user_file: Path) -> None:
    write_note(f"{name} is in {user_file}; try: specllm models show {name}")


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


def _models_table(console: Console, rows: Sequence[ModelRow]) -> Table:
    table = _table()
    table.add_column("  model", no_wrap=True)
    table.add_column("size", justify="right", no_wrap=True)
    table.add_column("licence", no_wrap=True)
    table.add_column("in pairs", overflow="fold")
    for row in rows:
        table.add_row(
            _marked(console, row.model.name, is_installed=row.path is not None),
            sized(row.bytes) if row.bytes is not None else "?",
            _text(row.model.licence.name if row.model.licence else "?"),
            _text(_roles(row)),
        )
    return table


def _marked(console: Console, name: str, *, is_installed: bool) -> Text:
    """The name behind its mark, in one column: rich would squeeze a column of marks to nothing first."""
    mark = Text(f"{_mark(console)} ", style="green") if is_installed else Text("  ")
    return Text.assemble(mark, _text(name))


def _roles(row: ModelRow) -> str:
    roles = [f"target of {_counted(row.target_of)}"] if row.target_of else []
    roles += [f"draft of {_counted(row.draft_of)}"] if row.draft_of else []
    return ", ".join(roles)


def _counted(pairs: Sequence[str]) -> str:
    return pairs[0] if len(pairs) == 1 else f"{len(pairs)} pairs"


def _pairs_table(console: Console, rows: Sequence[PairRow]) -> Table:
    table = _table()
    for title in ("  pair", "draft model", "drafter"):
        table.add_column(title, no_wrap=True)
    table.add_column("for", overflow="fold")
    for row in rows:
        name = row.pair.name + ("*" if row.is_default else "")
        table.add_row(
            _marked(console, name, is_installed=row.is_installed),
            _text(row.pair.draft),
            row.pair.drafter,
            _text(row.pair.description),
        )
    return table


def _print_found(console: Console, found: Sequence[Found]) -> None:
    if not found:
        write_note("no models of other tools found")
        return
    table = _table()
    table.add_column("found", overflow="fold")
    table.add_column("size", justify="right", no_wrap=True)
    table.add_column("left by", no_wrap=True)
    for entry in found:
        table.add_row(_text(entry.name), sized(entry.bytes), entry.origin)
    console.print(table)


def _print_place(console: Console, label: str, path: Path) -> None:
    console.print(_text(f"{label} {path}"), style="dim", soft_wrap=True)


@contextmanager
def watch_progress() -> Iterator[Progress]:
    """Progress on stderr: a bar with bytes, speed and time left on a terminal, else a line now and then."""
    console = Console(stderr=True, highlight=False, markup=False, emoji=False)
    if not console.is_terminal:
        yield PlainProgress()
        return
    bars = Bars(
        TextColumn("  {task.description:<13}", markup=False),
        BarColumn(bar_width=None),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeRemainingColumn(compact=True),
        console=console,
        transient=True,
    )
    with bars:
        yield BarProgress(bars)


class BarProgress:
    """One bar at a time; messages scroll by above it."""

    def __init__(self, bars: Bars) -> None:
        self.bars = bars
        self.task: TaskID | None = None

    def begin(self, label: str, total_bytes: int | None, done_bytes: int = 0) -> None:
        if self.task is not None:
            self.bars.remove_task(self.task)
        self.task = self.bars.add_task(label, total=total_bytes, completed=done_bytes)

    def advance(self, n_bytes: int) -> None:
        assert self.task is not None
        self.bars.advance(self.task, n_bytes)

    def message(self, text: str) -> None:
        self.bars.console.print(_text(text))


class PlainProgress:
    """Sparse lines for logs."""

    def __init__(self) -> None:
        self.label = ""
        self.total_bytes: int | None = None
        self.done_bytes = 0
        self.told_bytes = 0
        self.told_at_s = 0.0

    def begin(self, label: str, total_bytes: int | None, done_bytes: int = 0) -> None:
        self.label, self.total_bytes, self.done_bytes = label, total_bytes, done_bytes
        self.told_bytes, self.told_at_s = done_bytes, time.monotonic()

    def advance(self, n_bytes: int) -> None:
        self.done_bytes += n_bytes
        step_bytes = (self.total_bytes or 1_000_000_000) * PLAIN_STEP
        now_s = time.monotonic()
        pause_s = PLAIN_PAUSE_S if self.done_bytes - self.told_bytes >= step_bytes else PLAIN_EVERY_S
        if now_s - self.told_at_s >= pause_s:
            self.told_bytes, self.told_at_s = self.done_bytes, now_s
            of = ""
            if self.total_bytes:
                of = f" of {sized(self.total_bytes)} ({min(100 * self.done_bytes // self.total_bytes, 100)} %)"
            write_note(f"  {self.label}: {sized(self.done_bytes)}{of}")

    def message(self, text: str) -> None:
        write_note(text)
