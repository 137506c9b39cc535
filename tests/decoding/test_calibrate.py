"""Calibration on a model whose forwards take a known time, told by a clock that only they move."""

from __future__ import annotations

import numpy as np
import pytest

from specllm.decoding.calibrate import is_plausible, measure_draft, measure_target, steep
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
