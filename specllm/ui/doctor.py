"""How the doctor's findings look: a line per check on stdout, the way out below it."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol, TypeVar

from rich.console import Console
from rich.text import Text

from specllm.ui.console import harmless, has_colour, is_terminal

STYLES = {"ok": "green", "warn": "yellow", "fail": "bold red"}
MIN_COLUMNS = 30  # narrower text is not broken at words
NAME_WIDTH = 13  # the longest fixed name, "smoke decode", and a space; models' names are longer


class Check(Protocol):
    """What is drawn of an `app.doctor.diagnosis.Check`."""

    @property
    def name(self) -> str: ...
    @property
    def status(self) -> str: ...
    @property
    def fact(self) -> str: ...
    @property
    def fix(self) -> str: ...


AnyCheck = TypeVar("AnyCheck", bound=Check)


@dataclass(frozen=True, slots=True)
class Terminal:
    """Where answers are shown."""

    is_terminal: bool
    encoding: str
    columns: int
    has_colour: bool


def describe_terminal() -> Terminal:
    """Where stdout goes, and what can be shown there."""
    return Terminal(
        is_terminal=is_terminal(sys.stdout),
        encoding=sys.stdout.encoding or "ascii",
        columns=shutil.get_terminal_size().columns,
        has_colour=has_colour(sys.stdout),
    )


def print_checks(checks: Iterable[AnyCheck]) -> tuple[AnyCheck, ...]:
    """stdout has a line for each check as soon as it is done; returns all of them."""
    console = Console(highlight=False, markup=False, emoji=False, soft_wrap=True, no_color=not has_colour(sys.stdout))
    done = []
    for check in checks:
        status = (f"{check.status:<4}", STYLES[check.status])
        name = (f"  {harmless(check.name):<{NAME_WIDTH}} ", "bold")
        head, fact = Text.assemble(status, name), Text(harmless(check.fact))
        width = console.width - head.cell_len
        rows = fact.wrap(console, width) if console.is_terminal and width >= MIN_COLUMNS else [fact]
        for row in rows:
            console.print(Text.assemble(head, row))
            head = Text(" " * head.cell_len)
        if check.fix:
            console.print(Text(f"      fix: {harmless(check.fix)}"))
        done.append(check)
    return tuple(done)
