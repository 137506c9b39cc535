"""How certain the target has been of its own last tokens: what shows, for nothing, how well a draft model will guess.

Where the target is certain a small model mostly says the same. Over 31 answers of a 1.5B model drafts of its 0.5B sibling were
worth 4 to 6 tokens a round in the most certain third of the positions and lost time in the least certain one, and the last
16 tokens' certainty told the two apart (correlation 0.56; 30 November 2026).
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from specllm.decoding.protocols import Sampler, Token

LEVELS = (-0.5, -0.3, -0.2, -0.12, -0.06, -0.02)  # nats, where one level ends and the next begins
_START = -0.25  # before anything was said
_RATE = 1 / 6  # of the moving average, per token looked at
_EVERY = 2  # tokens: a look costs some 0.05 ms, and a look at every other token tells as much
_LEAST = 1e-3  # a token less certain than that tells no more


class Certainty:
    """The moving average of the logarithm of the target's highest probability."""

    def __init__(self) -> None:
        self.begin()

    def begin(self) -> None:
        """Forgets the last answer."""
        self.value = _START

    @property
    def level(self) -> int:
        """0, quite uncertain, to len(LEVELS), nearly sure."""
        return bisect_right(LEVELS, self.value)

    def add(self, probability: float) -> None:
        self.value += _RATE * (math.log(max(probability, _LEAST)) - self.value)


class CertaintySampler:
    """Implements `protocols.Sampler`: picks what another one does, and looks how certain the target was."""

    def __init__(self, sampler: Sampler, certainty: Certainty) -> None:
        self._sampler = sampler
        self._certainty = certainty
        self._n_picked = 0

    def pick(self, logits: npt.NDArray[np.float32], context: Sequence[Token]) -> Token:
        token = self._sampler.pick(logits, context)
        self._n_picked += 1
        if self._n_picked % _EVERY == 0:  # behind the pick: it has brought the row into the processor's cache
            self._certainty.add(top_probability(logits, token))
        return token


def top_probability(row: npt.NDArray[np.float32], likely: Token) -> float:
    """The probability of the most likely token, from one row of logits.

    Taken among the tokens that are at most 10 nats less likely than `likely`, which spares looking for the highest first:
    a third of the time of a full softmax over 150,000 tokens.
    """
    near = row[row >= row[likely] - 10.0]
    return float(1.0 / np.exp(near - near.max()).sum())
