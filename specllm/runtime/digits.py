"""Bounds the length of the numbers in a JSON answer. JSON itself has no bound, and a model can write digits without end.

Every number that programs write is still allowed. The most digits for a 64-bit float are JavaScript's (ECMAScript,
Number::toString): 21 before the point, 22 after it (5 zeros and 17 digits), 3 in the exponent. 64-bit integers have 20 digits.
Strings are not bounded: there, any length can be the right answer.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from decimal import Decimal

import numpy as np

from specllm.decoding.constraint import Mask, is_allowed
from specllm.decoding.protocols import Token

# Where in the answer we are: outside of strings and numbers, in a string, after a backslash in it, in a part of a number.
OUTSIDE, TEXT, ESCAPED, INTEGER, FRACTION, EXPONENT = range(6)
State = tuple[int, int]  # one of these, and the digits of this part so far
START: State = (OUTSIDE, 0)
_RUN = re.compile(rb"[0-9]+")


class DigitRuns:
    """The digits in the tokens of a vocabulary."""

    def __init__(self, pieces: Sequence[bytes]) -> None:
        self.pieces = pieces
        # For each token: how many digits it begins with, and how long its longest run of digits after something else is.
        self.n_leading = np.zeros(len(pieces), dtype=np.int32)
        self.n_inner = np.zeros(len(pieces), dtype=np.int32)
        for token, piece in enumerate(pieces):
            for run in _RUN.finditer(piece):
                runs = self.n_inner if run.start() else self.n_leading
                runs[token] = max(runs[token], run.end() - run.start())


class Digits:
    """Tells which tokens would make a number too long in an answer that is JSON."""

    def __init__(self, runs: DigitRuns, schema: str) -> None:
        """A number in the schema that is longer than a bound raises the bound."""
        self._runs = runs
        numbers: list[str] = []
        json.loads(schema, parse_int=numbers.append, parse_float=numbers.append)
        exponents = [(Decimal(number).adjusted(), int(Decimal(number).as_tuple().exponent)) for number in numbers]
        self._most = {
            INTEGER: max([21, *(leading + 1 for leading, _ in exponents)]),
            FRACTION: max([22, *(1 - last for _, last in exponents)]),
            EXPONENT: 3,
        }

    def behind(self, state: State, token: Token) -> tuple[State, bool]:
        """The state after the token, and whether the token makes a number too long."""
        where, n_digits = state
        is_too_long = False
        for byte in self._runs.pieces[token]:
            if where == ESCAPED:
                where = TEXT
            elif byte == 0x22:  # "
                where, n_digits = (OUTSIDE if where == TEXT else TEXT), 0
            elif where == TEXT:
                where = ESCAPED if byte == 0x5C else TEXT  # a backslash
            elif 0x30 <= byte <= 0x39:
                where, n_digits = (INTEGER, 1) if where == OUTSIDE else (where, n_digits + 1)
                is_too_long |= n_digits > self._most[where]
            elif byte == 0x2E and where == INTEGER:  # .
                where, n_digits = FRACTION, 0
            elif byte in b"eE" and where in (INTEGER, FRACTION):
                where, n_digits = EXPONENT, 0
            elif not (byte in b"+-" and where == EXPONENT and not n_digits):
                where, n_digits = OUTSIDE, 0
        return (where, n_digits), is_too_long

    def too_long(self, state: State, mask: Mask) -> list[Token]:
        """The tokens allowed by the mask that would make a number too long here."""
        where, n_digits = state
        if where in (TEXT, ESCAPED):
            return []
        n_left = self._most.get(where, self._most[INTEGER]) - n_digits
        suspects = np.flatnonzero((self._runs.n_leading > n_left) | (self._runs.n_inner > self._most[EXPONENT]))
        return [token for token in suspects.tolist() if is_allowed(mask, token) and self.behind(state, token)[1]]
