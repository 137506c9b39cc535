"""Options that say what an answer must look like, for every command that generates."""

from __future__ import annotations

import dataclasses
import functools
from pathlib import Path
from typing import Annotated

import typer

from specllm.cli.prompt import read_file
from specllm.config import StructureConfig
from specllm.errors import ConfigError

_structure = functools.partial(typer.Option, rich_help_panel="Structured output")


@dataclasses.dataclass(frozen=True, kw_only=True)
class StructureOptions:
    """At most one of these."""

    json_schema: Annotated[
        str | None, _structure("--json-schema", metavar="FILE|TEXT", help="JSON that is valid against this schema.")
    ] = None
    json_object: Annotated[bool, _structure("--json-object", help="Any JSON object.")] = False
    regex: Annotated[str | None, _structure("--regex", metavar="REGEX", help="A text that matches it as a whole.")] = (
        None
    )
    choice: Annotated[
        list[str] | None, _structure("--choice", metavar="TEXT", help="One of several texts; repeat it for each.")
    ] = None
    grammar: Annotated[
        Path | None, _structure("--grammar", metavar="FILE", help="A text of this grammar, in Lark or GBNF.")
    ] = None

    def config(self) -> StructureConfig | None:
        """What was asked for; None: anything."""
        given = [name for name, value in vars(self).items() if value not in (None, False)]
        if len(given) > 1:
            names = " and ".join(f"--{name.replace('_', '-')}" for name in given)
            raise ConfigError(f"{names} exclude each other", "say in one way what the answer must look like")
        if self.json_schema is not None:
            return StructureConfig(kind="json_schema", text=_text_or_file(self.json_schema))
        if self.json_object:
            return StructureConfig(kind="json_object")
        if self.regex is not None:
            return StructureConfig(kind="regex", text=self.regex)
        if self.choice is not None:
            return StructureConfig(kind="choice", choices=tuple(self.choice))
        if self.grammar is not None:
            return StructureConfig(kind="grammar", text=read_file(self.grammar, "--grammar"))
        return None


def _text_or_file(value: str) -> str:
    """A schema given as text begins with a brace (or is empty, which is refused as such); all else is a file's name."""
    return value if not value.strip() or value.lstrip().startswith("{") else read_file(Path(value), "--json-schema")
