"""Picks the token that follows a context, as a pure function of (logits, context, seed).

No random stream is consumed. The randomness of a position is keyed: an integer hash of (seed, position, token) becomes
Gumbel noise g, and the sampled token is `argmax(log p + g)`, which has exactly the law p (Gumbel-max). The same seed so
gives the same text for every drafter and every draft length. A draft model that picks with the *same* noise agrees with
the target with probability at least (1 - TV)/(1 + TV) (Daliri, Musco, Suresh 2024, arXiv:2408.07978).

The chain is llama.cpp's default: logit bias, penalties, grammar mask, top-k, top-p, min-p, temperature, pick.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice

import numpy as np
import numpy.typing as npt

from specllm.config import SamplingConfig
from specllm.decoding.constraint import Constraint, is_allowed, masked
from specllm.decoding.protocols import Token
from specllm.errors import BackendError

Row = npt.NDArray[np.float32]  # (n_vocab,)
Floats = npt.NDArray[np.float64]
Ids = npt.NDArray[np.intp]

_DELTA, _LARGEST_DELTA = 8.0, 64.0  # nats below the highest logit: e^-8 of its weight

# splitmix64 (Steele, Lea, Flood 2014): the increment is 2^64 / golden ratio
_GOLDEN, _MIX_1, _MIX_2, _MASK = 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB, 2**64 - 1
# numpy's scalars, made once: making them costs as much as the arithmetic on forty candidates
_U1, _U11, _U27, _U30, _U31 = (np.uint64(n) for n in (1, 11, 27, 30, 31))
_UGOLDEN, _UMIX_1, _UMIX_2 = np.uint64(_GOLDEN), np.uint64(_MIX_1), np.uint64(_MIX_2)


def _splitmix64(x: int) -> int:
    x = (x + _GOLDEN) & _MASK
    x = ((x ^ (x >> 30)) * _MIX_1) & _MASK
    x = ((x ^ (x >> 27)) * _MIX_2) & _MASK
    return x ^ (x >> 31)


def gumbel_noise(seed: int, position: int, tokens: Ids) -> Floats:
    """Standard Gumbel noise for each of `tokens` at `position`: the same numbers for the same arguments, always."""
    x = tokens.astype(np.uint64)
    x += _U1
    x *= _UGOLDEN
    x += np.uint64(_splitmix64(seed ^ _splitmix64(position)))
    x ^= x >> _U30
    x *= _UMIX_1
    x ^= x >> _U27
    x *= _UMIX_2
    x ^= x >> _U31
    x >>= _U11
    u = (x + 0.5) * 2.0**-53  # in (0, 1), never an end of it
    noise: Floats = -np.log(-np.log(u))
    return noise


@dataclass(frozen=True, slots=True)
class Candidates:
    """The tokens that may be picked at one position, most probable first (equal ones by id)."""

    tokens: Ids  # (n,)
    logprobs: Floats  # (n,) of the distribution that is sampled, normalised over these tokens


class KeyedSampler:
    """Implements `protocols.Sampler`. Holds no state but its configuration.

    With a `constraint`, picks raise NothingAllowed where that leaves no token.
    """

    def __init__(self, config: SamplingConfig, constraint: Constraint | None = None) -> None:
        self.config = config
        self.constraint = constraint
        self._has_penalties = config.penalty_last_n != 0 and (
            config.repeat_penalty != 1.0 or config.frequency_penalty != 0.0 or config.presence_penalty != 0.0
        )
        # how far below the highest logit min-p ends
        self._min_p_delta = -math.log(config.min_p) if config.min_p > 0.0 else math.inf
        self._bias_tokens = np.array([token for token, _ in config.logit_bias], dtype=np.intp)
        self._bias_values = np.array([bias for _, bias in config.logit_bias], dtype=np.float32)

    def pick(self, logits: Row, context: Sequence[Token]) -> Token:
        if self.config.temperature == 0.0:
            return self._best(logits, context)
        tokens, values = self._survivors(logits, context)
        if len(tokens) > 1:  # adding noise to log probabilities or to logits: the same largest one
            values = values / self.config.temperature + gumbel_noise(self.config.seed, len(context), tokens)
        return int(tokens[np.argmax(values)])

    def candidates(self, logits: Row, context: Sequence[Token]) -> Candidates:
        """What survives the chain after `context`; at temperature 0 the one best token."""
        if self.config.temperature == 0.0:
            return Candidates(np.array([self._best(logits, context)], dtype=np.intp), np.zeros(1))
        tokens, values = self._survivors(logits, context)
        return Candidates(tokens, log_softmax(values / self.config.temperature))

    def allowed(self, logits: Row, context: Sequence[Token]) -> Row:
        """The row after logit bias, penalties and the grammar: what top-k and the other filters are given."""
        row = self.adjusted(logits, context)
        return row if self.constraint is None else masked(row, self.constraint.mask(context))

    def _best(self, logits: Row, context: Sequence[Token]) -> Token:
        """The token of the highest logit; of equal ones the first."""
        row = self.adjusted(logits, context)
        best = int(np.argmax(row))
        # Mostly the model wants what it may: then no mask needs to be laid over the row.
        if self.constraint is not None and logits[best] < math.inf:
            mask = self.constraint.mask(context)
            if not is_allowed(mask, best) or row[best] == -np.inf:
                best = int(np.argmax(masked(row, mask)))
        require_number(float(logits[best]))
        return best

    def _survivors(self, logits: Row, context: Sequence[Token]) -> tuple[Ids, Floats]:
        """The tokens that top-k, top-p and min-p leave, and their logits, highest first.

        Exact without sorting the vocabulary: only logits within `delta` of the highest are looked at. Each one below weighs
        at most exp(-delta), so it is known how much they could weigh together; where that could change the answer, delta
        is widened.
        """
        row = self.allowed(logits, context)
        k = min(self.config.top_k, len(row)) or len(row)
        best = int(row.argmax())
        require_number(float(logits[best]))
        highest = float(row[best])
        delta = _DELTA
        while True:
            tokens, values = ranked(row, highest - delta, k)
            unseen = (k - len(tokens)) * math.exp(-delta)
            fewest, most = self._n_kept(values, 0.0), self._n_kept(values, unseen)
            is_sure = fewest == most and (most < len(tokens) or not unseen)
            if delta == math.inf or (is_sure and (self._min_p_delta == math.inf or delta >= self._min_p_delta)):
                return tokens[:fewest], values[:fewest]
            delta = 2 * delta if delta < _LARGEST_DELTA else math.inf

    def _n_kept(self, values: Floats, unseen: float) -> int:
        """How many of the sorted logits top-p and min-p keep, where `unseen` is the weight below them (the first one's is 1)."""
        n = len(values)
        if self.config.top_p < 1.0:  # the fewest that make up top_p of the probability (Holtzman et al. 2020)
            cumulative = np.cumsum(np.exp(values - values[0]))
            n = int(np.searchsorted(cumulative, self.config.top_p * (cumulative[-1] + unseen))) + 1
        if self._min_p_delta < math.inf:
            n = min(n, int(np.searchsorted(-values, self._min_p_delta - values[0], side="right")))
        return min(n, len(values) + (unseen > 0))

    def adjusted(self, logits: Row, context: Sequence[Token]) -> Row:
        """The row after logit bias and penalties: the row itself where there are none, else a copy."""
        if not len(self._bias_tokens) and not self._has_penalties:
            return logits
        row = logits.copy()
        if len(self._bias_tokens):
            known = self._bias_tokens < len(row)
            with np.errstate(invalid="ignore"):  # +inf with -inf added: NaN, which is told like any other
                np.add.at(row, self._bias_tokens[known], self._bias_values[known])
        if self._has_penalties:
            self._penalize(row, context)
        return row

    def _penalize(self, row: Row, context: Sequence[Token]) -> None:
        config = self.config
        start = 0 if config.penalty_last_n < 0 else max(0, len(context) - config.penalty_last_n)
        counts = Counter(islice(context, start, None) if start == 0 else context[start:])
        for token in [
            token for token in counts if token >= len(row)
        ]:  # a draft model may have fewer rows than the target
            del counts[token]
        tokens = np.fromiter(counts.keys(), dtype=np.intp, count=len(counts))
        n = np.fromiter(counts.values(), dtype=np.float32, count=len(counts))
        values = row[tokens]
        values = np.where(values > 0, values / config.repeat_penalty, values * config.repeat_penalty)
        row[tokens] = values - n * config.frequency_penalty - config.presence_penalty


def require_number(highest: float) -> None:
    """Raises BackendError where the highest logit of a row is no number.

    numpy takes NaN for the largest of all, so the highest one tells about the whole row.
    """
    if not math.isfinite(highest):
        raise BackendError(
            f"the model computes no numbers here ({highest}): its file is damaged, or llama.cpp miscalculates it",
            "check the file with `specllm models verify`; then try --gpu-layers 0, --kv-type f16 or --flash-attention off",
        )


def ranked(row: Row, threshold: float, k: int) -> tuple[Ids, Floats]:
    """The (at most k highest) finite logits from `threshold` up, highest first, equal ones by id."""
    tokens = np.flatnonzero(row >= threshold) if threshold > -math.inf else np.flatnonzero(row > -np.inf)
    values = row[tokens].astype(np.float64)
    if len(tokens) > 4 * k:  # a flat row: cut down to the k highest (and their equals) before sorting
        least = np.partition(values, len(values) - k)[len(values) - k]
        tokens, values = tokens[values >= least], values[values >= least]
    order = np.argsort(-values, kind="stable")[:k]
    return tokens[order], values[order]


def log_softmax(values: Floats) -> Floats:
    shifted = values - values.max()
    result: Floats = shifted - np.log(np.exp(shifted).sum())
    return result
