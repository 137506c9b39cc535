"""Whether any finite text fits a grammar, and how deep it is nested: a grammar that always needs itself again would run on until
the answer is cut, and one nested too deep ends the process, because llguidance recurses.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection, Hashable, Iterable, Mapping
from typing import TypeVar

Name = TypeVar("Name", bound=Hashable)


def derivable(rules: Mapping[Name, Iterable[Collection[Name]]]) -> set[Name]:
    """The names for which some alternative needs only such names itself: the smallest such set. What is no rule needs nothing."""
    users: dict[Name, list[tuple[Name, list[int]]]] = defaultdict(list)
    found: set[Name] = set()
    todo: list[Name] = []
    for name, alternatives in rules.items():
        for needed in alternatives:
            needed = {one for one in needed if one in rules}
            n_missing = [len(needed)]
            for one in needed:
                users[one].append((name, n_missing))
            if not needed:
                todo.append(name)
    while todo:
        if (name := todo.pop()) in found:
            continue
        found.add(name)
        for user, n_missing in users[name]:
            n_missing[0] -= 1
            if not n_missing[0]:
                todo.append(user)
    return found


def depth(edges: Mapping[Name, Iterable[Name]], start: Name) -> int:
    """How many names deep the first walk through all that `start` needs goes, as a compiler takes it that visits each once."""
    deepest, seen = 0, {start}
    path = [iter(edges.get(start, ()))]
    while path:
        deepest = max(deepest, len(path))
        for name in path[-1]:
            if name in edges and name not in seen:
                seen.add(name)
                path.append(iter(edges[name]))
                break
        else:
            path.pop()
    return deepest


_LARK = re.compile(
    r"""(?P<blank>\s+|//[^\n]*|\#[^\n]*|->\s*\w+)
      | (?P<statement>%(?:ignore|import|declare|llguidance|override|extend)\b)
      | (?P<rule>[?!]*(?P<name>[A-Za-z_][\w-]*)(?:\[[^\]\n]*\])?(?:::\w+)?(?:\.\d+)?\s*:(?!:))
      | (?P<used>[A-Za-z_][\w-]*)
      | (?P<text>"(?:\\.|[^"\\])*"i?|/(?:\\.|[^/\\\n])+/[a-z]*|<[^>\n]*>|@[\w-]+)
      | (?P<inner>%\w+\s*(?=\{))
      | (?P<optional>[?*]|~\s*0\b(?:\s*\.\.\s*\d+)?|\{\s*0*\s*(?:,\s*\d*\s*)?\})
      | (?P<other>.)""",
    re.VERBOSE | re.DOTALL,
)
Alternatives = list[list[str]]


def lark_rules(text: str) -> dict[str, Alternatives]:
    """The names that each alternative of each rule needs; a group is a rule with a number for its name."""
    rules: dict[str, Alternatives] = {}
    current: Alternatives = [[]]
    outer: list[Alternatives] = []
    at = 0
    while found := _LARK.match(text, at):
        at, kind, value = found.end(), found.lastgroup, found[0]
        if kind == "name" or found["rule"]:
            current, outer = rules.setdefault(found["name"], []), []
            current.append([])
        elif kind == "statement":
            current, outer = [[]], []
        elif kind in ("used", "text"):
            current[-1].append(value)
        elif kind == "inner":
            at = _closed(text, at)
            current[-1].append("%")
        elif kind == "optional" and current[-1]:
            current[-1].append(f"?{current[-1].pop()}")
        elif value == "|":
            current.append([])
        elif value in "([":
            outer.append(current)
            current = [[]]
        elif value in ")]" and outer:
            group = f"{'?' * (value == ']')}{len(rules)}"
            rules[group.removeprefix("?")], current = current, outer.pop()
            current[-1].append(group)
    return rules


def _closed(text: str, at: int) -> int:
    """Behind the brace that closes the one here."""
    n_open = 0
    for found in re.compile(r'[{}]|"(?:\\.|[^"\\])*"').finditer(text, at):
        n_open += {"{": 1, "}": -1}.get(found[0], 0)
        if not n_open:
            return found.end()
    return len(text)
