"""Proposes the text that the answer is expected to resemble: the file that is edited, a predicted output.

A pointer walks through the reference while the answer copies it. Where the answer parts from it, the pointer is set anew to
where the end of the answer stands in the reference, preferring places a little behind the one it was lost at: there the
text goes on after an insertion, a deletion or a replacement. What replaced what is kept: a name changed once is drafted as
changed from then on. Older ideas of this kind: speculative edits (Cursor, 2024), predicted outputs (OpenAI, 2024).
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import NamedTuple

from specllm.decoding.protocols import EMPTY_DRAFT, Draft, Round, Token

# Evidence: how many tokens agreed in front of this one, near the place where the reference was left or far from it, or that a
# learned substitution put it there. The chances are what is believed at first; measured on 42 whole-file edits from real
# histories (29 November 2026), where 0.5 % of the tokens begin a change and changes come in groups.
AGREED_STEPS = (1, 2, 3, 4, 5, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384)
_STEP_OF = tuple(bisect_right(AGREED_STEPS, n) for n in range(AGREED_STEPS[-1]))
_FAR = 0
_NEAR = len(AGREED_STEPS)
_SUBSTITUTED = 2 * _NEAR + 1
_FAR_CHANCES = (0.35, 0.35, 0.5, 0.8, 0.85, 0.88, 0.9, 0.95, 0.97, 0.985, 0.99, *[0.995] * 7)
_NEAR_CHANCES = (0.4, 0.4, 0.7, 0.85, 0.92, 0.94, 0.95, 0.96, 0.97, 0.985, 0.99, 0.992, 0.994, 0.996, *[0.998] * 4)
REFERENCE_PRIOR = {
    **dict(zip(range(_FAR + 1, _NEAR + 1), _FAR_CHANCES, strict=True)),
    **dict(zip(range(_NEAR + 1, _SUBSTITUTED), _NEAR_CHANCES, strict=True)),
    _SUBSTITUTED: 0.5,
}

_BEGINNING = 4  # agreeing tokens that the beginning of the answer is worth
_SURE = 16  # tokens that agreed; from there on nobody looks for a better place
_WINDOW = 100  # tokens of the reference that a change may skip
_BONUS = 4.0  # agreeing tokens that the nearest place is worth
_MOST_PLACES = 256  # that are compared, nearest first: text like "\n\n\n" must not cost O(n) a round
_LONGEST = 32  # agreement longer than this is no better
_CONFIRMED = 3  # tokens that agree behind a change before it counts as a substitution
_MOST_REPLACED, _MOST_REPLACING = 8, 16  # tokens


class _Step(NamedTuple):
    """The next token of the edited reference, and where one stands behind it."""

    token: Token
    pointer: int
    pending: tuple[Token, ...]  # what is still to come of a substitution
    is_substituted: bool


class ReferenceDrafter:
    """Implements `protocols.Drafter`. The reference stays the same for all requests."""

    name = "reference"

    def __init__(self, reference: Sequence[Token]) -> None:
        self._reference = tuple(reference)
        self._places: dict[Token, list[int]] = defaultdict(list)  # behind each token, ascending
        for i, token in enumerate(self._reference):
            self._places[token].append(i + 1)

    def begin(self, context: Sequence[Token]) -> None:
        self._n_seen = len(context)
        start = self._n_begun(context)
        self._n_prompt = len(context) - start  # where the answer begins
        self._pointer = start  # where the reference goes on, if it does
        self._pending: tuple[Token, ...] = ()
        self._agreed = start + _BEGINNING  # tokens in front of the pointer that the answer agrees with
        self._is_near = True
        self._left_at = start  # the pointer where the answer parted from the reference
        self._parted_at: int | None = None  # and where in the context; None where no change is open
        self._substitutions = _Substitutions(self._reference)

    def propose(self, context: Sequence[Token], k: int) -> Draft:
        for position in range(self._n_seen, len(context)):
            self._follow(context[position], position)
        self._n_seen = len(context)
        if self._agreed < _SURE and not self._pending and len(context) > self._n_prompt:
            self._anchor(context)
        if self._parted_at is not None and self._agreed >= _CONFIRMED and self._is_near:
            self._learn(context, self._parted_at)
        if not self._agreed:  # in the middle of something new
            return EMPTY_DRAFT
        if not self._pending and not self._substitutions:
            tokens = self._reference[self._pointer : self._pointer + k]
            return Draft(tokens, self.name, self._classes(len(tokens))) if tokens else EMPTY_DRAFT
        steps = list(islice(self._steps(), k))
        classes = self._classes(len(steps))
        evidence = (_SUBSTITUTED if step.is_substituted else known for step, known in zip(steps, classes, strict=True))
        return Draft(tuple(step.token for step in steps), self.name, tuple(evidence)) if steps else EMPTY_DRAFT

    def observe(self, round: Round) -> None:
        """Nothing to learn: the committed tokens are read from the context."""

    def _n_begun(self, context: Sequence[Token]) -> int:
        """How many of the reference's first tokens the context ends with: the answer was begun for the model."""
        for n in range(min(len(context), len(self._reference), _LONGEST), 0, -1):
            if tuple(context[-n:]) == self._reference[:n]:
                return n
        return 0

    def _classes(self, n: int) -> tuple[int, ...]:
        """The evidence of the next `n` tokens, each behind one more that agreed."""
        base = _NEAR if self._is_near else _FAR
        known = tuple(base + step for step in _STEP_OF[self._agreed : self._agreed + n])
        return known + (base + len(AGREED_STEPS),) * (n - len(known))

    def _steps(self) -> Iterator[_Step]:
        """The reference from the pointer on, with what was learned applied."""
        pointer, pending = self._pointer, self._pending
        while pending or pointer < len(self._reference):
            if pending:
                step = _Step(pending[0], pointer, pending[1:], True)
            elif found := self._substitutions.at(pointer):
                old, new = found
                step = _Step(new[0], pointer + len(old), new[1:], True)
            else:
                step = _Step(self._reference[pointer], pointer + 1, (), False)
            yield step
            pointer, pending = step.pointer, step.pending

    def _follow(self, token: Token, position: int) -> None:
        """Moves the pointer over a committed token, or notes that the answer parts from the reference."""
        step = next(self._steps(), None)
        if step and step.is_substituted and step.token != token:
            self._substitutions.forget(self._pointer, self._pending)
            self._pending = ()
            step = next(self._steps(), None)
        if step and step.token == token:
            self._pointer, self._pending = step.pointer, step.pending
            self._agreed += 1
            self._is_near = self._is_near or self._agreed >= _SURE
            return
        if self._is_near and (self._agreed >= _CONFIRMED or self._parted_at is None):
            self._left_at, self._parted_at = self._pointer, position
        self._agreed = 0

    def _anchor(self, context: Sequence[Token]) -> None:
        """Sets the pointer to the place whose preceding tokens agree best with the end of the answer."""
        reference, n_answer = self._reference, len(context) - self._n_prompt
        best_score, best, best_agreed = 0.0, self._left_at, 0
        for place in self._nearest(context[-1]):
            agreed, most = 1, min(place, n_answer, _LONGEST)
            while agreed < most and reference[place - 1 - agreed] == context[-1 - agreed]:
                agreed += 1
            ahead = place - self._left_at
            score = agreed + (_BONUS * (1 - ahead / _WINDOW) if 0 <= ahead <= _WINDOW else 0.0)
            score += 0.5 * (place == self._pointer)
            if score > best_score:
                best_score, best, best_agreed = score, place, agreed
        if best != self._pointer or best_agreed > self._agreed:
            self._pointer, self._agreed = best, best_agreed
            self._is_near = 0 <= best - self._left_at <= _WINDOW

    def _nearest(self, token: Token) -> list[int]:
        """The places behind `token` around the one that was left, most of them after it."""
        places = self._places.get(token, [])
        if len(places) <= _MOST_PLACES:
            return places
        first = bisect_left(places, self._left_at) - _MOST_PLACES // 4
        first = max(0, min(first, len(places) - _MOST_PLACES))
        return places[first : first + _MOST_PLACES]

    def _learn(self, context: Sequence[Token], parted_at: int) -> None:
        """The change that has just ended, as a substitution."""
        old_end, new_end = self._pointer - self._agreed, len(context) - self._agreed
        overlap = max(self._left_at - old_end, parted_at - new_end, 0)  # the agreement reaches back over the change
        old = self._reference[self._left_at : old_end + overlap]
        new = tuple(context[parted_at : new_end + overlap])
        self._parted_at = None
        if 0 < len(old) <= _MOST_REPLACED and 0 < len(new) <= _MOST_REPLACING:
            self._substitutions.learn(old, new)


class _Substitutions:
    """What replaced what, by the tokens that were replaced; the newest wins."""

    def __init__(self, reference: tuple[Token, ...]) -> None:
        self._reference = reference
        self._new: dict[tuple[Token, ...], tuple[Token, ...]] = {}
        self._by_first: dict[Token, list[tuple[Token, ...]]] = defaultdict(list)
        self._refuted: set[tuple[Token, ...]] = set()

    def __bool__(self) -> bool:
        return bool(self._new)

    def at(self, pointer: int) -> tuple[tuple[Token, ...], tuple[Token, ...]] | None:
        """(old, new) where the reference holds `old` at `pointer`."""
        for old in self._by_first.get(self._reference[pointer], ()):
            if self._reference[pointer : pointer + len(old)] == old:
                return old, self._new[old]
        return None

    def learn(self, old: tuple[Token, ...], new: tuple[Token, ...]) -> None:
        if old in self._refuted:
            return
        if old not in self._new:
            self._by_first[old[0]].append(old)
        self._new[old] = new

    def forget(self, pointer: int, pending: tuple[Token, ...]) -> None:
        """The one that was drafted at `pointer` (or, where some of it is `pending`, in front of it) was wrong."""
        for old, new in list(self._new.items()):
            start = pointer - len(old) if pending else pointer
            is_there = start >= 0 and self._reference[start : start + len(old)] == old
            if is_there and (not pending or new[-len(pending) :] == pending):
                del self._new[old]
                self._by_first[old[0]].remove(old)
                self._refuted.add(old)
                return
