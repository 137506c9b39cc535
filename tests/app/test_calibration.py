"""Which of two calibrations later runs use, and that a damaged one is as good as none."""

from __future__ import annotations

import json
import logging
import random
from functools import partial
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specllm.app import calibration
from specllm.app.calibration import Identity, keep_quieter_draft_cost, keep_quieter_points
from specllm.decoding.calibrate import measure_target, spread_of
from specllm.decoding.cost import CALIBRATION_WIDTHS, CostModel, DraftCost
from tests.decoding.test_calibrate import TimedModel, a_slow_model, stairs

TARGET = Identity({"role": "target", "file": "big.gguf"})
DRAFT = Identity({"role": "draft", "file": "small.gguf"})
EARLIER, NEW = {1: 0.07, 4: 0.1, 128: 1.5}, {1: 0.08, 4: 0.2, 16: 0.3}


@given(st.lists(st.lists(st.floats(1e-4, 10), min_size=2, max_size=5), min_size=1), st.floats(0.1, 10))
def test_noise_has_no_unit_and_is_nothing_where_all_readings_are_equal(readings, factor):
    spread = spread_of(readings)
    assert spread is not None
    assert spread >= 0
    assert spread_of([[seconds * factor for seconds in of_one] for of_one in readings]) == pytest.approx(spread)
    assert spread_of([[min(of_one)] * 3 for of_one in readings]) == 0


def test_readings_that_were_not_repeated_say_nothing_about_noise():
    assert spread_of([]) is None
    assert spread_of([[0.1], [0.2]]) is None
    assert spread_of([[0.1], [0.2, 0.3, 0.25]]) == pytest.approx(0.25)


@pytest.mark.parametrize(
    ("earlier", "spread", "is_forced", "is_new"),
    [
        (0.02, 0.30, False, False),
        (0.02, 0.30, True, True),
        (0.30, 0.02, False, True),
        (0.02, 0.02, False, True),
        (0.020, 0.0249, False, True),  # both are shown as 2 %
        (0.02, None, False, False),
        (None, 0.30, False, True),  # made before noise was recorded
        (None, None, False, True),
    ],
)
def test_a_noisier_calibration_does_not_replace_a_quieter_one(earlier, spread, is_forced, is_new):
    calibration.keep_points(TARGET, EARLIER, earlier)
    kept = keep_quieter_points(TARGET, NEW, spread, is_forced=is_forced)
    assert (kept.file, kept.is_new, kept.spread, kept.earlier_spread) == ("big.gguf", is_new, spread, earlier)
    assert calibration.known_points(TARGET) == (EARLIER | NEW if is_new else NEW | EARLIER)
    assert calibration.known_spread(TARGET) == (spread if is_new else earlier)

    costs = {False: DraftCost(0.03, 0.01), True: DraftCost(0.05, 0.02)}
    calibration.keep_draft_cost(DRAFT, costs[False], earlier)
    assert keep_quieter_draft_cost(DRAFT, costs[True], spread, is_forced=is_forced).is_new is is_new
    assert calibration.known_draft_cost(DRAFT) == costs[is_new]


def test_the_first_calibration_is_kept_however_noisy():
    assert keep_quieter_points(TARGET, NEW, 0.9, is_forced=False).is_new
    assert calibration.known_points(TARGET) == NEW


@pytest.mark.parametrize("spread", ["loud", -0.1, True, float("nan"), float("inf"), 1])
def test_a_noise_that_is_no_share_is_not_known(spread):
    calibration.keep_points(TARGET, EARLIER, 0.1)
    file = TARGET.file("calibration")
    file.write_text(json.dumps(json.loads(file.read_text("utf-8")) | {"spread": spread}), encoding="utf-8")
    assert calibration.known_spread(TARGET) is None
    assert keep_quieter_points(TARGET, NEW, 0.9, is_forced=False).is_new


class Target(TimedModel):
    """A target with a file name, and with a clock that only its forwards move."""

    class weights:
        path = Path("big.gguf")


def test_the_calibration_before_a_first_answer_records_its_noise(monkeypatch):
    def measure(model, *, budget_s, known, told, **options):
        for width, seconds in ((1, 0.2), (1, 0.1), (1, 0.3)):
            told(width, seconds)
        return dict.fromkeys(CALIBRATION_WIDTHS, 0.1)

    monkeypatch.setattr(calibration, "measure_target", measure)
    model = Target(stairs)
    calibration.target_cost(model, TARGET)
    assert calibration.known_spread(TARGET) == pytest.approx(1.0)
    calibration.keep_points(TARGET, {1: 0.1}, 3.0)  # the first part of a curve, and noisier
    calibration.target_cost(model, TARGET)
    assert calibration.known_spread(TARGET) == 3.0


class Runs:
    """Runs of specllm with one target, one after the other."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._patch = monkeypatch
        self.notices: list[str] = []

    def run(self, seconds) -> tuple[CostModel, Target]:
        model = Target(seconds)
        self._patch.setattr(calibration, "measure_target", partial(measure_target, clock=model.clock))
        return calibration.target_cost(model, TARGET, notice=self.notices.append), model


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> Runs:
    return Runs(monkeypatch)


@pytest.mark.parametrize("seconds", [a_slow_model, lambda width: 0.05 * width, lambda width: 2.0 + 0.05 * width])
def test_a_slow_model_is_measured_in_two_runs_and_never_again(runs, caplog, seconds):
    with caplog.at_level(logging.INFO, logger="specllm"):
        models = [runs.run(seconds) for _ in range(6)]
    assert all(not model.widths for _, model in models[2:])
    assert {1, 4, 16, 32, 64} <= set(models[-1][0].widths)
    assert all(cost.seconds(width) == pytest.approx(seconds(width)) for cost, _ in models for width in cost.widths)
    assert len(runs.notices) <= 2
    assert len(caplog.records) <= 1


def test_what_could_not_be_measured_is_said_once(runs, caplog):
    with caplog.at_level(logging.INFO, logger="specllm"):
        for _ in range(5):
            cost, _ = runs.run(lambda width: 0.05 * width)
    assert cost.max_width == 64
    (record,) = caplog.records
    assert "64 tokens" in record.getMessage()


@pytest.mark.parametrize("seconds", [stairs, lambda width: 1e-4, lambda width: 0.01 + 1e-4 * width])
def test_a_fast_model_is_measured_once_and_for_no_longer_than_five_seconds(runs, seconds):
    cost, model = runs.run(seconds)
    assert cost.widths == list(CALIBRATION_WIDTHS)
    assert model.now <= 5.0
    assert sum(model.widths[:5]) == 256  # and the cache is filled in no more pieces than that
    again, idle = runs.run(seconds)
    assert not idle.widths
    assert again.widths == cost.widths


def test_a_slow_models_depth_is_kept_and_the_rest_is_measured_behind_as_many_tokens(runs):
    runs.run(a_slow_model)
    kept = json.loads(TARGET.file("calibration").read_text("utf-8"))
    assert 16 <= kept["depth"] < 256
    _, second = runs.run(a_slow_model)
    assert max(second.widths[: second.widths.index(1, 2)]) <= kept["depth"]
    assert json.loads(TARGET.file("calibration").read_text("utf-8"))["depth"] <= kept["depth"]


def test_a_noisy_calibration_is_repeated_once_and_the_quieter_one_is_kept(runs):
    def seconds(width: int) -> float:
        return 0.0005 * width

    noise = random.Random(0)
    runs.run(lambda width: seconds(width) * noise.uniform(1, 4))
    spread = calibration.known_spread(TARGET)
    assert spread is not None
    assert spread > 0.15
    cost, quiet = runs.run(seconds)
    assert quiet.widths
    assert calibration.known_spread(TARGET) == pytest.approx(0.0)
    assert all(cost.seconds(width) == pytest.approx(seconds(width)) for width in cost.widths)
    assert not runs.run(seconds)[1].widths
