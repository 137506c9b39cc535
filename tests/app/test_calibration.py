"""Which of two calibrations later runs use, and that a damaged one is as good as none."""

from __future__ import annotations

import json
import logging
import random
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from specllm.app import calibration
from specllm.app.calibration import Identity, forget_if_wrong, keep_quieter_draft_cost, keep_quieter_points
from specllm.config import ContextConfig
from specllm.decoding.calibrate import measure_target, spread_of
from specllm.decoding.cost import CALIBRATION_WIDTHS, CostModel, DraftCost
from specllm.runtime.backend import Device, inspect_backend
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


def test_that_a_curve_has_no_steps_is_kept():
    points = dict.fromkeys((1, 2, 4, 8, 16, 32, 64, 128), 0.03)
    for is_smooth in (True, False):
        calibration.Calibration(points=points, is_smooth=is_smooth).keep(TARGET)
        known = calibration.Calibration.known(TARGET)
        assert known is not None
        assert (known.missing(4096) == []) == is_smooth


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


def told(cost: CostModel, seconds, *, n: int = 10, widths=(1, 4, 16), depth: int = 300) -> None:
    """An answer's rounds."""
    for _ in range(n):
        for width in widths:
            cost.observe(width, seconds(width), depth=depth)


def v(width: int) -> float:
    return 0.03 * (1 + 0.25 * (width - 1))


def kept_after(answers, *, depth: int = 300) -> bool:
    """Whether the calibration is still there after answers whose forwards took that long, each in a run of its own."""
    calibration.keep_points(TARGET, {width: v(width) for width in CALIBRATION_WIDTHS})
    for seconds in answers:
        if not (points := calibration.known_points(TARGET)):
            break
        cost = CostModel(points, depth=256)
        told(cost, seconds, depth=depth)
        forget_if_wrong(cost, TARGET)
    return bool(calibration.known_points(TARGET))


def wrong_at_16(width: int) -> float:
    return v(width) * (2.5 if width == 16 else 1.0)


@given(slower=st.lists(st.floats(1.0, 20.0), min_size=1, max_size=6))
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_busy_machine_does_not_contradict_a_calibration(slower):
    assert kept_after([lambda width, factor=factor: factor * v(width) for factor in slower])


def test_a_machine_that_gets_busy_in_the_middle_of_an_answer_does_not_either():
    calibration.keep_points(TARGET, {width: v(width) for width in CALIBRATION_WIDTHS})
    for _ in range(6):
        cost = CostModel(calibration.known_points(TARGET), depth=256)
        told(cost, lambda width: 5 * v(width))
        told(cost, v)
        forget_if_wrong(cost, TARGET)
    assert calibration.known_points(TARGET)


@pytest.mark.parametrize("factor", [2.5, 0.4])
def test_a_shape_that_several_answers_contradict_is_dropped(factor):
    wrong = lambda width: v(width) * (factor if width > 1 else 1.0)  # noqa: E731
    assert kept_after([wrong, wrong])
    assert kept_after([wrong, wrong, v, wrong, wrong])
    assert not kept_after([wrong, wrong, wrong])


def test_a_calibration_made_in_a_slow_moment_is_dropped():
    faster = lambda width: v(width) / 2  # noqa: E731
    assert kept_after([faster, faster])
    assert not kept_after([faster, faster, faster])


def test_what_forwards_take_in_a_deep_context_says_nothing_of_a_shallow_calibration():
    assert kept_after([wrong_at_16] * 6, depth=5000)
    assert not kept_after([wrong_at_16] * 6, depth=500)


def test_what_is_done_beside_the_forwards_contradicts_nothing():
    """A grammar takes its time for every token of a block."""
    calibration.keep_points(TARGET, {width: v(width) for width in CALIBRATION_WIDTHS})
    for _ in range(5):
        cost = CostModel(calibration.known_points(TARGET), depth=256)
        for _ in range(10):
            for width in (1, 16):
                cost.observe(width, v(width) + 0.03 * width, forward_s=v(width), depth=300)
        forget_if_wrong(cost, TARGET)
    assert calibration.known_points(TARGET)


def test_a_few_readings_say_nothing():
    calibration.keep_points(TARGET, {width: v(width) for width in CALIBRATION_WIDTHS})
    for _ in range(6):
        cost = CostModel(calibration.known_points(TARGET), depth=256)
        told(cost, wrong_at_16, n=3)
        forget_if_wrong(cost, TARGET)
        forget_if_wrong(cost, TARGET)
    assert calibration.known_points(TARGET)


def test_each_thing_that_changes_costs_has_a_calibration_of_its_own(monkeypatch, llama_gguf):
    card = Device("CUDA0", "NVIDIA GeForce RTX 3060", "gpu", 11 * 2**30, 12 * 2**30)
    info = inspect_backend()

    def file(*devices: Device, **settings) -> Path:
        monkeypatch.setattr(calibration, "inspect_backend", lambda: replace(info, devices=devices))
        return Identity.of(llama_gguf, ContextConfig(n_ctx=1024, threads=1, **settings), "target").file("calibration")

    others = {
        file(card),
        file(card, n_batch=64),
        file(card, n_ubatch=64),
        file(replace(card, description="NVIDIA GeForce RTX 4090")),
        file(replace(card, total_bytes=8 * 2**30)),
        file(card, card),
        file(),
    }
    assert len(others) == 7
    assert file(replace(card, free_bytes=1)) == file(card)
    cpu = Device("CPU", "AMD EPYC", "cpu", 2**30, 2**34)
    assert file(cpu) == file(replace(cpu, total_bytes=2**35)), "memory is no part of what a processor does"
