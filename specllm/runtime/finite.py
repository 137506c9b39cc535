"""Two questions about the rules of a grammar: does any finite text fit, and how deep are the rules nested?

With a rule that always needs itself again an answer goes on until it is cut. Rules that are nested too deep overflow the stack
of llguidance's compiler.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection, Hashable, Iterable, Mapping
from typing import TypeVar

Name = TypeVar("Name", bound=Hashable)


def derivable(rules: Mapping[Name, Iterable[Collection[Name]]]) -> set[Name]:
    """The rules from which a finite text can be derived: those with an alternative in which every rule is such a rule. Names
    without a rule need nothing."""
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
    """How deep a depth-first walk from `start` gets that visits each name once, which is how the compiler recurses."""
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
    """The rules of a Lark grammar: for each alternative, what it is made of. What may be left out begins with `?`. A group in
    parentheses is a rule of its own, named by a number."""
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
    """The position after the brace that closes the one at `at`."""
    n_open = 0
    for found in re.compile(r'[{}]|"(?:\\.|[^"\\])*"').finditer(text, at):
        n_open += {"{": 1, "}": -1}.get(found[0], 0)
        if not n_open:
            return found.end()
    return len(text)
