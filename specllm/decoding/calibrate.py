"""Measures what forwards cost on this machine: V(w) of a target, and a draft model's cost per token.

Only the `LanguageModel` protocol and a clock. The least of a few repetitions is taken: whatever disturbs a measurement
makes it longer.
"""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from time import perf_counter

from specllm.decoding.cost import CALIBRATION_WIDTHS, DraftCost
from specllm.decoding.protocols import LanguageModel, Token

DEPTH = 256  # tokens in the KV cache while measuring: a short prompt
FILL_S = 2.5  # that filling the cache may take: a slow model is measured behind fewer tokens
_GROWTH = 8  # of the pieces that the cache is filled with: each tells what the next one may take
_ALWAYS = (1, 4, 16)
_DECISIVE = (*_ALWAYS, 64, 2, 32, 8, 128)  # what decides most, in case the time is up early
_ORDER = (*_DECISIVE, *(width for width in CALIBRATION_WIDTHS if width not in _DECISIVE))
_SMOOTH_SHARE = 0.5  # of the budget, where a line between two decisive widths is right for those between
# Forwards of one token that the decisive widths may take the time of, where the budget is less. On two cores they took that of
# 60 together (the README's table); where every token costs a forward, this is enough for all but 128 in two runs.
_DECISIVE_FORWARDS = 80.0
_MOST_ABOVE = 1.25  # times what a reading can be: a busy moment shows more than that
NOISY = 0.15  # `spread_of` readings beside which something else was running
_PREFILL = 64  # tokens of the forward that tells a draft model's prefill cost


def _tokens(model: LanguageModel, n: int) -> list[Token]:
    """Different ordinary tokens: a mixture of experts must not see the same one again and again."""
    return [(100 + 37 * i) % model.n_vocab for i in range(n)]


def measure_target(
    model: LanguageModel,
    *,
    budget_s: float,
    known: Mapping[int, float] | None = None,
    depth: int = DEPTH,
    n_repeats: int = 3,
    clock: Callable[[], float] = perf_counter,
    told: Callable[[int, float], None] = lambda width, seconds: None,
    filled: Callable[[int], None] = lambda depth: None,
) -> dict[int, float]:
    """Seconds by width, for as many of the calibration widths as the budget allows, beside those already `known`.

    The budget is spent on readings alone, from when the KV cache holds `depth` tokens, or fewer where filling it takes too long;
    `filled` hears how many. Width 1 and the two first steps are measured whatever they take: without them nothing can be decided.
    The other decisive widths may take longer than the budget on a slow model. Where the target is independent of widths, one
    kernel computes them all and V(w) has no steps: the decisive ones are enough, and half the budget; with an infinite budget all
    are measured. A width is timed with the rollback that follows a rejection, which costs where the cache must be restored.
    Leaves the KV cache empty. `told` hears every reading as it is taken.
    """
    depth = _fill(model, min(depth, model.n_ctx // 2), clock)
    filled(depth)
    is_smooth = model.is_width_independent and budget_s < math.inf
    order = _order(is_smooth=is_smooth)
    if is_smooth:
        budget_s *= _SMOOTH_SHARE
    started = clock()
    n_readings: Counter[int] = Counter()
    points: dict[int, float] = {}
    scale = 1.0

    def read(width: int) -> None:
        seconds = _time_block(model, width, depth, clock)
        if points and width not in points and seconds * scale > _MOST_ABOVE * _expected_s(points, width):  # a hiccup
            seconds = min(seconds, _time_block(model, width, depth, clock))
        told(width, seconds)
        n_readings[width] += 1
        points[width] = min(seconds * scale, points.get(width, math.inf))

    if known:  # read at another time, when the machine was faster or slower: both are kept as at the faster one
        for _ in range(n_repeats):
            read(1)
        faster = known[1] / points[1]
        scale = min(1.0, faster)
        points = {width: seconds * min(1.0, 1 / faster) for width, seconds in known.items()}
    wanted = [width for width in order if width not in points and depth + width <= model.n_ctx]
    for repeat in range(n_repeats):
        for width in wanted:
            if repeat and width not in points:
                continue
            may_take_s = budget_s if repeat else _may_take_s(points, width, budget_s)
            is_affordable = clock() - started + _expected_s(points, width) <= may_take_s
            if is_affordable or (not repeat and width in _ALWAYS):
                read(width)
    for width in wanted:  # nor does a wider block cost clearly less
        if n_readings[width] == 1 and points[width] > _MOST_ABOVE * min(s for w, s in points.items() if w >= width):
            read(width)
    model.rollback(0)
    return points


def is_plausible(points: Mapping[int, float]) -> bool:
    """Whether width 1 is about the cheapest, as it is on every machine; else other work ran beside the measurement."""
    return points[1] <= _MOST_ABOVE * min(points.values())


def steep(points: Mapping[int, float]) -> dict[int, float]:
    """In place of readings that cannot be: every token costs a forward, so that nothing seems worth drafting."""
    return {width: width * min(points.values()) for width in CALIBRATION_WIDTHS}


def spread_of(readings: Iterable[Sequence[float]]) -> float | None:
    """How noisy repeated readings are: how far the median of one width's is above their least, in the middle of all widths.

    0 is a quiet machine; None where nothing was read twice.
    """
    repeated = [statistics.median(seconds) / min(seconds) - 1 for seconds in readings if len(seconds) > 1]
    return statistics.median(repeated) if repeated else None


def measure_here(
    model: LanguageModel, widths: Sequence[int], *, n_repeats: int = 2, clock: Callable[[], float] = perf_counter
) -> dict[int, float]:
    """Seconds by width behind what the KV cache holds now, which it holds again afterwards; widths without room are left out."""
    depth = model.n_past
    points: dict[int, float] = {}
    for _ in range(n_repeats):
        for width in widths:
            if depth + width <= model.n_ctx:
                seconds = _time_block(model, width, depth, clock)
                points[width] = min(seconds, points.get(width, seconds))
    return points


def _order(*, is_smooth: bool) -> tuple[int, ...]:
    return _DECISIVE if is_smooth else _ORDER


def missing_widths(points: Mapping[int, float], *, n_ctx: int, budget_s: float, is_smooth: bool = False) -> list[int]:
    """The calibration widths that are not known yet and that one budget could measure; of a curve without steps the
    decisive ones."""
    room = n_ctx - min(DEPTH, n_ctx // 2)
    return [
        width
        for width in _order(is_smooth=is_smooth)
        if width not in points and width <= room and _expected_s(points, width) <= _may_take_s(points, width, budget_s)
    ]


def measure_draft(model: LanguageModel, *, clock: Callable[[], float] = perf_counter) -> DraftCost:
    """What a drafted token and a token of catching up cost. Leaves the KV cache empty."""
    depth = min(DEPTH, model.n_ctx // 2)
    filled = _fill(model, depth - min(_PREFILL, depth // 2), clock)
    n_prefill = min(_PREFILL, filled)  # not longer than filling took
    started = clock()
    model.forward(_tokens(model, n_prefill), logits="none")
    prefill_s = clock() - started
    token_s = []
    for token in _tokens(model, 5):
        started = clock()
        model.forward([token], logits="last")
        token_s.append(clock() - started)
    model.rollback(0)
    return DraftCost(token_s=min(token_s), prefill_token_s=prefill_s / n_prefill)


def _fill(model: LanguageModel, depth: int, clock: Callable[[], float]) -> int:
    """The KV cache holds `depth` tokens, or as many as FILL_S are enough for; returns how many."""
    model.rollback(0)
    model.forward(_tokens(model, 1))  # the first of its kind allocates and touches memory
    started = clock()
    n_tokens = 1
    while (n_tokens := min(n_tokens, depth - model.n_past)) > 0:
        began = clock()
        model.forward(_tokens(model, n_tokens), logits="none")
        token_s = (clock() - began) / n_tokens
        left_s = FILL_S - (clock() - started)
        affordable = depth if token_s * depth <= left_s else int(left_s / token_s)
        n_tokens = min(_GROWTH * n_tokens, affordable)
    return model.n_past


def _may_take_s(points: Mapping[int, float], width: int, budget_s: float) -> float:
    """The time since measuring began at which the first reading of a width has to be over."""
    return max(budget_s, _DECISIVE_FORWARDS * points.get(1, 0.0)) if width in _DECISIVE else budget_s


def _time_block(model: LanguageModel, width: int, depth: int, clock: Callable[[], float]) -> float:
    tokens: Sequence[Token] = _tokens(model, width)
    started = clock()
    model.forward(tokens)
    if width > 1:
        model.rollback(depth + 1)
    seconds = clock() - started
    model.rollback(depth)
    return seconds


def _expected_s(points: Mapping[int, float], width: int) -> float:
    """No more than proportional to the next narrower width that is known."""
    if width in points:
        return points[width]
    known = max((w for w in points if w < width), default=1)
    return points.get(known, 0.0) * width / known
