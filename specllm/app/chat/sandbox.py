"""Renders chat templates in a process of its own, which is ended when it takes too much time or memory.

A chat template is a program that came with a model file. Jinja's sandbox keeps it from files and from Python's insides, but
not from working for ever: nested loops, doubled strings, huge powers. So this file is run as a script. It reads one request
a line on stdin and answers each with one line on stdout, both JSON; it ends with its stdin. `template.py` is its other end.
"""

from __future__ import annotations

import contextlib
import json
import signal
import sys
from collections.abc import Mapping
from datetime import datetime
from typing import Any, NoReturn

from jinja2 import Environment, TemplateError, meta, nodes
from jinja2.ext import Extension, LoopControlExtension
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

MAX_BYTES = 1 << 30  # of address space; the process itself has a tenth of that
MAX_CHARACTERS = 1 << 26  # of a prompt: no context holds that
MAX_MESSAGE = 500  # characters of an error: a template may quote whatever it likes

# What the Python code behind a template raises where the template is wrong: at compilation, in filters and methods.
_FAULTS = (
    TemplateError, TypeError, ValueError, LookupError, AttributeError, ArithmeticError, SyntaxError, RecursionError,
)  # fmt: skip


class _Generation(Extension):
    """`{% generation %}..{% endgeneration %}`, with which training code finds the assistant's part; it changes no text."""

    tags = {"generation"}  # noqa: RUF012  (as Jinja declares it)

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        return nodes.Scope(parser.parse_statements(("name:endgeneration",), drop_needle=True), lineno=line)


def _environment() -> Environment:
    """With the blocks, filters and functions of transformers' apply_chat_template, and its treatment of blanks."""
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[LoopControlExtension, _Generation]
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _refuse
    environment.globals["strftime_now"] = lambda format: datetime.now().strftime(format)
    return environment


def _to_json(
    value: Any, ensure_ascii: bool = False, indent: int | str | None = None,
    separators: tuple[str, str] | None = None, sort_keys: bool = False,
) -> str:  # fmt: skip
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _refuse(message: object) -> NoReturn:
    raise TemplateError(str(message))


_ENVIRONMENT = _environment()
_templates: dict[str, Any] = {}  # by their source


def answer(request: Mapping[str, Any]) -> dict[str, Any]:
    """A template's `text` with the request's variables; without those the `names` that it looks at. Or its `error`."""
    source, variables = request["source"], request.get("variables")
    try:
        if source not in _templates:
            _templates[source] = _ENVIRONMENT.from_string(source)
        if variables is None:
            return {
                "names": sorted(meta.find_undeclared_variables(_ENVIRONMENT.parse(source)) - {*_ENVIRONMENT.globals})
            }
        text = _templates[source].render(variables)
    except MemoryError:
        return {"error": "it takes too much memory"}
    except _FAULTS as error:
        return {"error": (str(error) or type(error).__name__)[:MAX_MESSAGE]}
    if len(text) > MAX_CHARACTERS:
        return {"error": f"it makes {len(text):,} characters"}
    return {"text": text}


def _limit_memory() -> None:
    with contextlib.suppress(ImportError, ValueError, OSError):  # Windows has no such limit, and macOS does not keep it
        import resource

        resource.setrlimit(resource.RLIMIT_AS, (MAX_BYTES, MAX_BYTES))


def _limit_time(seconds: float) -> None:
    """SIGPROF ends this process unless it is called again in time, also in the middle of Python's own C code."""
    if hasattr(signal, "setitimer"):
        signal.setitimer(signal.ITIMER_PROF, seconds)


def main(max_cpu_s: float) -> None:
    _limit_memory()
    for line in sys.stdin.buffer:
        _limit_time(max_cpu_s)
        sys.stdout.write(json.dumps(answer(json.loads(line))) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main(float(sys.argv[1]))
