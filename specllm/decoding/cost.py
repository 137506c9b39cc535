"""What a target forward costs by its width, V(w), measured on this machine and kept honest by every round.

V is a staircase, not a line: rows are computed in fours and sixteens, so width 4 can cost less than 3 and 16 less than 12.
A linear model draws the wrong conclusion on every machine; a table with the measured points does not.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

# Every step that has been seen in a curve, and enough points between them to draw the rest.
CALIBRATION_WIDTHS = (1, 2, 3, 4, 5, 6, 8, 12, 16, 20, 24, 32, 48, 64, 96, 128)
MAX_WIDTH = CALIBRATION_WIDTHS[-1]

_RATE = 0.15  # per round: a throttled or shared machine is followed within ten rounds
_FIRST_RATE = 0.5  # of the first rounds of a width: rare ones have to teach quickly
# What a round says of another width: half of it at four times the width, and never less than a quarter. Narrow forwards wait
# for memory, wide ones compute: a neighbour that takes memory bandwidth slows down width 1 by a fifth and width 16 not at all.
_REACH = 3.0  # doublings of the width
_LEAST_REACH = 0.25
_LARGEST_STEP = math.log(2.0)  # a round that took ten times as long says little: a hiccup counts as a doubling


class CostModel:
    """V(w) in seconds for w = 1 .. `max_width`.

    Between two measured widths stands the cost of the wider one: what a step hides there is not known, so no choice should
    rest on it, and choices snap to measured widths by themselves. Online every width has a factor of its own, which follows
    what is observed at widths like it most (throttling, sharing, depth of the context).
    """

    def __init__(self, points: Mapping[int, float]) -> None:
        """`points`: seconds by width; must name width 1."""
        if points.get(1, 0.0) <= 0 or not all(0 < seconds < math.inf for seconds in points.values()):
            raise ValueError("a cost table needs width 1 and positive seconds")
        self.widths = sorted(points)
        self.max_width = self.widths[-1]
        # Lists, not arrays: for sixteen numbers that are touched once a round numpy takes longer than it saves.
        self._log_base = [math.log(points[width]) for width in self.widths]
        self._log_seconds = list(self._log_base)  # what the rounds have made of the table
        self._n_observed = [0] * len(self.widths)
        doublings = np.log2(self.widths)
        nearness = np.exp(-np.abs(doublings[:, None] - doublings[None, :]) / _REACH)  # (n, n)
        self._reach: list[list[float]] = (_LEAST_REACH + (1 - _LEAST_REACH) * nearness).tolist()
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

    def observe(self, width: int, seconds: float) -> None:
        """Learns from a forward of that width."""
        if width > self.max_width or seconds <= 0:
            return
        error = math.log(seconds / self.seconds(width))
        error = min(_LARGEST_STEP, error)  # but nothing is faster than it can be: then the table is wrong
        i = self._step[width - 1]
        if self.widths[i] != width:  # below its step it may well be cheaper
            return
        self._curve = None
        rate = max(_RATE, _FIRST_RATE / (1 + self._n_observed[i])) if error > -_LARGEST_STEP else 1.0
        self._n_observed[i] += 1
        step = rate * error
        moved = [one + step * reach for one, reach in zip(self._log_seconds, self._reach[i], strict=True)]
        # Nothing costs less than one token, and what was just observed goes before what follows from it: else width 1, dragged
        # along by wider rounds and never tried again, could seem to cost more than they do for ever.
        least = min(moved[0], moved[i])
        self._log_seconds = [max(one, least) for one in moved]
        self._log_seconds[0] = least

    @property
    def drift(self) -> float:
        """How many times slower than the table plain decoding is now (less than 1: faster)."""
        return math.exp(self._log_seconds[0] - self._log_base[0])

    def good_widths(self) -> list[int]:
        """The measured widths at which a token is cheaper than at every smaller one: where a step ends."""
        per_token = np.exp(self._log_seconds) / self.widths
        best = np.minimum.accumulate(per_token)
        return [width for width, cost, least in zip(self.widths, per_token, best, strict=True) if cost <= least]
