"""Puts back what a model changed by habit and nobody asked for: blanks, quotes, accents, indentation, a file name on top.

Lines that look the same as old ones are the old ones, but for what the instruction names.
"""

from __future__ import annotations

import difflib
import re
import unicodedata
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from pathlib import PurePath

from specllm.app.edit.asked import Wish

# Shows nothing by itself: soft hyphen, joiners, marks of direction, variation selectors, byte order mark.
UNSEEN = "\u00ad\u034f\u061c\u180e\u200b-\u200f\u202a-\u202e\u2060-\u2064\u2066-\u206f\ufe00-\ufe0f\ufeff"
_UNSEEN = re.compile(f"[{UNSEEN}]")
_ALIKE = {
    **dict.fromkeys(map(ord, "\u2018\u2019\u201a\u201b\u2032\u00b4"), "'"),
    **dict.fromkeys(map(ord, "\u201c\u201d\u201e\u201f\u2033"), '"'),
    **dict.fromkeys(map(ord, "\u2010\u2011\u2012\u2013\u2014\u2015\u2212"), "-"),
    ord("\u2026"): "...",
}
_MARKS = r"[#/*<>!;%\"'`=_:.\s-]*"  # of a comment, or around a title
_BEFORE_NAME = re.compile(
    rf"{_MARKS}(?:(?:file ?-?(?:name|path)?|path)\b{_MARKS})?(?:[a-z]:)?(?:[\w.~\\/-]*[\\/])?", re.IGNORECASE
)
_MANY = 1000  # lines; beyond that, lines which come often are no place to align texts at, else it takes minutes


def restored(
    old: Sequence[str], new: Sequence[str], file: Sequence[str], asked: Collection[Wish]
) -> tuple[list[str], list[int]]:
    """The new lines with the old ones in the place of those that look the same, and which lines that are, from 0.

    `old` are the lines that were edited, `file` all of them: they say what the file is indented with.
    """
    looks_old, looks_new = [*map(looks, old)], [*map(looks, new)]
    same: dict[int, int] = {}  # new line: old line
    beside: dict[int, int] = {}  # the same where a changed line takes the place of another
    for kind, a, a_end, b, b_end in difflib.SequenceMatcher(
        None, looks_old, looks_new, autojunk=len(new) > _MANY
    ).get_opcodes():
        if kind == "equal" or (kind == "replace" and a_end - a == b_end - b):
            (same if kind == "equal" else beside).update(zip(range(b, b_end), range(a, a_end), strict=True))
    lines = list(new)
    for n, m in same.items():
        if looks_new[n]:
            lines[n] = _depth(new[n]) + _merged(old[m].lstrip(), new[n].lstrip(), asked)
        elif "blanks" not in asked:
            lines[n] = old[m]
    if "blanks" not in asked:
        pairs = {n: (_depth(old[m]), _depth(new[n])) for n, m in (same | beside).items()}
        for n, depth in _depths(pairs, [_depth(line) for line in new], file):
            lines[n] = depth + lines[n].lstrip()
    return lines, [n for n, line in enumerate(new) if line != lines[n]]


def looks(line: str) -> str:
    """What two lines have in common that look the same or nearly so, however deep they are indented."""
    if line.isascii():
        return " ".join(line.split())
    return " ".join(_UNSEEN.sub("", unicodedata.normalize("NFC", line)).translate(_ALIKE).split())


def _depth(line: str) -> str:
    """The white space in front; all of a line that has nothing else."""
    return line[: len(line) - len(line.lstrip())]


def _merged(old: str, new: str, asked: Collection[Wish]) -> str:
    """The old line, with what the instruction asks to change as it is in the new one."""
    text_old, text_new = old.rstrip(), new.rstrip()
    end = new[len(text_new) :] if "blanks" in asked else old[len(text_old) :]
    if text_old == text_new or not {"blanks", "marks", "characters"} & set(asked):
        return text_old + end
    atoms_old, atoms_new = _atoms(text_old), _atoms(text_new)
    if len(atoms_old) != len(atoms_new):
        return text_new + end
    chosen = (b if _difference(a, b) in asked else a for a, b in zip(atoms_old, atoms_new, strict=True))
    return "".join(chosen) + end


def _atoms(line: str) -> list[str]:
    """Runs of white space, and characters with what combines with them or shows nothing."""
    atoms: list[str] = []
    for character in line:
        is_more = atoms and (
            (character.isspace() and atoms[-1][-1].isspace())
            or unicodedata.combining(character)
            or "\u1160" <= character <= "\u11ff"  # the second and third letter of a Korean syllable
            or _UNSEEN.match(character)
        )
        if is_more:
            atoms[-1] += character
        else:
            atoms.append(character)
    return atoms


def _difference(old: str, new: str) -> Wish:
    if old.isspace() and new.isspace():
        return "blanks"
    old, new = (_UNSEEN.sub("", unicodedata.normalize("NFC", atom)) for atom in (old, new))
    return "characters" if old == new else "marks"


def _depths(pairs: dict[int, tuple[str, str]], depths: Sequence[str], file: Sequence[str]) -> Iterator[tuple[int, str]]:
    """For new lines, from 0, the indentation in the file's own characters where it is as deep as what the model wrote."""
    units = Counter(unit for pair in pairs.values() if (unit := _unit(*pair)))
    known = {depth for line in file if (depth := _depth(line)) and line.strip()}
    begins = {depth[0] for depth in known}
    unit = units.most_common(1)[0][0] if units else _least(depths if begins == {"\t"} else known)
    for n, depth in enumerate(depths):
        old, _ = pairs.get(n, (depth, depth))
        is_comparable = unit or "\t" not in old + depth
        if old != depth and is_comparable and _columns(old, unit or 1) == _columns(depth, unit or 1):
            yield n, old
        elif depth and unit and depth not in known and len(begins) == 1 and begins <= {"\t", " "}:
            columns = _columns(depth, unit)
            whole = "\t" * (columns // unit) + " " * (columns % unit) if begins == {"\t"} else " " * columns
            if whole != depth and not depth.startswith(tuple(begins)):
                yield n, whole


def _unit(old: str, new: str) -> int | None:
    """How many blanks a tab stands for, where one indentation has tabs and the other blanks alone."""
    tabbed, blank = (old, new) if "\t" in old else (new, old)
    n_tabs, n_more = tabbed.count("\t"), len(tabbed) - tabbed.count("\t")
    if not n_tabs or "\t" in blank or len(blank) <= n_more:
        return None
    unit, rest = divmod(len(blank) - n_more, n_tabs)
    return unit if not rest and unit <= 8 else None


def _least(depths: Collection[str]) -> int | None:
    """The smallest indentation, if all others are a multiple of it."""
    columns = [len(depth) for depth in depths if depth and "\t" not in depth]
    least = min(columns, default=0)
    return least if 1 < least <= 8 and not any(n % least for n in columns) else None


def _columns(depth: str, unit: int) -> int:
    return sum(unit if character == "\t" else 1 for character in depth)


def reindented(old: Sequence[str], new: Sequence[str], asked: Collection[Wish] = ()) -> list[str]:
    """The new lines of a region as deep as the old ones, where the model wrote them without any of their indentation.

    Some models leave it out of the first line alone; and where the first line has it, a later one that has none means it:
    text in a string, for example. Where the instruction is about indentation, what it wants is what the model wrote.
    """
    depth = indentation(old)
    first = next((n for n, line in enumerate(new) if line.strip()), None)
    if "indentation" in asked or not depth or first is None or new[first][0] in " \t":
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


def without_name(old: Sequence[str], new: Sequence[str], path: PurePath) -> list[str]:
    """The new lines without a first one that says no more than the file's name, where the old ones do not begin with it.

    A blank line behind it goes too.
    """
    if not new or not _is_name(new[0], path) or not any(map(str.strip, old)) or _is_name(old[0], path):
        return list(new)
    has_blank = len(new) > 1 and not new[1].strip() and old[0].strip()
    return list(new[2 if has_blank else 1 :])


def _is_name(line: str, path: PurePath) -> bool:
    for shown in (str(path), path.name):
        before, found, behind = line.rpartition(shown)
        if found and _BEFORE_NAME.fullmatch(before) and re.fullmatch(_MARKS, behind):
            return True
    return False
