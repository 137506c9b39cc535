"""Options that say how a model's chat template is used, for every command that renders one."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from typing import Annotated, Any

import typer

from specllm.config import OUR_TEMPLATE_VARS
from specllm.errors import ConfigError


@dataclasses.dataclass(frozen=True, kw_only=True)
class TemplateOptions:
    """How the model's chat template is used."""

    template_var: Annotated[
        list[str] | None,
        typer.Option(
            "--template-var", metavar="NAME=VALUE", rich_help_panel="Request",
            help="Set a variable of the chat template, e.g. enable_thinking=false; may be repeated.",
        ),
    ] = None  # fmt: skip

    def variables(self) -> tuple[tuple[str, Any], ...]:
        """For `GenerateConfig.template_vars`."""
        return template_vars(self.template_var or ())


def template_vars(values: Sequence[str]) -> tuple[tuple[str, Any], ...]:
    """NAME=VALUE pairs, e.g. enable_thinking=false; the last one of a name counts."""
    pairs: dict[str, Any] = {}
    for value in values:
        name, equals, text = value.partition("=")
        if not equals or not name.isidentifier():
            raise ConfigError(f"--template-var {value}", "use NAME=VALUE, e.g. enable_thinking=false")
        if name in OUR_TEMPLATE_VARS:
            raise ConfigError(f"--template-var {name}: the conversation itself says that", "leave it out")
        pairs[name] = _json_or_text(text)
    return tuple(pairs.items())


def _json_or_text(text: str) -> Any:
    """The value where it is JSON (NaN and infinity are not), else the text."""

    def refuse(name: str) -> None:
        raise ValueError(name)

    try:
        return json.loads(text, parse_constant=refuse)
    except (ValueError, RecursionError):
        return text
