"""Whether a file's text parses, for the kinds of files that can be asked without running anything."""

from __future__ import annotations

import importlib
import importlib.util
import json
import tomllib
import warnings
from collections.abc import Callable
from pathlib import PurePath


def fault_in(path: PurePath, text: str) -> str | None:
    """What is wrong with the text as a file of that name; None where nothing is, or nobody here can tell."""
    parse = _PARSERS.get(path.suffix.lower())
    return parse(text) if parse else None


def _python_fault(text: str) -> str | None:
    import ast

    try:
        with warnings.catch_warnings():  # it has an opinion on escapes in strings, which were there before
            warnings.simplefilter("ignore")
            ast.parse(text)
    except SyntaxError as error:
        return f"line {error.lineno}: {error.msg}"
    except (ValueError, RecursionError, MemoryError) as error:
        return str(error)
    return None


def _json_fault(text: str) -> str | None:
    try:
        json.loads(text)
    except json.JSONDecodeError as error:
        return f"line {error.lineno}: {error.msg}"
    except (ValueError, RecursionError) as error:
        return str(error)
    return None


def _toml_fault(text: str) -> str | None:
    try:
        tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        return str(error)
    return None


def _yaml_fault(text: str) -> str | None:
    """Syntax alone: tags of an application are no fault. Nothing is said where PyYAML is not installed."""
    if importlib.util.find_spec("yaml") is None:
        return None
    yaml = importlib.import_module("yaml")
    try:
        for _ in yaml.parse(text, Loader=yaml.SafeLoader):
            pass
    except yaml.YAMLError as error:
        return " ".join(str(error).split())
    except (ValueError, RecursionError) as error:
        return str(error)
    return None


_PARSERS: dict[str, Callable[[str], str | None]] = {
    ".py": _python_fault, ".pyi": _python_fault, ".json": _json_fault, ".toml": _toml_fault,
    ".yaml": _yaml_fault, ".yml": _yaml_fault,
}  # fmt: skip
