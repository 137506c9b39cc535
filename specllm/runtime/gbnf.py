"""Reads GBNF, llama.cpp's grammar format, as its `grammars/README.md` and `llama-grammar.cpp` have it.

Three things are allowed that llama.cpp refuses: `_` in names, left recursion, and a line that begins with `|` and goes on with
the rule before it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from specllm.runtime.finite import derivable

_MOST_REPEATED = 2000  # llama.cpp's MAX_REPETITION_THRESHOLD: it refuses more, and takes a larger upper bound for none
_HEX_DIGITS = {"x": 2, "u": 4, "U": 8}
_ESCAPED = {"t": "\t", "r": "\r", "n": "\n", "\\": "\\", '"': '"', "[": "[", "]": "]", "-": "-"}


@dataclass(frozen=True, slots=True)
class Text:
    value: str


@dataclass(frozen=True, slots=True)
class Characters:
    """One character of these ranges (code points, both ends included)."""

    ranges: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class Rule:
    name: str


@dataclass(frozen=True, slots=True)
class Special:
    """One token of the vocabulary, `<text>` or `<[id]>`; or any other one, but no end."""

    text: str
    is_excluded: bool


@dataclass(frozen=True, slots=True)
class Item:
    atom: Text | Characters | Rule | Special
    least: int = 1
    most: int | None = 1  # None: no bound


Sequence = tuple[Item, ...]
Rules = dict[str, list[Sequence]]
# What a text can hold: no zero byte (as in llama.cpp), no half of a character.
_ANY = Characters(((1, 0xD7FF), (0xE000, 0x10FFFF)))


def read(text: str) -> Rules:
    """The rules by name, without alternatives that never end; `root` is among them, a group's name has a blank in it.

    Raises ValueError, with the line, for what is no GBNF, and for a grammar that no finite text fits.
    """
    return _pruned(_Reader(text).rules())


class _Reader:
    """A recursive grammar read without recursion: groups become rules of their own."""

    def __init__(self, text: str) -> None:
        self._text, self._at = text, 0
        self._rules: Rules = {}
        self._lines: dict[str, int] = {}  # where a rule was first used

    def rules(self) -> Rules:
        """Every rule by name, a group's name has a blank in it; `root` is among them, and what is used is."""
        self._skip(breaks=True)
        while self._at < len(self._text):
            name = self._match(r"[\w-]+", "a rule's name", flags=re.ASCII)
            self._skip()
            self._match("::=", "::=")
            self._skip(breaks=True)
            self._rules[name] = self._alternatives(name)  # a second definition replaces the first, as in llama.cpp
        if missing := [name for name in self._lines if name not in self._rules]:
            raise ValueError(f"line {self._lines[missing[0]]}: the rule {missing[0]!r} is not defined")
        if "root" not in self._rules:
            raise ValueError("it has no rule `root`")
        return self._rules

    def _alternatives(self, name: str) -> list[Sequence]:
        """What stands behind `::=`, up to the rule's end."""
        outer: list[list[list[Item]]] = []  # the alternatives around each open parenthesis
        inner: list[list[Item]] = [[]]
        is_repeatable = False  # whether an item stands before
        while True:
            sequence, character = inner[-1], self._text[self._at : self._at + 1]
            if character == "|":
                self._at += 1
                inner.append([])
                is_repeatable = False
                self._skip(breaks=True)
                continue
            if character == "(":
                self._at += 1
                outer.append(inner)
                inner, is_repeatable = [[]], False
                self._skip(breaks=True)
                continue
            if character == ")" and outer:
                self._at += 1
                group = self._group(name, inner)
                inner = outer.pop()
                inner[-1].append(group)
                is_repeatable = True
            elif character and character in "*+?{":
                if not is_repeatable:
                    raise self._fault(f"nothing to repeat stands before {character!r}")
                sequence[-1], is_repeatable = self._repeated(name, sequence[-1], bool(outer))
                if not is_repeatable:
                    sequence.pop()
            elif (found := self._item()) is not None:
                sequence.extend(found)
                is_repeatable = bool(found)
            elif self._ends_rule(bool(outer)):
                return [tuple(sequence) for sequence in inner]
            self._skip(breaks=bool(outer))

    def _group(self, name: str, alternatives: list[list[Item]]) -> Item:
        group = f"{name} {len(self._rules)}"
        self._rules[group] = [tuple(sequence) for sequence in alternatives]
        return Item(Rule(group))

    def _item(self) -> list[Item] | None:
        """The item here; an empty list for an empty text, None where no item begins."""
        character = self._text[self._at : self._at + 1]
        if character == '"':
            points = self._points()
            if not all(any(low <= point <= high for low, high in _ANY.ranges) for point in points):
                return [Item(Characters(()))]  # no text holds it
            return [Item(Text("".join(map(chr, points))))] if points else []
        if character == "[":
            ranges = self._ranges()
            return [] if ranges is None else [Item(Characters(ranges))]
        if character == ".":
            self._at += 1
            return [Item(_ANY)]
        if character and character in "<!":
            found = self._match(r"!?<(\[\d+\]|[^>]*)>", "a token, as <text> or <[id]>")
            return [Item(Special(found.removeprefix("!"), found[0] == "!"))]
        if re.match(r"[\w-]", character, re.ASCII):
            line = self._line()
            name = self._match(r"[\w-]+", "a rule's name", flags=re.ASCII)
            self._lines.setdefault(name, line)
            return [Item(Rule(name))]
        return None

    def _points(self) -> list[int]:
        """The code points of the text in quotes here."""
        self._at += 1
        points = []
        while not self._follows('"'):
            points.append(self._character())
        return points

    def _ranges(self) -> tuple[tuple[int, int], ...] | None:
        """The ranges of a class in brackets; None for one without a character, which llama.cpp takes for nothing at all."""
        self._at += 1
        is_excluded = self._follows("^")
        ranges = []
        while not self._follows("]"):
            low = high = self._character()
            if self._text[self._at : self._at + 1] == "-" and self._text[self._at + 1 : self._at + 2] != "]":
                self._at += 1
                high = self._character()
            ranges.append((low, high))
        if not ranges:
            return None
        return _without(_ANY.ranges, ranges) if is_excluded else _without(_ANY.ranges, _without(((0, 2**32),), ranges))

    def _character(self) -> int:
        """The code point of the character or the escape here."""
        if self._at >= len(self._text):
            raise self._fault("the grammar ends within a text or a class of characters")
        character = self._text[self._at]
        self._at += 1
        if character != "\\":
            return ord(character)
        escape = self._text[self._at : self._at + 1]
        self._at += 1
        if escape in _HEX_DIGITS:
            n = _HEX_DIGITS[escape]
            return int(self._match(f"[0-9a-fA-F]{{{n}}}", f"{n} hexadecimal digits behind \\{escape}"), 16)
        if escape not in _ESCAPED:
            raise self._fault(f"there is no escape \\{escape}")
        return ord(_ESCAPED[escape])

    def _repeated(self, name: str, item: Item, breaks: bool) -> tuple[Item, bool]:
        """The item with the repetition here, and whether anything is left of it."""
        mark = self._text[self._at]
        self._at += 1
        if mark == "{":
            self._skip(breaks)
            least = int(self._match(r"\d+", "a number"))
            self._skip(breaks)
            most: int | None = least
            if self._follows(","):
                self._skip(breaks)
                digits = self._match(r"\d*", "")
                most = int(digits) if digits else None
                self._skip(breaks)
            self._match("}", "}")
        else:
            least, most = {"*": (0, None), "+": (1, None), "?": (0, 1)}[mark]
        if least > _MOST_REPEATED:
            raise self._fault(f"{least} repetitions; {_MOST_REPEATED} are allowed")
        if most is not None and most < least:
            raise self._fault(f"at least {least} repetitions and at most {most}")
        if most is not None and most > _MOST_REPEATED:
            most = None
        if (item.least, item.most) != (1, 1):
            item = self._group(name, [[item]])
        return Item(item.atom, least, most), most != 0

    def _ends_rule(self, is_nested: bool) -> bool:
        """Whether the rule ends here; else an alternative follows on the next line."""
        if is_nested:
            raise self._fault("Expected ')'")
        if self._at < len(self._text) and self._text[self._at] not in "\r\n":
            raise self._fault(f"unexpected {self._text[self._at]!r}")
        self._skip(breaks=True)
        return self._text[self._at : self._at + 1] != "|"

    def _skip(self, breaks: bool = False) -> None:
        """Goes on behind blanks and comments, and perhaps line breaks."""
        blank = re.compile(r"(?:[ \t\r\n]|#[^\r\n]*)*" if breaks else r"(?:[ \t]|#[^\r\n]*)*")
        self._at = blank.match(self._text, self._at).end()  # type: ignore[union-attr]

    def _follows(self, character: str) -> bool:
        """Whether it stands here, then goes on behind it."""
        if not self._text.startswith(character, self._at):
            return False
        self._at += len(character)
        return True

    def _match(self, pattern: str, expected: str, flags: int = 0) -> str:
        found = re.compile(pattern, flags).match(self._text, self._at)
        if not found:
            raise self._fault(f"Expected {expected}")
        self._at = found.end()
        return found[0]

    def _line(self) -> int:
        return self._text.count("\n", 0, self._at) + 1

    def _fault(self, what: str) -> ValueError:
        return ValueError(f"line {self._line()}: {what}")


def _without(
    ranges: tuple[tuple[int, int], ...], holes: list[tuple[int, int]] | tuple[tuple[int, int], ...]
) -> tuple[tuple[int, int], ...]:
    """The ranges without the holes."""
    for low, high in holes:
        if low <= high:
            parts = [part for a, b in ranges for part in ((a, min(b, low - 1)), (max(a, high + 1), b))]
            ranges = tuple((a, b) for a, b in parts if a <= b)
    return ranges


def _pruned(rules: Rules) -> Rules:
    """The rules without the alternatives that never end. Raises ValueError where nothing is left of `root`."""

    def has_text(item: Item) -> bool:
        atom = item.atom
        return atom.name in ending if isinstance(atom, Rule) else not isinstance(atom, Characters) or bool(atom.ranges)

    ending = derivable({
        name: [{i.atom.name for i in sequence if i.least and isinstance(i.atom, Rule)} for sequence in alternatives
               if all(not i.least or i.atom != Characters(()) for i in sequence)]
        for name, alternatives in rules.items()
    })  # fmt: skip
    if "root" not in ending:
        raise ValueError("no finite text fits it: some rule behind `root` always needs itself again")
    return {
        name: [tuple(filter(has_text, sequence)) for sequence in rules[name]
               if all(has_text(item) or not item.least for item in sequence)]
        for name in rules if name in ending
    }  # fmt: skip
