"""From a model's reply to the new lines: one code block, whole, or an error. Nothing is guessed."""

from __future__ import annotations

import difflib
import importlib
import importlib.util
import json
import re
import tomllib
import warnings
from collections.abc import Callable, Sequence
from pathlib import PurePath

from specllm.app.text_file import split_lines
from specllm.errors import BadReply

_FENCE = re.compile(r" {0,3}(`{3,})([^`]*)$")
_AGAIN = "say the instruction in other words, or use a larger model"
_LEFT_OUT = re.compile(
    r"^\s*(#|//|/\*|<!--|--|;|%)?\s*(\.\.\.|…).*|^\s*(#|//|/\*|<!--|--|;|%).*(\.\.\.|…)\s*(\*/|-->)?\s*$"
)
_CONTROL = re.compile(r"[\x00-\x08\x0e-\x1f\x7f]")
_ALIKE = 0.6  # of two lines: what difflib calls a close match
_MUCH_SHORTER = 0.7  # small models like to give the changed function alone
_LEFT_OUT_WORDS = re.compile(
    r"\b(rest|remain\w*|existing|unchanged|same|other|previous|omitted|before)\b", re.IGNORECASE
)


def lines_of_reply(reply: str) -> list[str]:
    """The lines inside the one code block of a reply that is whole, not cut at a token limit.

    Blocks nest: a fence with a language inside the block opens another one, and the next bare fence of its length closes that.
    Small models close a block of four backticks with three: as the last line that is its end, unless it ends a block inside.
    Raises BadReply where there is no block, more than one, or one that does not end.
    """
    lines, _ = split_lines(reply)
    blocks: list[list[str]] = []
    open_fences: list[int] = []  # lengths, the outermost first
    for line in lines:
        n, language = _fence(line)
        if not open_fences:
            if n:
                open_fences.append(n)
                blocks.append([])
            continue
        if n >= open_fences[-1] and not language:
            open_fences.pop()
            if not open_fences:
                continue
        elif n >= open_fences[0] and language:
            open_fences.append(n)
        blocks[-1].append(line)
    if not blocks:
        raise BadReply("the reply holds no code block", _AGAIN)
    if open_fences:
        end = _short_end(blocks[-1])
        if end is None:
            raise BadReply("the reply's code block does not end", _AGAIN)
        del blocks[-1][end:]
    if len(blocks) > 1:
        raise BadReply(f"the reply holds {len(blocks)} code blocks and no way to tell which is meant", _AGAIN)
    return blocks[0]


def _fence(line: str) -> tuple[int, str]:
    """The length of the fence that the line is, 0 where it is none, and its language."""
    match = _FENCE.match(line)
    return (len(match[1]), match[2].strip()) if match else (0, "")


def _short_end(block: Sequence[str]) -> int | None:
    """Which line is the last with something in it, where that is a bare fence and no block inside is open there."""
    last = max((n for n, line in enumerate(block) if line.strip()), default=0)
    if not block or not _fence(block[last])[0] or _fence(block[last])[1]:
        return None
    open_fence = 0
    for line in block[:last]:
        n, language = _fence(line)
        if not open_fence:
            open_fence = n
        elif n >= open_fence and not language:
            open_fence = 0
    return None if open_fence else last


def loses_end(old: Sequence[str], new: Sequence[str]) -> bool:
    """Whether the last old line is missing where the new ones end; empty lines do not count."""
    old, new = ([line for line in lines if line.strip()] for lines in (old, new))
    *same, _ = difflib.SequenceMatcher(None, old, new).get_matching_blocks()
    a, b, size = same[-1] if same else (0, 0, 0)
    return a + size < len(old) and not difflib.get_close_matches(old[-1], new[b + size :], n=1, cutoff=_ALIKE)


def reindented(old: Sequence[str], new: Sequence[str]) -> list[str]:
    """The new lines of a region as deep as the old ones, where the model wrote them without any of their indentation.

    Some models leave it out of the first line alone; and where the first line has it, a later one that has none means it:
    text in a string, for example.
    """
    depth = indentation(old)
    first = next((n for n, line in enumerate(new) if line.strip()), None)
    if not depth or first is None or new[first][0] in " \t":
        return list(new)
    below = indentation(new[first + 1 :])
    if len(below) > len(depth) and below == indentation(old[1:]):
        return [*new[:first], f"{depth}{new[first]}", *new[first + 1 :]]
    return [f"{depth}{line}" if line.strip() else line for line in new]


def indentation(lines: Sequence[str]) -> str:
    """The white space that all lines with something in them begin with."""
    starts = [line[: len(line) - len(line.lstrip(" \t"))] for line in lines if line.strip()]
    if not starts:
        return ""
    low, high = min(starts), max(starts)
    n = next((i for i, (a, b) in enumerate(zip(low, high, strict=False)) if a != b), min(len(low), len(high)))
    return low[:n]


def complaints(path: PurePath, old: str, new: str) -> list[str]:
    """What looks wrong about a file's new text: no longer to be parsed, lines left out with a remark, a text that is none."""
    found = []
    parse = _PARSERS.get(path.suffix.lower())
    if parse and (fault := parse(new)) and not (old.strip() and parse(old)):
        found.append(f"the new text does not parse: {fault}")
    old_lines, new_lines = split_lines(old)[0], split_lines(new)[0]
    if len(new_lines) < _MUCH_SHORTER * len(old_lines):
        found.append(f"the new text has {len(new_lines)} lines instead of {len(old_lines)}")
    if (control := _CONTROL.search(new)) and control.group() not in old:
        found.append(f"the new text holds the control character U+{ord(control.group()):04X}")
    known = set(old_lines)
    for n, line in enumerate(new_lines, start=1):
        if line not in known and _LEFT_OUT.match(line) and _LEFT_OUT_WORDS.search(line):
            found.append(f"line {n} may stand for text that was left out: {line.strip()[:60]}")
            break
    return found


# What is wrong with a text, None where nothing is.


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
