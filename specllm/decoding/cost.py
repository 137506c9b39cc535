"""What a target forward costs by its width, V(w), measured on this machine and kept honest by every round.

V is a staircase, not a line: rows are computed in fours and sixteens, so width 4 can cost less than 3 and 16 less than 12.
A linear model draws the wrong conclusion on every machine; a table with the measured points does not.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

# Every step that has been seen in a curve, and enough points between them to draw the rest.
CALIBRATION_WIDTHS = (1, 2, 3, 4, 5, 6, 8, 12, 16, 20, 24, 32, 48, 64, 96, 128)
MAX_WIDTH = CALIBRATION_WIDTHS[-1]

# What the rounds say of the table, in nats, as a Kalman filter has it: a level that all widths share (throttling, other work, a
# deep context) and an offset of each width. Half of an offset's variance is its own (the table is wrong there), half is shared
# with widths near it (other work takes memory bandwidth: narrow forwards wait for memory, wide ones compute). An offset that
# nobody observes fades, so what a bad moment taught does not stay for ever. With these numbers stalls, a neighbour that makes
# everything three times slower for a while and growing depth leave the controller within 3 % of the best fixed choice (simulated,
# tests/decoding/test_disturbances.py).
_LEVEL, _OFFSET = 0.3, 0.25  # standard deviations before anything was observed
_REACH = 3.0  # doublings of the width
_NOISE = 0.1  # of one round
_LEVEL_STEP = 0.02  # by which the level may change in a round: a throttled machine is followed within ten
_FADE = 1 / 1000  # of an offset in a round
# A reading far above what is expected is taken for a stall, unless the last one of that kind was far above too.
_FAR = math.log(1.25)
_LARGEST_STEP = math.log(2.0)  # one that took ten times as long says no more than one that took twice as long
# A table is contradicted by so many readings of a width, in the middle, that differ by that much...
_TELLING, _CONTRADICTION = 4, math.log(1.6)
# ... at most so many times as deep as it was measured: behind 2,000 tokens attention adds a tenth to a narrow forward of a small
# model and a third to a wide one, behind 8,000 half and more than as much again.
_SHALLOW = 8
_DRAFT_RATE = 0.15  # of the moving average of a draft model's cost


def plausible(error: float, before: float) -> float:
    """What to believe of a reading that is `error` nats above what was expected, where the one before was `before` nats above."""
    return min(error, max(before, _FAR), _LARGEST_STEP)


class CostModel:
    """V(w) in seconds for w = 1 .. `max_width`.

    Between two measured widths stands the cost of the wider one: what a step hides there is not known, so no choice should
    rest on it, and choices snap to measured widths by themselves. Every round corrects the table.
    """

    def __init__(self, points: Mapping[int, float], depth: int = 0) -> None:
        """`points`: seconds by width, width 1 among them, with `depth` tokens in the KV cache; 0 where that is not known."""
        if points.get(1, 0.0) <= 0 or not all(0 < seconds < math.inf for seconds in points.values()):
            raise ValueError("a cost table needs width 1 and positive seconds")
        self.widths = sorted(points)
        self.max_width = self.widths[-1]
        self._base = np.log([points[width] for width in self.widths])
        n = len(self.widths)
        doublings = np.log2(self.widths)
        shared = np.exp(-np.abs(doublings[:, None] - doublings[None, :]) / _REACH)  # (n, n)
        self._mean = np.zeros(n + 1)  # of the level and of every offset
        self._covariance = np.zeros((n + 1, n + 1))
        self._covariance[0, 0] = _LEVEL**2
        self._covariance[1:, 1:] = _OFFSET**2 * (shared + np.eye(n)) / 2
        # What a round changes by itself: (n + 1,) times the mean, (n + 1, n + 1) times the covariance, and beside it.
        self._kept = np.full(n + 1, 1.0 - _FADE)
        self._kept[0] = 1.0
        self._kept_covariance = np.outer(self._kept, self._kept)
        self._grown = (1.0 - self._kept_covariance) * self._covariance
        self._grown[0, 0] = _LEVEL_STEP**2
        self._before = [0.0] * n  # by how much the last reading of each width was above what was expected
        self._log_seconds: list[float] = self._base.tolist()  # what the rounds have made of the table
        self._deepest = _SHALLOW * depth or math.inf
        # By width, what each forward of this answer took, without and with what is done beside it; in nats above the table.
        self._readings: dict[int, list[tuple[float, float]]] = defaultdict(list)
        self._curve: Floats | None = None
        # (max_width,): for width w the index of the narrowest measured width that is at least w
        self._step = np.searchsorted(self.widths, np.arange(1, self.max_width + 1))

    @property
    def curve(self) -> Floats:
        """(max_width,) seconds now; `curve[w - 1]` is V(w)."""
        if self._curve is None:  # asked several times a round, changed once
            self._curve = np.exp(self._log_seconds)[self._step]
        return self._curve

    def seconds(self, width: int) -> float:
        """V(width); beyond the table, proportionally."""
        if width > self.max_width:
            return self.seconds(self.max_width) * width / self.max_width
        return math.exp(self._log_seconds[self._step[width - 1]])

    def largest_speedup(self, width: int | None = None) -> float:
        """Over plain decoding, if everything drafted were accepted and drafting cost nothing, in blocks of up to `width`."""
        curve = self.curve[:width]
        return float((np.arange(1, len(curve) + 1) * curve[0] / curve).max())

    def observe(self, width: int, seconds: float, *, forward_s: float | None = None, depth: int = 0) -> None:
        """Learns from a forward of that width and what is done beside it; `forward_s` is the forward alone.

        `depth`: tokens in the KV cache before it.
        """
        if width > self.max_width or seconds <= 0:
            return
        i = int(self._step[width - 1])
        if self.widths[i] != width:  # below its step it may well be cheaper
            return
        error = math.log(seconds) - self._log_seconds[i]
        believed, self._before[i] = plausible(error, self._before[i]), error
        if depth <= self._deepest:
            alone = math.log(max(forward_s or seconds, 1e-9))
            self._readings[i].append((alone - self._base[i], math.log(seconds) - self._base[i]))
        # Nothing is faster than it can be: then the table is wrong.
        self._learn(i, believed, _NOISE if error > -_LARGEST_STEP else 0.0)

    def _learn(self, i: int, error: float, noise: float) -> None:
        self._mean *= self._kept
        self._covariance *= self._kept_covariance
        self._covariance += self._grown
        with_all = self._covariance[0] + self._covariance[i + 1]
        gain = with_all / (with_all[0] + with_all[i + 1] + noise**2)
        self._mean += gain * error
        self._covariance -= np.outer(gain, with_all)
        moved = self._base + self._mean[0] + self._mean[1:]
        # Nothing costs less than one token, and what was just observed goes before what follows from it: else width 1, dragged
        # along by wider rounds and never tried again, could seem to cost more than they do for ever.
        least = min(moved[0], moved[i])
        self._mean[1:] += np.maximum(least - moved, 0.0)
        self._mean[1] += least - max(least, moved[0])
        self._log_seconds = np.maximum(moved, least).tolist()
        self._log_seconds[0] = float(least)
        self._curve = None

    @property
    def drift(self) -> float:
        """How many times slower than the table plain decoding is now (less than 1: faster)."""
        return math.exp(self._log_seconds[0] - self._base[0])

    def is_contradicted(self) -> bool | None:
        """Whether this answer's forwards contradict the table; None where they do not tell. The next answer begins.

        A machine that is busy, or a context that is deep, makes all widths slower: what counts is how much more a width costs
        than one token. But nothing is faster than on a quiet machine: where it is, the table was made beside other work.
        """
        readings, self._readings = self._readings, defaultdict(list)
        medians = {i: np.median(taken, axis=0) for i, taken in readings.items() if len(taken) >= _TELLING}
        if 0 not in medians:
            return None
        alone_1, whole_1 = medians.pop(0)
        if whole_1 < -_CONTRADICTION:
            return True
        if not medians:
            return None
        return any(
            alone - whole_1 > _CONTRADICTION or whole - alone_1 < -_CONTRADICTION for alone, whole in medians.values()
        )

    def good_widths(self) -> list[int]:
        """The measured widths at which a token is cheaper than at every smaller one: where a step ends."""
        per_token = np.exp(self._log_seconds) / self.widths
        best = np.minimum.accumulate(per_token)
        return [width for width, cost, least in zip(self.widths, per_token, best, strict=True) if cost <= least]


@dataclass(slots=True)
class DraftCost:
    """What a draft model costs on this machine, in seconds: as it was measured, and then as the rounds say."""

    token_s: float  # one drafted token: a forward of width 1
    prefill_token_s: float  # one token of a long forward
    _measured_s: tuple[float, float] = field(init=False, repr=False, compare=False)
    _slower: float = field(default=1.0, init=False, repr=False, compare=False)
    _offset: float = field(default=0.0, init=False, repr=False, compare=False)  # nats beyond that
    _before: float = field(default=0.0, init=False, repr=False, compare=False)  # as in `CostModel`

    def __post_init__(self) -> None:
        self._measured_s = self.token_s, self.prefill_token_s

    @property
    def hoped_token_s(self) -> float:
        """What a token costs if only the machine has become slower, and not the draft model by itself."""
        return min(self.token_s, self._slower * self._measured_s[0])

    def catch_up_s(self, n_pending: int) -> float:
        """Feeding all but the last of `n_pending` context tokens; the last one is the first drafted token's forward."""
        return max(0, n_pending - 1) * self.prefill_token_s

    def observe(self, n_pending: int, n_forwards: int, seconds: float) -> None:
        """Learns from a draft of so many forwards."""
        if n_forwards and n_pending <= 8:
            measured = (seconds - self.catch_up_s(n_pending)) / n_forwards
            error = math.log(max(measured, 0.2 * self.token_s) / self.token_s)
            believed, self._before = plausible(error, self._before), error
            self._offset += _DRAFT_RATE * believed
            self._settle()

    def follow(self, drift: float) -> None:
        """Told how many times slower the target's plain decoding is than when it was measured: so is the draft model."""
        self._slower = max(1.0, drift)
        self._settle()

    def fade(self) -> None:
        """Told of every round without a draft of its own: what else seemed to be slow is a little less sure."""
        self._offset *= 1.0 - _FADE
        self._settle()

    def _settle(self) -> None:
        token_s, prefill_token_s = self._measured_s
        self.token_s = token_s * self._slower * math.exp(self._offset)
        self.prefill_token_s = prefill_token_s * self._slower
