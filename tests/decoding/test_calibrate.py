"""Calibration on a model whose forwards take a known time, told by a clock that only they move."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specllm.decoding.calibrate import FILL_S, is_plausible, measure_draft, measure_target, missing_widths, steep
from specllm.decoding.cost import CALIBRATION_WIDTHS, CostModel
from tests.fakes import BigramModel


class TimedModel(BigramModel):
    """Every forward takes `seconds(width)`, sometimes longer, as on a busy machine."""

    def __init__(self, seconds, *, hiccup_every: int = 0, n_ctx: int = 4096) -> None:
        super().__init__(n_vocab=50, n_ctx=n_ctx)
        self.seconds, self.hiccup_every = seconds, hiccup_every
        self.now = 0.0
        self.widths: list[int] = []

    def forward(self, tokens, *, logits="all"):
        self.widths.append(len(tokens))
        is_hiccup = self.hiccup_every and len(self.widths) % self.hiccup_every == 0
        self.now += self.seconds(len(tokens)) * (5 if is_hiccup else 1)
        return super().forward(tokens, logits=logits)

    def clock(self) -> float:
        return self.now


def stairs(width: int) -> float:
    return 0.01 * (1 + (width - 1) // 4)


def test_the_curve_is_measured_through_hiccups():
    model = TimedModel(stairs, hiccup_every=7)
    points = measure_target(model, budget_s=1e9, clock=model.clock)
    assert points == {width: pytest.approx(stairs(width)) for width in CALIBRATION_WIDTHS}
    assert model.n_past == 0


@pytest.mark.parametrize("budget_s", [0.0, 0.5, 1.0, 3.0])
def test_the_budget_is_kept_and_width_one_always_known(budget_s):
    model = TimedModel(lambda width: 0.05 * width)
    points = measure_target(model, budget_s=budget_s, clock=model.clock)
    warm_up_s = 0.05 * 257
    assert model.now <= warm_up_s + budget_s + 3 * 0.05 + 0.05 * 256
    assert 1 in points
    assert all(points[width] == pytest.approx(0.05 * width) for width in points)


def test_a_curve_without_steps_needs_the_decisive_widths_alone_and_half_the_budget():
    class Smooth(TimedModel):
        is_width_independent = True

    model = Smooth(lambda width: 0.03 + 0.006 * max(0, width - 4))
    points = measure_target(model, budget_s=3.5, clock=model.clock)
    assert sorted(points) == [1, 2, 4, 8, 16, 32, 64, 128]
    assert not missing_widths(points, n_ctx=4096, budget_s=3.5, is_smooth=True)
    assert model.now < 1.6 + 0.5 * 3.5 + 0.1  # filling the cache, and the readings
    assert sorted(measure_target(model, budget_s=math.inf, clock=model.clock)) == list(CALIBRATION_WIDTHS)


def test_a_small_context_is_measured_as_far_as_it_goes():
    model = TimedModel(stairs, n_ctx=40)
    points = measure_target(model, budget_s=1e9, clock=model.clock)
    assert max(points) == 20


def test_a_recurrent_models_rollback_is_part_of_its_cost():
    class Restoring(TimedModel):
        def rollback(self, n_past):
            if n_past and n_past < self.n_past - 1:
                self.now += 0.5
            super().rollback(n_past)

    model = Restoring(stairs)
    points = measure_target(model, budget_s=1e9, clock=model.clock)
    assert points[1] == pytest.approx(stairs(1))
    assert points[16] == pytest.approx(stairs(16) + 0.5)


def test_a_draft_model_is_timed_token_by_token_and_in_long_forwards():
    model = TimedModel(lambda width: 0.02 + 0.001 * width)
    cost = measure_draft(model, clock=model.clock)
    assert cost.token_s == pytest.approx(0.021)
    assert cost.prefill_token_s == pytest.approx((0.02 + 0.064) / 64)
    assert cost.catch_up_s(101) == pytest.approx(100 * cost.prefill_token_s)
    assert model.n_past == 0


def test_readings_in_which_one_token_is_dearer_than_sixteen_cannot_be():
    busy = {1: 3.18, 4: 2.14, 16: 0.48}
    assert not is_plausible(busy)
    assert is_plausible({1: 0.030, 2: 0.047, 12: 0.161, 16: 0.146})
    assert is_plausible({1: 0.031, 2: 0.030, 4: 0.030})  # a flat machine with a little noise
    curve = CostModel(steep(busy)).curve
    assert all(curve >= curve[0] * np.arange(1, len(curve) + 1) * 0.999)


def a_slow_model(width: int) -> float:
    """7B on two cores: it reads 30 to 40 tokens a second, and a block of 64 takes nine forwards' time."""
    return 0.18 * (1 + 0.9 * (width > 1) + 0.125 * (width - 1))


DECISIVE = {1, 2, 4, 8, 16, 32, 64, 128}


@pytest.mark.parametrize("seconds", [a_slow_model, lambda width: 0.05 * width, lambda width: 0.03 + 0.02 * width])
def test_a_slow_models_decisive_widths_are_known_after_two_budgets_and_the_prompt_takes_little_of_them(seconds):
    points: dict[int, float] = {}
    for _ in range(2):
        model, depths = TimedModel(seconds), []
        points = measure_target(model, budget_s=3.5, known=points, clock=model.clock, filled=depths.append)
        assert model.now <= 2 * FILL_S + max(3.5, 80 * seconds(1)) + 4 * seconds(1) + seconds(128)
        assert depths[0] >= 16
    assert points == {width: pytest.approx(seconds(width)) for width in points}
    missing = DECISIVE - set(points)
    assert all(seconds(width) > 80 * seconds(1) for width in missing)
    assert missing.isdisjoint(missing_widths(points, n_ctx=4096, budget_s=3.5)), "what takes longer is not tried again"


@given(
    forward_s=st.floats(1e-4, 5.0), per_token=st.floats(0.0, 1.0), n_ctx=st.integers(8, 4096), step=st.integers(1, 16)
)
@settings(deadline=None)
def test_filling_the_cache_takes_little_time_on_any_machine(forward_s, per_token, n_ctx, step):
    """And a fast one has the whole depth behind it."""

    def seconds(width: int) -> float:
        return forward_s * (1 + per_token * (-(-width // step) - 1))

    model, fills = TimedModel(seconds, n_ctx=n_ctx), []
    filled = lambda depth: fills.append((depth, list(model.widths), model.now))  # noqa: E731
    measure_target(model, budget_s=0.0, clock=model.clock, filled=filled)
    depth, pieces, fill_s = fills[0]
    assert sum(pieces) == depth <= min(256, n_ctx // 2)
    assert fill_s <= FILL_S + (2 + step) * seconds(1)
    if 5 * seconds(256) + 3 * seconds(1) < FILL_S:
        assert depth == min(256, n_ctx // 2)
        assert len(pieces) <= 5


def test_what_is_read_at_another_speed_of_the_machine_keeps_its_ratio():
    for slower in (3.0, 1 / 3):
        model = TimedModel(lambda width, slower=slower: slower * stairs(width))
        known = {width: stairs(width) for width in (1, 4, 16)}
        points = measure_target(model, budget_s=1e9, known=known, clock=model.clock)
        level = min(1.0, slower)
        assert points == {width: pytest.approx(level * stairs(width)) for width in CALIBRATION_WIDTHS}


def test_a_hiccup_in_the_only_reading_of_a_width_is_noticed():
    model = TimedModel(a_slow_model)
    model.forward = with_hiccup(model, at_width=16)
    points = measure_target(model, budget_s=3.5, clock=model.clock)
    assert points[16] == pytest.approx(a_slow_model(16))


def with_hiccup(model: TimedModel, at_width: int):
    forward, hiccups = model.forward, iter([5.0])

    def one(tokens, *, logits="all"):
        rows = forward(tokens, logits=logits)
        if len(tokens) == at_width and logits == "all":
            model.now += next(hiccups, 0.0)
        return rows

    return one


@pytest.mark.parametrize("token_s", [0.001, 0.05, 1.0])
def test_a_slow_draft_models_prompt_takes_little_time_too(token_s):
    model = TimedModel(lambda width: token_s * width)
    cost = measure_draft(model, clock=model.clock)
    assert model.now <= 2 * FILL_S + 10 * token_s
    assert (cost.token_s, cost.prefill_token_s) == (pytest.approx(token_s), pytest.approx(token_s))
