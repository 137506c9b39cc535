"""How likely each committed token was, and what else could have stood in its place.

Of two distributions: `raw` is the softmax of the model's logits as they are; `sampled` is the one the token was drawn from, after
bias, penalties, grammar, filters and temperature. At temperature 0 that one has a single token, so its log probability is 0.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, Self

import numpy as np
import numpy.typing as npt

from specllm.decoding.protocols import Sampler, Token
from specllm.decoding.sampling import Candidates, Row, ranked


@dataclass(frozen=True, slots=True)
class Ranking:
    """Natural logarithms of probabilities in one distribution."""

    logprob: float  # of the committed token; -inf where the distribution does not have it
    best: tuple[tuple[Token, float], ...]  # the most probable tokens with theirs, the committed one among them or not

    @classmethod
    def of_row(cls, row: Row, token: Token, n_best: int) -> Self:
        """In the softmax of a row of logits (n_vocab,), summed in float64."""
        highest = float(row.max())
        log_total = highest + math.log(float(np.exp(row.astype(np.float64) - highest).sum()))
        n = min(n_best, len(row))
        tokens, values = ranked(row, float(np.partition(row, len(row) - n)[len(row) - n]), n) if n else ((), ())
        best = tuple((int(one), float(value) - log_total) for one, value in zip(tokens, values, strict=True))
        return cls(float(row[token]) - log_total, best)

    @classmethod
    def of_candidates(cls, candidates: Candidates, token: Token, n_best: int) -> Self:
        """Among the candidates that the sampler's filters left."""
        of_token = candidates.logprobs[candidates.tokens == token]
        pairs = zip(candidates.tokens[:n_best].tolist(), candidates.logprobs[:n_best].tolist(), strict=True)
        return cls(float(of_token[0]) if len(of_token) else -math.inf, tuple(pairs))


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    token: Token
    raw: Ranking
    sampled: Ranking


class RankingSampler(Sampler, Protocol):
    """A sampler that can say what it picks from."""

    def candidates(self, logits: npt.NDArray[np.float32], context: Sequence[Token]) -> Candidates: ...


class LogprobSampler:
    """Implements `protocols.Sampler`: picks what another one does, and keeps how likely that was.

    The loop commits what it picks, so there is one record for every committed token: that of its own position, whoever drafted
    it. A position that is picked again (an answer after another one) replaces its record.
    """

    def __init__(self, inner: RankingSampler, n_best: int) -> None:
        self._inner = inner
        self._n_best = n_best
        self._by_position: dict[int, TokenLogprobs] = {}

    def pick(self, logits: Row, context: Sequence[Token]) -> Token:
        token = self._inner.pick(logits, context)
        self._by_position[len(context)] = TokenLogprobs(
            token,
            Ranking.of_row(logits, token, self._n_best),
            Ranking.of_candidates(self._inner.candidates(logits, context), token, self._n_best),
        )
        return token

    def kept(self, start: int, end: int) -> list[TokenLogprobs]:
        """Those of the context's tokens from `start` up to `end`."""
        return [self._by_position[position] for position in range(start, end)]
