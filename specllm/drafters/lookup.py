"""Proposes what followed the longest suffix of the context that stood somewhere before (prompt included).

Prompt lookup (Saxena 2023) with any match length, found in a suffix automaton (Blumer et al. 1985) that grows with the
context: a token costs the same at position 100 and at 100,000.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence
from itertools import cycle, islice

from specllm.decoding.protocols import EMPTY_DRAFT, Draft, Round, Token

# Evidence: the tokens of context that matched before this one. Behind m matched tokens and i accepted ones it is m + i.
MATCH_STEPS = (1, 2, 3, 4, 5, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128)
# What is believed before anything is seen on this machine, by kind of text. Measured on 106 answers of a 1.5B model (30 November
# 2026), at 3, 4, 5, 6, 8, 12 and 16 matched tokens: 0.58, 0.62, 0.63, 0.71, 0.80, 0.78, 0.83 behind questions, and 0.67, 0.80,
# 0.79, 0.89, 0.98, 1.00, 0.99 behind code; taken a little lower, because a wrong draft costs more than a missed one.
_CHANCES = {
    "prose": (0.2, 0.3, 0.45, 0.55, 0.6, 0.7, 0.8, 0.87, 0.9, 0.93, 0.95, 0.96, 0.97, 0.98, 0.98),
    "code": (0.2, 0.3, 0.55, 0.7, 0.75, 0.85, 0.93, 0.95, 0.96, 0.97, 0.97, 0.98, 0.98, 0.98, 0.98),
}
MATCH_PRIOR = {kind: dict(enumerate(chances, start=1)) for kind, chances in _CHANCES.items()}
MATCH_WEIGHT = 6.0  # observations that it counts for
# Forwards that lookups may lose in an answer before they gain. Prose mostly repeats nothing; in code a hit soon pays for misses,
# and eight are as good as no bound (simulated on 40 HumanEval answers: 1.98 of plain decoding, without credit 1.93).
MATCH_CREDIT = {"prose": 0.0, "code": math.inf}

# How many shorter suffixes learn that they occurred here too. Without a bound, text like "aaaa" costs O(n) a token.
_MAX_NEWEST_UPDATES = 64


class SuffixIndex:
    """An online suffix automaton over tokens.

    A state stands for a set of substrings that end at the same positions; `_length` is its longest, `_link` the state of
    the longest suffix that occurs elsewhere too.
    """

    def __init__(self) -> None:
        self.tokens: list[Token] = []
        self._next: list[dict[Token, int]] = [{}]
        self._link: list[int] = [-1]
        self._length: list[int] = [0]
        self._newest: list[int] = [-1]  # position of the last token of the newest occurrence seen
        self._last = 0  # the state of the whole text
        self.match_length = 0  # of the longest suffix that also stands earlier
        self.match_end = -1  # the position of its last token, in the newest earlier occurrence

    def append(self, token: Token) -> None:
        """Adds one token and updates the match."""
        position = len(self.tokens)
        self.tokens.append(token)
        current = self._new_state(self._length[self._last] + 1, {}, -1)
        state = self._last
        while state != -1 and token not in self._next[state]:
            self._next[state][token] = current
            state = self._link[state]
        self._link[current] = 0 if state == -1 else self._split(state, token)
        self._last = current
        self._update_match(current, position)

    def _split(self, state: int, token: Token) -> int:
        """The state that stands for exactly `state`'s longest substring followed by `token`; made where it is missing."""
        following = self._next[state][token]
        if self._length[following] == self._length[state] + 1:
            return following
        clone = self._new_state(self._length[state] + 1, dict(self._next[following]), self._newest[following])
        self._link[clone] = self._link[following]
        self._link[following] = clone
        while state != -1 and self._next[state].get(token) == following:
            self._next[state][token] = clone
            state = self._link[state]
        return clone

    def _update_match(self, current: int, position: int) -> None:
        match = self._link[current]
        self.match_length = self._length[match]
        self.match_end = self._newest[match]
        state = current
        for _ in range(_MAX_NEWEST_UPDATES):
            if state <= 0:
                break
            self._newest[state] = position
            state = self._link[state]

    def _new_state(self, length: int, following: dict[Token, int], newest: int) -> int:
        self._next.append(following)
        self._link.append(-1)
        self._length.append(length)
        self._newest.append(newest)
        return len(self._length) - 1


def match_class(n_matched: int) -> int:
    """The evidence class of a token behind that many matched ones, 1 .. len(MATCH_STEPS)."""
    return bisect_right(MATCH_STEPS, n_matched)


_CLASSES = tuple(match_class(n) for n in range(2 * MATCH_STEPS[-1]))  # by matched tokens


def match_evidence(n_matched: int, k: int) -> tuple[int, ...]:
    """Of `k` tokens one behind the other, the first of them behind that many matched ones."""
    start = min(n_matched, MATCH_STEPS[-1])
    known = _CLASSES[start : start + k]
    return known + _CLASSES[-1:] * (k - len(known))


class LookupDrafter:
    """Implements `protocols.Drafter`. Needs no model and knows one request at a time."""

    name = "lookup"

    def __init__(self, min_match: int) -> None:
        self._min_match = min_match
        self._index = SuffixIndex()

    @property
    def match_length(self) -> int:
        """Tokens of the context's end that the last proposal had found earlier: the evidence it rested on."""
        return self._index.match_length

    def begin(self, context: Sequence[Token]) -> None:
        self._index = SuffixIndex()

    def propose(self, context: Sequence[Token], k: int) -> Draft:
        index = self._index
        for position in range(len(index.tokens), len(context)):
            index.append(context[position])
        if not k or index.match_length < self._min_match:
            return EMPTY_DRAFT
        start = index.match_end + 1
        # As in LZ77 a copy may run into its own output: what stands between the match and the end is then a period.
        tokens = tuple(islice(cycle(index.tokens[start : start + k]), k))
        return Draft(tokens, self.name, match_evidence(index.match_length, k))

    def observe(self, round: Round) -> None:
        """Nothing to learn: the committed tokens are read from the context."""
