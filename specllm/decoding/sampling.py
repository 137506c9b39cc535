"""Picks the token that follows a context, as a pure function of (logits, context, seed).

No random stream is consumed. The randomness of a position is keyed: an integer hash of (seed, position, token) becomes
Gumbel noise g, and the sampled token is `argmax(log p + g)`, which has exactly the law p (Gumbel-max). The same seed so
gives the same text for every drafter and every draft length. A draft model that picks with the *same* noise agrees with
the target with probability at least (1 - TV)/(1 + TV) (Daliri, Musco, Suresh 2024, arXiv:2408.07978).

The chain is llama.cpp's default: logit bias, penalties, top-k, top-p, min-p, temperature, pick.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice

import numpy as np
import numpy.typing as npt

from specllm.config import SamplingConfig
from specllm.decoding.protocols import Token

Row = npt.NDArray[np.float32]  # (n_vocab,)
Floats = npt.NDArray[np.float64]
Ids = npt.NDArray[np.intp]

_GOLDEN = 0x9E3779B97F4A7C15  # splitmix64's increment, 2^64 / golden ratio (Steele, Lea, Flood 2014)
_MASK = 2**64 - 1


def _splitmix64(x: int) -> int:
    x = (x + _GOLDEN) & _MASK
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & _MASK
    return x ^ (x >> 31)


def gumbel_noise(seed: int, position: int, tokens: Ids) -> Floats:
    """Standard Gumbel noise for each of `tokens` at `position`: the same numbers for the same three arguments, always."""
    key = _splitmix64(seed ^ _splitmix64(position))
    x = np.uint64(key) + (tokens.astype(np.uint64) + np.uint64(1)) * np.uint64(_GOLDEN)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    x = x ^ (x >> np.uint64(31))
    u = ((x >> np.uint64(11)).astype(np.float64) + 0.5) * 2.0**-53  # in (0, 1), never an end of it
    noise: Floats = -np.log(-np.log(u))
    return noise


@dataclass(frozen=True, slots=True)
class Candidates:
    """The tokens that may be picked at one position, most probable first (equal ones by id)."""

    tokens: Ids  # (n,)
    logprobs: Floats  # (n,) of the distribution that is sampled, normalised over these tokens


class KeyedSampler:
    """Implements `protocols.Sampler`. Holds no state but its configuration."""

    def __init__(self, config: SamplingConfig) -> None:
        self.config = config
        self._has_penalties = config.penalty_last_n != 0 and (
            config.repeat_penalty != 1.0 or config.frequency_penalty != 0.0 or config.presence_penalty != 0.0
        )
        self._bias_tokens = np.array([token for token, _ in config.logit_bias], dtype=np.intp)
        self._bias_values = np.array([bias for _, bias in config.logit_bias], dtype=np.float32)

    def pick(self, logits: Row, context: Sequence[Token]) -> Token:
        if self.config.temperature == 0.0:
            return int(np.argmax(self.adjusted(logits, context)))
        candidates = self.candidates(logits, context)
        if len(candidates.tokens) == 1:
            return int(candidates.tokens[0])
        noise = gumbel_noise(self.config.seed, len(context), candidates.tokens)
        return int(candidates.tokens[np.argmax(candidates.logprobs + noise)])

    def candidates(self, logits: Row, context: Sequence[Token]) -> Candidates:
        """What survives the chain after `context`; at temperature 0 the one best token."""
        config = self.config
        row = self.adjusted(logits, context)
        if config.temperature == 0.0:
            return Candidates(np.array([np.argmax(row)], dtype=np.intp), np.zeros(1))
        tokens, values = top_k(row, config.top_k)
        if config.top_p < 1.0:
            n = _nucleus_size(values, config.top_p)
            tokens, values = tokens[:n], values[:n]
        if config.min_p > 0.0:
            n = int(np.count_nonzero(values >= values[0] + np.log(config.min_p)))
            tokens, values = tokens[:n], values[:n]
        return Candidates(tokens, log_softmax(values / config.temperature))

    def adjusted(self, logits: Row, context: Sequence[Token]) -> Row:
        """The row after logit bias and penalties: the row itself where there are none, else a copy."""
        if not len(self._bias_tokens) and not self._has_penalties:
            return logits
        row = logits.copy()
        if len(self._bias_tokens):
            known = self._bias_tokens < len(row)
            np.add.at(row, self._bias_tokens[known], self._bias_values[known])
        if self._has_penalties:
            self._penalize(row, context)
        return row

    def _penalize(self, row: Row, context: Sequence[Token]) -> None:
        config = self.config
        start = 0 if config.penalty_last_n < 0 else max(0, len(context) - config.penalty_last_n)
        counts = Counter(islice(context, start, None) if start == 0 else context[start:])
        for token in [token for token in counts if token >= len(row)]:  # a draft model may have fewer rows than the target
            del counts[token]
        tokens = np.fromiter(counts.keys(), dtype=np.intp, count=len(counts))
        n = np.fromiter(counts.values(), dtype=np.float32, count=len(counts))
        values = row[tokens]
        values = np.where(values > 0, values / config.repeat_penalty, values * config.repeat_penalty)
        row[tokens] = values - n * config.frequency_penalty - config.presence_penalty


def top_k(row: Row, k: int) -> tuple[Ids, Floats]:
    """The k highest logits of a row, highest first, equal ones by id; all finite ones for k = 0.

    Exact without sorting the vocabulary: only values above `max - delta` are sorted, and delta is widened until at least
    k of them stand above it.
    """
    highest = float(np.max(row))
    n_wanted = min(k, len(row)) if k else len(row)
    delta = 8.0 if k else np.inf
    while True:
        tokens = np.flatnonzero(row >= highest - delta) if delta < np.inf else np.flatnonzero(row > -np.inf)
        if len(tokens) >= n_wanted or delta == np.inf:
            break
        delta = delta * 2 if delta < 256 else np.inf
    values = row[tokens].astype(np.float64)
    if len(tokens) > 4 * n_wanted:  # a flat row: cut down to the wanted ones (and their equals) before sorting
        threshold = np.partition(values, len(values) - n_wanted)[len(values) - n_wanted]
        tokens, values = tokens[values >= threshold], values[values >= threshold]
    order = np.argsort(-values, kind="stable")[:n_wanted]
    return tokens[order], values[order]


def log_softmax(values: Floats) -> Floats:
    shifted = values - values.max()
    result: Floats = shifted - np.log(np.exp(shifted).sum())
    return result


def _nucleus_size(values: Floats, top_p: float) -> int:
    """How many of the sorted logits make up at least `top_p` of their probability (Holtzman et al. 2020)."""
    cumulative = np.cumsum(np.exp(log_softmax(values)))
    return min(len(values), int(np.searchsorted(cumulative, top_p, side="left")) + 1)
