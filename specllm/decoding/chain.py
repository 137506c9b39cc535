"""How far to let a draft model go on, where only its confidence tells whether its next token will be accepted.

Before each of the draft model's forwards nobody knows how confident it will be; afterwards its token may be dropped, kept as
the last one, or kept and followed by another. With the shares of the classes of confidence and their chances known, the best
way to decide is found by dynamic programming from the longest draft back, over the draft's length and the chance that all of
it will be accepted. What a round promises under it is (expected tokens) / (expected seconds); the rate that the time is
valued at is raised to that until both agree (Dinkelbach's way to maximise a ratio).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from specllm.decoding.cost import Floats

LONGEST = 32  # tokens that are planned for; nothing longer was ever worth its forwards
_STEP = 0.04  # of the grid, in nats of the chance that all of a draft is accepted
_GRID = np.exp(-_STEP * np.arange(97))  # from 1 down to 0.02
# Between two of its points, as a part of the upper one's chance: what is to come is linear in the chance, not in nats.
_CELL = -math.expm1(-_STEP)
_ROUNDS = 4
_AGREED = 0.001  # of the rate


class Chain:
    """The best way to draft at one moment; `rate` is what it promises, in tokens per second.

    `curve[n]` is what verifying `n` drafted tokens costs and `token_s` what drafting one does, in seconds; `chances` and
    `shares` (n_classes,) say how often a token of each class is accepted and how often one comes up. `rate` to begin with is
    at least that of plain decoding.
    """

    def __init__(self, curve: Floats, token_s: float, chances: Floats, shares: Floats, rate: float) -> None:
        self.n_max = min(LONGEST, len(curve) - 1)
        self._curve, self._token_s, self._chances, self._shares = curve, token_s, chances, shares
        place = np.minimum(np.arange(len(_GRID))[:, None] - np.log(chances)[None] / _STEP, len(_GRID) - 1.001)
        self._below = place.astype(int)  # (n_grid, n_classes): where on the grid one stands with one more token
        self._fraction = -np.expm1(-_STEP * (place - self._below)) / _CELL
        for _ in range(_ROUNDS):
            tokens, seconds = self._solve(rate)
            if abs(tokens - rate * seconds) < _AGREED * rate * seconds:
                break
            rate = max(tokens / seconds, 1e-3 * rate)
        self.rate = tokens / seconds

    def worth(self, n: int, survival: float) -> float:
        """What is still to come behind `n` drafted tokens that are all accepted with chance `survival`, in tokens: less than
        `stopped(n)` never, more where another forward of the draft model is worth it."""
        place = min(-math.log(max(survival, 1e-9)) / _STEP, len(_GRID) - 1.001)
        low = int(place)
        fraction = -math.expm1(-_STEP * (place - low)) / _CELL
        worths = self._worth[min(n, self.n_max)]
        return float(worths[low] + fraction * (worths[low + 1] - worths[low]))

    def stopped(self, n: int) -> float:
        """What verifying `n` tokens costs, in tokens that the time could have made; negative."""
        return float(-self._valued_at * self._curve[n])

    def _solve(self, rate: float) -> tuple[float, float]:
        """The expected tokens and seconds of a round whose time is valued at `rate`, the draft model asked at least once."""
        self._valued_at = rate
        n_max, curve, below = self.n_max, self._curve, self._below
        alive = _GRID[:, None] * self._chances[None]  # (n_grid, n_classes): the tokens that one more is good for
        tokens, seconds = np.zeros(len(_GRID)), np.full(len(_GRID), curve[n_max])
        self._worth = [tokens - rate * seconds]
        for n in range(n_max - 1, -1, -1):
            kept_tokens = alive + tokens[below] + self._fraction * (tokens[below + 1] - tokens[below])
            kept_seconds = seconds[below] + self._fraction * (seconds[below + 1] - seconds[below])
            is_kept = kept_tokens - rate * kept_seconds > -rate * curve[n]
            on_tokens = np.where(is_kept, kept_tokens, 0.0) @ self._shares
            on_seconds = self._token_s + np.where(is_kept, kept_seconds, curve[n]) @ self._shares
            if n == 0:
                break
            goes_on = on_tokens - rate * on_seconds > -rate * curve[n]
            tokens, seconds = np.where(goes_on, on_tokens, 0.0), np.where(goes_on, on_seconds, curve[n])
            self._worth.append(tokens - rate * seconds)
        self._worth.append(on_tokens - rate * on_seconds)
        self._worth.reverse()
        return 1.0 + float(on_tokens[0]), float(on_seconds[0])


class Shares:
    """How often each class of the draft model's confidence comes up, by how certain the target has been (`Certainty.level`).

    Fading counts beside what is believed before anything was seen.
    """

    MEMORY = 300.0  # observations remembered
    WEIGHT = 12.0  # observations that the prior counts for

    def __init__(self, prior: Sequence[Sequence[float]]) -> None:
        self._prior = [np.array(shares) / sum(shares) for shares in prior]
        self._counts = [np.zeros(len(shares)) for shares in prior]

    def at(self, level: int) -> Floats:
        """(n_classes,), summing to 1."""
        counted = self._counts[level] + self.WEIGHT * self._prior[level]
        shares: Floats = counted / counted.sum()
        return shares

    def observe(self, level: int, classes: Sequence[int]) -> None:
        counts = self._counts[level]
        counts *= max(0.0, 1.0 - len(classes) / self.MEMORY)
        for one in classes:
            counts[one] += 1.0
