"""The one JSON document a command with --json leaves on stdout, on success and on failure."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Mapping

SCHEMA = 1

_is_printed = False  # whatever fails after a document was printed, a second one would spoil it


def emit(
    command: str,
    result: Mapping[str, object],
    *,
    host: Mapping[str, object] | None = None,
    models: Mapping[str, object] | None = None,
    params: Mapping[str, object] | None = None,
    is_ok: bool = True,
) -> None:
    """Prints the document of a command that worked; `is_ok` is False where its answer is "no" (exit code 3) or was cut short."""
    from specllm.app.host import describe_host

    _print(
        {
            "schema": SCHEMA,
            "command": command,
            "ok": is_ok,
            "host": host or describe_host(),
            "models": models or {},
            "params": params or {},
            "result": result,
        }
    )


def emit_error(command: str, kind: str, message: str, hint: str, **details: object) -> None:
    """Prints the document of a command that failed, unless there is one already; `details` join the error."""
    if not _is_printed:
        error = {"type": kind, "message": message, "hint": hint, **details}
        _print({"schema": SCHEMA, "command": command, "ok": False, "error": error})


def forget() -> None:
    """The next document is the first one of a new command."""
    global _is_printed
    _is_printed = False


def _print(document: Mapping[str, object]) -> None:
    global _is_printed
    # ASCII: valid in every encoding a pipe may have.
    text = json.dumps(_finite(document), allow_nan=False) + "\n"
    _is_printed = True
    sys.stdout.write(text)
    sys.stdout.flush()


def _finite(value: object) -> object:
    """The same value with null for what is not a number; JSON has no NaN or infinity."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return value
