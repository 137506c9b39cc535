"""Translates GBNF, which is matched character by character, to the Lark syntax of llguidance.

llguidance first splits the text into lexemes. It always takes the longest lexeme that matches and never tries another split. If
`[a-z]*` were a lexeme, no text would fit `[a-z]* "z"`, because the lexeme takes the last z too. One lexeme per character is
always right, but slow with a large vocabulary. So lexemes are made as long as possible, and those that could take too much are
split.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache
from itertools import groupby

from specllm.runtime import compiler, gbnf
from specllm.runtime.finite import derivable
from specllm.runtime.gbnf import Characters, Item, Rule, Rules, Sequence, Special, Text

_MOST_CHECKED = 20_000  # pairs of lexemes, some milliseconds each at worst; beyond them all lexemes are taken apart

# A lexeme is a sequence that is a regular expression. A part of an alternative is a sequence of lexemes, rules and special
# tokens, and how often that sequence is repeated at least and at most (None: no limit).
Lexeme = Sequence
Symbol = Lexeme | Rule | Special
Part = tuple[tuple[Symbol, ...], int, int | None]
Productions = dict[str, list[list[Part]]]
Points = frozenset[tuple[int, int]]  # code points, in ranges
Pair = tuple[Lexeme, Points, Lexeme]


def lark_from_gbnf(text: str, token_id: Callable[[str], int] = lambda text: 0, ends: Iterable[int] = ()) -> str:
    """The grammar in Lark syntax. `token_id` gives the token of a `<text>`, `ends` are the tokens that end an answer.

    Raises ValueError, with the line, for what is no GBNF, and for a grammar that no finite text fits.
    """
    return _writer(text).lark(token_id, frozenset(ends))


@lru_cache(maxsize=4)
def _writer(text: str) -> _Writer:
    return _Writer(gbnf.read(text))


class _Writer:
    def __init__(self, rules: Rules) -> None:
        self._rules = rules
        self._numbers = {name: i for i, name in enumerate(rules)}
        self._regular = derivable({
            name: [] if any(isinstance(item.atom, Special) for sequence in alternatives for item in sequence)
            else [{item.atom.name for sequence in alternatives for item in sequence if isinstance(item.atom, Rule)}]
            for name, alternatives in rules.items()
        })  # fmt: skip
        self._nullable = derivable({
            name: [{item.atom.name for item in sequence if item.least and isinstance(item.atom, Rule)}
                   for sequence in alternatives
                   if all(not item.least or isinstance(item.atom, Rule) for item in sequence)]
            for name, alternatives in rules.items()
        })  # fmt: skip
        self._first: dict[str, Points] = dict.fromkeys(rules, frozenset())
        is_settled = False
        while not is_settled:
            is_settled = True
            for name, alternatives in rules.items():
                if not (first := frozenset().union(*map(self._begins, alternatives))) <= self._first[name]:
                    self._first[name], is_settled = first, False
        self._apart: set[Lexeme] = set()
        self._checked: set[Pair] = set()
        while found := self._greedy(self._productions()):
            self._apart |= found

    def lark(self, token_id: Callable[[str], int], ends: frozenset[int]) -> str:
        productions = self._productions()
        names = {lexeme: f"L{i}" for i, lexeme in enumerate(_lexemes(productions))}

        def symbol(one: Symbol) -> str:
            if isinstance(one, tuple):
                return names[one]
            if isinstance(one, Rule):
                return f"r{self._numbers[one.name]}"
            number = re.fullmatch(r"<\[(\d+)\]>", one.text)
            token = int(number[1]) if number else token_id(one.text)
            return f"<[^{','.join(map(str, sorted({token} | ends)))}]>" if one.is_excluded else f"<[{token}]>"

        def part(symbols: tuple[Symbol, ...], least: int, most: int | None) -> str:
            written = " ".join(map(symbol, symbols))
            return (f"({written})" if len(symbols) > 1 else written) + _times(least, most)

        lines = [f"start: r{self._numbers['root']}"]
        for name, alternatives in productions.items():
            written = [" ".join(part(*one) for one in parts) or '""' for parts in alternatives]
            lines.append(f"r{self._numbers[name]}: {' | '.join(written)}")
        return "\n".join([*lines, *self._terminals(names)])

    def _productions(self) -> Productions:
        """The rules that `root` needs and that are not a part of a lexeme."""
        found: Productions = {}
        todo = ["root"]
        while todo:
            if (name := todo.pop()) in found:
                continue
            whole = (Item(Rule("root")),)
            is_lexeme = name == "root" and self._is_lexeme(whole)
            found[name] = [list(self._parts(one)) for one in ([whole] if is_lexeme else self._rules[name])]
            todo += [s.name for parts in found[name] for part in parts for s in part[0] if isinstance(s, Rule)]
        return found

    def _is_regular(self, item: Item) -> bool:
        return item.atom.name in self._regular if isinstance(item.atom, Rule) else not isinstance(item.atom, Special)

    def _is_lexeme(self, sequence: Sequence) -> bool:
        return sequence not in self._apart and all(map(self._is_regular, sequence))

    def _parts(self, sequence: Sequence) -> Iterator[Part]:
        """The sequence, split into the longest lexemes that are allowed."""
        for is_regular, run in groupby(sequence, self._is_regular):
            items = tuple(run)
            if is_regular and self._is_lexeme(items):
                yield (items,), 1, 1
            else:
                for item in items:
                    yield self._symbols(item), item.least, item.most

    def _symbols(self, item: Item) -> tuple[Symbol, ...]:
        """The item without its repetition."""
        alone, atom = (Item(item.atom),), item.atom
        if isinstance(atom, Special):
            return (atom,)
        if isinstance(atom, Characters) or self._is_lexeme(alone):
            return (alone,)
        return (atom,) if isinstance(atom, Rule) else tuple((Item(Text(one)),) for one in atom.value)

    def _begins(self, items: Iterable[Item]) -> Points:
        """The characters that texts of the sequence begin with."""
        found: Points = frozenset()
        for item in items:
            if isinstance(item.atom, Rule):
                found |= self._first[item.atom.name]
            elif isinstance(item.atom, Text):
                found |= {(ord(item.atom.value[0]),) * 2}
            elif isinstance(item.atom, Characters):
                found |= frozenset(item.atom.ranges)
            if not self._may_be_empty((item,)):
                break
        return found

    def _may_be_empty(self, items: Iterable[Item]) -> bool:
        return all(not i.least or (isinstance(i.atom, Rule) and i.atom.name in self._nullable) for i in items)

    def _behind(self, productions: Productions) -> dict[Symbol, Points]:
        """The characters that may come behind each symbol, wherever it stands."""
        found: dict[Symbol, Points] = {}
        is_settled = False
        while not is_settled:
            is_settled = True
            for name, alternatives in productions.items():
                for parts in alternatives:
                    after = found.get(Rule(name), frozenset())
                    for symbols, least, most in reversed(parts):
                        items = [item for symbol in symbols for item in _items(symbol)]
                        own = self._begins(items)
                        following = after if most == 1 else after | own
                        for symbol in reversed(symbols):
                            if not following <= found.get(symbol, frozenset()):
                                found[symbol] = found.get(symbol, frozenset()) | following
                                is_settled = False
                            may_be_empty = self._may_be_empty(_items(symbol))
                            following = self._begins(_items(symbol)) | (following if may_be_empty else frozenset())
                        after = own | (after if not least or self._may_be_empty(items) else frozenset())
        return found

    def _greedy(self, productions: Productions) -> set[Lexeme]:
        """The lexemes that could also take text that belongs to what follows a shorter lexeme."""
        behind, lexemes = self._behind(productions), _lexemes(productions)
        long = [lexeme for lexeme in lexemes if not _is_character(lexeme)]
        new = [
            pair for short in lexemes if behind.get(short) for one in long
            if _overlap(self._begins(short), self._begins(one))
            and (pair := (short, behind[short], one)) not in self._checked
        ]  # fmt: skip
        self._checked |= set(new)
        return self._conflicting(long, new) if len(self._checked) <= _MOST_CHECKED else set(long)

    def _conflicting(self, long: list[Lexeme], pairs: list[Pair]) -> set[Lexeme]:
        """Those of the long lexemes for which one of these pairs conflicts; found by halving."""
        pairs = [pair for pair in pairs if pair[2] in long]
        if not pairs or not self._can_conflict(pairs):
            return set()
        if len(long) == 1:
            return set(long)
        half = len(long) // 2
        return self._conflicting(long[:half], pairs) | self._conflicting(long[half:], pairs)

    def _can_conflict(self, pairs: list[Pair]) -> bool:
        """Whether a pair conflicts: a text of the short lexeme, then a character that may follow it, is the beginning of a text
        of the long lexeme. llguidance can tell whether an intersection of regular expressions is empty."""
        names: dict[Lexeme, str] = {}
        for short, _, long in pairs:
            names.setdefault(short, f"L{len(names)}")
            names.setdefault(long, f"L{len(names)}")
        cases = [
            f"C{i}: (({names[short]} & /(?s:.)+/) {_class(behind)} /(?s:.)*/) & {names[long]}"
            for i, (short, behind, long) in enumerate(pairs)
        ]
        either = "C: " + " | ".join(f"C{i}" for i in range(len(cases)))
        lark = "\n".join(["start: C", either, *cases, *self._terminals(names)])
        return not compiler.is_empty(lark)

    def _terminals(self, names: dict[Lexeme, str]) -> list[str]:
        """The lines that define these lexemes, and the rules in them."""
        lines = [f"{name}: {self._regex(lexeme)}" for lexeme, name in names.items()]
        todo, done = list(names), set()
        while todo:
            for item in todo.pop():
                if isinstance(item.atom, Rule) and item.atom.name not in done:
                    done.add(item.atom.name)
                    alternatives = self._rules[item.atom.name]
                    lines.append(f"R{self._numbers[item.atom.name]}: {' | '.join(map(self._regex, alternatives))}")
                    todo += alternatives
        return lines

    def _regex(self, sequence: Sequence) -> str:
        return " ".join(self._atom(item.atom) + _times(item.least, item.most) for item in sequence) or '""'

    def _atom(self, atom: Text | Characters | Rule | Special) -> str:
        if isinstance(atom, Text):
            return json.dumps(atom.value)
        if isinstance(atom, Characters):
            return _class(atom.ranges)
        assert isinstance(atom, Rule)
        return f"R{self._numbers[atom.name]}"


def _items(symbol: Symbol) -> Sequence:
    return symbol if isinstance(symbol, tuple) else (Item(symbol),)


def _lexemes(productions: Productions) -> list[Lexeme]:
    every = (s for parts in productions.values() for one in parts for part in one for s in part[0])
    return list(dict.fromkeys(symbol for symbol in every if isinstance(symbol, tuple)))


def _is_character(lexeme: Lexeme) -> bool:
    """Whether every text of it is one character, so that nothing shorter is in it."""
    atom = lexeme[0].atom
    is_one = isinstance(atom, Characters) or (isinstance(atom, Text) and len(atom.value) == 1)
    return is_one and lexeme == (Item(atom),)


def _overlap(ranges: Points, others: Points) -> bool:
    return any(a <= high and low <= b for a, b in ranges for low, high in others)


def _class(ranges: Iterable[tuple[int, int]]) -> str:
    return "/[" + "".join(f"\\u{{{low:x}}}-\\u{{{high:x}}}" for low, high in ranges) + "]/"


def _times(least: int, most: int | None) -> str:
    usual = {(1, 1): "", (0, None): "*", (1, None): "+", (0, 1): "?"}
    return usual.get((least, most), f"{{{least},{'' if most is None else most}}}")
