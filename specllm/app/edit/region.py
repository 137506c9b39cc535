"""Which lines of a file are to be edited: a range, or a Python function, class or variable by its name."""

from __future__ import annotations

import ast
import re
import warnings
from collections.abc import Iterator, Sequence
from pathlib import PurePath

from specllm.app.edit.prompts import Region
from specllm.errors import ConfigError

_RANGE = re.compile(r"(\d{0,9})(:?)(\d{0,9})")
_MAX_NAMED = 8  # candidates in an error message


def region_of_lines(text: str, n_lines: int) -> Region:
    """`A:B` counted from 1 with both ends, `A` alone, `A:` or `:B`; raises ConfigError."""
    match = _RANGE.fullmatch(text.strip())
    if not match or not (match[1] or match[3]):
        raise ConfigError(f"no lines {text!r}", "use A:B, counted from 1, e.g. --lines 10:24")
    first = int(match[1] or 1)
    last = int(match[3] or (n_lines if match[2] else first))
    if not 1 <= first <= last <= n_lines:
        counted = "no lines" if not n_lines else f"lines 1 to {n_lines:,}"
        raise ConfigError(f"--lines {text}: the file has {counted}", "use A:B inside of that, with A first")
    return Region(first - 1, last)


def region_of_symbol(path: PurePath, lines: Sequence[str], name: str) -> Region:
    """The lines of a definition with its decorators, by its name or a dotted one (`Class.method`); raises ConfigError."""
    if path.suffix.lower() not in (".py", ".pyi"):
        raise ConfigError("--symbol knows Python files only", "use --lines A:B")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tree = ast.parse("\n".join(lines) + "\n")
    except SyntaxError as error:
        raise ConfigError(
            f"{path} does not parse: line {error.lineno}: {error.msg}", "use --lines A:B, or mend it first"
        ) from None
    except (ValueError, RecursionError, MemoryError) as error:
        raise ConfigError(f"{path} does not parse: {error}", "use --lines A:B") from None
    known = list(_definitions(tree, ""))
    found = [(full, region) for full, region in known if full == name]
    found = found or [(full, region) for full, region in known if full.endswith(f".{name}")]
    if not found:
        raise ConfigError(f"{path} has no {name}", _nearest(name, [full for full, _ in known]))
    if len(found) > 1:
        places = [f"{full} (lines {region.first + 1}:{region.last})" for full, region in found]
        more = ", .." if len(places) > _MAX_NAMED else ""
        raise ConfigError(
            f"{path} has {len(found)} of {name}: {', '.join(places[:_MAX_NAMED])}{more}",
            "use --lines with one of these, or a dotted name",
        )
    return found[0][1]


def _definitions(node: ast.AST, prefix: str) -> Iterator[tuple[str, Region]]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            first = min((decorator.lineno for decorator in child.decorator_list), default=child.lineno)
            yield prefix + child.name, Region(first - 1, child.end_lineno or child.lineno)
            yield from _definitions(child, f"{prefix}{child.name}.")
        elif isinstance(child, ast.Assign | ast.AnnAssign) and isinstance(node, ast.Module | ast.ClassDef):
            targets = child.targets if isinstance(child, ast.Assign) else [child.target]
            for target in targets:
                if isinstance(target, ast.Name):
                    yield prefix + target.id, Region(child.lineno - 1, child.end_lineno or child.lineno)
        else:
            yield from _definitions(child, prefix)


def _nearest(name: str, known: Sequence[str]) -> str:
    import difflib

    near = difflib.get_close_matches(name, known, n=3, cutoff=0.5)
    return f"did you mean {' or '.join(near)}?" if near else "use --lines A:B"
