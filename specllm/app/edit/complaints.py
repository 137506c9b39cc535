"""What looks wrong about a file's new text, and which of it nobody should apply without a look."""

from __future__ import annotations

import difflib
import re
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import PurePath

from specllm.app.edit.asked import Wish
from specllm.app.edit.left_out import left_out
from specllm.app.edit.syntax import fault_in
from specllm.app.text_file import split_lines

_CONTROL = re.compile(r"[\x00-\x08\x0e-\x1f\x7f]")
_ALIKE = 0.6  # of two lines: what difflib calls a close match
_MANY = 100  # lines whose likeness is looked at
_MUCH_SHORTER = 0.7  # small models like to give the changed function alone


@dataclass(frozen=True, slots=True)
class Complaint:
    """One thing to look at; a grave one speaks of text that is lost or broken."""

    text: str
    is_grave: bool = False


def complaints(path: PurePath, old: str, new: str, asked: Collection[Wish] = ()) -> list[Complaint]:
    """About a file's new text: it no longer parses, its end is gone, lines were left out with a remark, it is no text."""
    return list(_complaints(path, old, new, asked))


def _complaints(path: PurePath, old: str, new: str, asked: Collection[Wish]) -> Iterator[Complaint]:
    if (fault := fault_in(path, new)) and not (old.strip() and fault_in(path, old)):
        yield Complaint(f"the new text does not parse: {fault}", is_grave=True)
    old_lines, new_lines = split_lines(old)[0], split_lines(new)[0]
    lengths = f"the new text has {len(new_lines)} lines instead of {len(old_lines)}"
    if n_lost := n_lost_at_end(old_lines, new_lines):
        yield Complaint(f"{lengths}: its end is missing, {n_lost} lines with text", is_grave="less" not in asked)
    elif len(new_lines) < _MUCH_SHORTER * len(old_lines):
        yield Complaint(lengths)
    if (control := _CONTROL.search(new)) and control.group() not in old:
        yield Complaint(f"the new text holds the control character U+{ord(control.group()):04X}")
    if (n := left_out(old_lines, new_lines, asked)) is not None:
        remark = new_lines[n].strip()[:60]
        yield Complaint(f"line {n + 1} may stand for text that was left out: {remark}", is_grave=True)


def n_lost_at_end(old: Sequence[str], new: Sequence[str]) -> int:
    """How many of the last old lines are gone, where the new ones just end in front of them; empty lines do not count."""
    old, new = ([line.strip() for line in lines if line.strip()] for lines in (old, new))
    kind, a, _, b, _ = [("equal", 0, 0, 0, 0), *difflib.SequenceMatcher(None, old, new).get_opcodes()][-1]
    if kind == "replace":
        n_changed = _n_changed(old[a:], new[b:])
        if not n_changed or len(old) - a - n_changed < 2:  # one line more or less is how a change looks
            return 0
        a += n_changed
    elif kind != "delete":
        return 0
    return (Counter(old[a:]) & (Counter(old) - Counter(new))).total()


def _n_changed(old: Sequence[str], new: Sequence[str]) -> int:
    """How many of the old lines the new ones take the place of, in order; 0 where the last new line resembles none."""
    n, found = -1, None
    for line in new[:_MANY]:
        found = next((i for i, o in enumerate(old[:_MANY]) if i > n and difflib.get_close_matches(line, [o])), None)
        n = n if found is None else found
    return 0 if found is None else n + 1


def loses_end(old: Sequence[str], new: Sequence[str]) -> bool:
    """Whether the last old line is missing where the new ones end; empty lines do not count."""
    old, new = ([line for line in lines if line.strip()] for lines in (old, new))
    *same, _ = difflib.SequenceMatcher(None, old, new).get_matching_blocks()
    a, b, size = same[-1] if same else (0, 0, 0)
    return a + size < len(old) and not difflib.get_close_matches(old[-1], new[b + size :], n=1, cutoff=_ALIKE)
