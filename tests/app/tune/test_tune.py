"""Tuning: the arithmetic exactly, and whole runs on tiny models."""

from __future__ import annotations

import json
import os
import tomllib
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specllm.app import calibration
from specllm.app.generate import GenerateRequest, answer
from specllm.app.tune import tuning
from specllm.app.tune.use_case import N_REPEATS, N_TOKENS, TuneRequest, Tuning, tune
from specllm.config import ContextConfig, GenerateConfig
from specllm.decoding.calibrate import measure_here, measure_target
from specllm.decoding.cost import CALIBRATION_WIDTHS, CostModel, DraftCost
from specllm.decoding.protocols import Draft
from specllm.errors import ConfigError
from specllm.models.registry import Registry
from tests.decoding.test_calibrate import TimedModel, stairs

FLAT = CostModel({1: 1.0, 2: 1.0, 4: 1.0, 8: 1.0})
LINEAR = CostModel({1: 1.0, 2: 2.0, 4: 4.0})


class Quiet:
    """A progress nobody watches."""

    def __init__(self, at_step: Callable[[int], None] = lambda n: None) -> None:
        self.stages: list[str] = []
        self.n_steps = 0
        self.at_step = at_step

    def stage(self, text: str) -> None:
        self.stages.append(text)

    def step(self, text: str) -> None:
        self.n_steps += 1
        self.at_step(self.n_steps)


class Fixed:
    """Always proposes the same tokens."""

    name = "lookup"

    def __init__(self, *tokens: int) -> None:
        self.tokens = tokens

    def begin(self, context: Sequence[int]) -> None:
        pass

    def propose(self, context: Sequence[int], k: int) -> Draft:
        return Draft(self.tokens[:k], self.name)

    def observe(self, round: object) -> None:
        pass


# ---- arithmetic ---------------------------------------------------------------------------------------------------------


@given(
    seconds=st.lists(st.floats(0.1, 10), min_size=4, max_size=4), length=st.integers(1, 7), token_s=st.floats(0, 2),
)  # fmt: skip
def test_at_break_even_drafting_is_as_fast_as_plain_decoding(seconds, length, token_s):
    cost = CostModel(dict(zip((1, 2, 4, 8), seconds, strict=True)))
    chance = tuning.break_even(cost, length, token_s)
    best = tuning.promised_speedup(cost, length, 1.0, token_s)
    if chance is None:
        assert best <= 1
    else:
        assert tuning.promised_speedup(cost, length, chance, token_s) >= 1
        assert chance <= 2e-4 or tuning.promised_speedup(cost, length, chance - 2e-4, token_s) < 1


def test_where_width_costs_nothing_every_hit_pays_and_where_it_is_proportional_none_does():
    assert tuning.promised_speedup(FLAT, 3, 0.5) == pytest.approx(1.875)
    assert tuning.break_even(FLAT, 3) == pytest.approx(0, abs=1e-3)
    assert tuning.break_even(LINEAR, 3) is None
    assert tuning.break_even(FLAT, 1, token_s=0.5) == pytest.approx(0.5, abs=1e-3)


def test_promises_are_made_for_lengths_that_end_at_a_good_step():
    cost = CostModel({1: 1.0, 2: 1.5, 3: 2.1, 4: 2.0, 8: 9.0})  # 3 is dearer than 4, and a token of 8 than one of 4
    assert tuning.good_steps(cost) == [1, 2, 4]
    rows = tuning.promises(cost, DraftCost(0.1, 0.01))
    assert [row.length for row in rows] == [1, 3]
    assert rows[1].free_speedups[2] > rows[1].model_speedups[2]
    assert tuning.promises(FLAT, None)[0].model_speedups == ()


def test_a_replayed_lookup_counts_hits_misses_and_what_each_forward_costs():
    cost = CostModel({1: 1.0, 2: 1.5, 4: 2.0})
    sample = tuning.Sample("edit", (0,), (7, 7, 5, 7))
    one = tuning.replay_lookup(sample, Fixed(7, 7, 7), 3, cost)
    # [7 7 x] commits three tokens at width 4, and for the last one no draft is of use
    assert one.speedup == pytest.approx(4 / 3)
    assert (one.n_accepted, one.n_judged) == (2, 3)
    assert tuning.replay_lookup(sample, Fixed(9), 1, cost).acceptance == 0


def test_a_replayed_draft_model_pays_for_every_forward_of_its_own():
    cost, draft_cost = CostModel({1: 1.0, 2: 1.0, 3: 1.0}), DraftCost(0.25, 0.0)
    agrees = (True, True, True, None, False, True)
    one = tuning.replay_model(tuning.Sample("code", (0,), (1,) * 6, agrees), 2, cost, draft_cost)
    # round 1 drafts two, both right; round 2 shows at once that it is unsure; round 3 drafts one, wrong; then the last token
    assert one.speedup == pytest.approx(6 / (1.5 + 1.25 + 1.25 + 1.0))
    assert (one.n_accepted, one.n_judged) == (2, 3)


def test_the_best_fixed_setting_is_best_over_all_kinds_together():
    def kind(name: str, *speedups: float) -> tuning.Category:
        settings = (("lookup", 3), ("lookup", 15), ("model", 3))
        replays = [tuning.Replay(*one, speedup, 1, 2) for one, speedup in zip(settings, speedups, strict=True)]
        return tuning.Category(name, 10, tuple(replays))

    best = tuning.best_fixed([kind("edit", 2.0, 3.0, 1.1), kind("chat", 1.0, 0.6, 0.9)])
    assert (best.drafter, best.length) == ("lookup", 3)
    assert best.speedup == pytest.approx(2 / (1 / 2 + 1))
    assert tuning.best_fixed([kind("chat", 0.9, 0.5, 0.8)]) == tuning.PLAIN
    assert tuning.best_fixed([]) == tuning.PLAIN


def test_every_reading_is_told_and_a_second_depth_leaves_the_cache_as_it_was():
    model = TimedModel(stairs)
    heard: list[tuple[int, float]] = []
    measure_target(model, budget_s=1e9, clock=model.clock, told=lambda width, seconds: heard.append((width, seconds)))
    assert sorted(width for width, _ in heard) == sorted(CALIBRATION_WIDTHS * 3)
    model.forward([1, 2, 3])
    assert measure_here(model, (1, 4, 5000), clock=model.clock) == {1: pytest.approx(0.01), 4: pytest.approx(0.01)}
    assert model.n_past == 3


# ---- whole runs ---------------------------------------------------------------------------------------------------------


def request(target: Path, draft: Path | None = None) -> TuneRequest:
    context = ContextConfig(threads=1)
    return TuneRequest(target=str(target), draft_model=draft and str(draft), context=context)


@pytest.fixture
def never_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    """From here on nothing may be measured before an answer."""
    for name in ("measure_target", "measure_draft"):
        monkeypatch.setattr(calibration, name, lambda *args, **options: pytest.fail("measured again"))


@pytest.fixture
def any_reading_is_plausible(monkeypatch: pytest.MonkeyPatch) -> None:
    """Beside other tests the readings of so small a model are noisy, and what cannot be is not used again."""
    monkeypatch.setattr(calibration, "is_plausible", lambda points: True)


@pytest.fixture
def tuned(any_reading_is_plausible: None, llama_gguf: Path, close_draft_gguf: Path) -> tuple[Tuning, Quiet]:
    progress = Quiet()
    return tune(request(llama_gguf, close_draft_gguf), progress), progress


def test_everything_is_measured_and_later_runs_use_it(
    tuned: tuple[Tuning, Quiet], never_measured: None, llama_gguf: Path, close_draft_gguf: Path
) -> None:
    result, progress = tuned
    assert list(result.points) == sorted(CALIBRATION_WIDTHS)
    assert all(len(seconds) == N_REPEATS for seconds in result.readings.values())
    assert {kind.name for kind in result.categories} | set(result.left_out) == {
        "chat", "code", "edit", "extraction", "summarization", "translation", "reasoning",
    }  # fmt: skip
    assert [kind.name for kind in result.categories[:2]] == ["code", "edit"]
    assert all(kind.n_tokens <= N_TOKENS and kind.best("model") for kind in result.categories)
    assert result.deep_depth > 2 * result.depth
    assert set(result.deep_points) == {1, 4, 16}
    assert len(progress.stages) == 4
    wanted = GenerateRequest(
        prompt="the", target=str(llama_gguf), draft_model=str(close_draft_gguf), sampling={"temperature": 0.0},
        context=ContextConfig(threads=1, n_ctx=1024), generate=GenerateConfig(max_tokens=8),
    )  # fmt: skip
    with answer(wanted) as done:
        done.finish()
    assert done.finish_reason in ("length", "stop")


def test_the_result_is_json_with_every_figure(tuned: tuple[Tuning, Quiet]) -> None:
    result = tuned[0].as_result()
    again = json.loads(json.dumps(result, allow_nan=False))
    assert again == result
    assert set(again["cost"]) == {str(width) for width in CALIBRATION_WIDTHS}
    assert again["draft_cost"]["share_of_forward"] == pytest.approx(
        again["draft_cost"]["token_s"] / again["cost"]["1"], rel=1e-9
    )
    assert (again["rollback"]["kind"], again["rollback"]["is_exact"]) == ("trim", True)
    assert again["rollback"]["rejection_s"] > 0
    assert again["recommendation"]["flags"] == "--drafter auto"
    assert again["recommendation"]["models_toml"] is None  # files have no names in models.toml


def test_a_draft_model_that_is_nearly_right_agrees_more_than_one_that_is_not(
    tuned: tuple[Tuning, Quiet], llama_gguf: Path, draft_gguf: Path
) -> None:
    def hits(result: Tuning) -> int:
        return sum(kind.replays[-1].n_accepted for kind in result.categories)

    assert hits(tuned[0]) > 2 * hits(tune(request(llama_gguf, draft_gguf), Quiet()))


def test_a_recurrent_model_alone_is_tuned_too(mamba_gguf: Path) -> None:
    result = tune(request(mamba_gguf), Quiet())
    assert result.draft_cost is None
    assert result.can_model_pay is None
    assert result.categories
    assert all(kind.best("model") is None for kind in result.categories)
    assert all(row.model_break_even is None for row in result.promises)


def interrupt_at(n: int) -> Callable[[int], None]:
    def at_step(n_steps: int) -> None:
        if n_steps == n:
            raise KeyboardInterrupt

    return at_step


@pytest.mark.parametrize("n_readings", [5, len(CALIBRATION_WIDTHS) * N_REPEATS + 2], ids=["forwards", "samples"])
def test_ctrl_c_keeps_what_was_measured(llama_gguf: Path, n_readings: int) -> None:
    result = tune(request(llama_gguf), Quiet(interrupt_at(n_readings)))
    assert result.is_interrupted
    assert result.as_result()["is_complete"] is False
    assert 1 in result.points
    files = list((calibration.cache_dir() / "calibration").glob("*.json"))
    kept = json.loads(files[0].read_text(encoding="utf-8"))["points"]
    assert kept == {str(width): seconds for width, seconds in result.points.items()}


def test_readings_that_were_not_repeated_leave_an_earlier_calibration_as_it_is(llama_gguf: Path) -> None:
    whole = tune(request(llama_gguf), Quiet(interrupt_at(len(CALIBRATION_WIDTHS) * N_REPEATS + 1)))
    file = next((calibration.cache_dir() / "calibration").glob("*.json"))

    def kept() -> dict[int, float]:
        return {int(width): seconds for width, seconds in json.loads(file.read_text("utf-8"))["points"].items()}

    partial = tune(request(llama_gguf), Quiet(interrupt_at(4)))
    assert len(partial.points) == 4
    assert kept() == whole.points
    assert [one.is_new for one in partial.kept] == [False]
    forced = tune(replace(request(llama_gguf), is_recalibrated=True), Quiet(interrupt_at(4)))
    assert kept() == whole.points | forced.points  # widths it did not come to stay
    assert [one.is_new for one in forced.kept] == [True]


def test_ctrl_c_before_anything_is_known_is_an_interruption(llama_gguf: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*args: object, **options: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("specllm.app.tune.use_case.measure_target", interrupted)
    with pytest.raises(KeyboardInterrupt):
        tune(request(llama_gguf), Quiet())
    assert not (calibration.cache_dir() / "calibration").exists()


@pytest.fixture
def models_file(llama_gguf: Path, close_draft_gguf: Path) -> Path:
    """A user's models.toml that names the tiny models, without an end of line at its end."""
    file = Path(os.environ["SPECLLM_CONFIG_DIR"]) / "models.toml"
    file.parent.mkdir(parents=True)
    entries = [
        f'[models.{name}]\nsources = [{{ kind = "path", path = {json.dumps(str(path))} }}]'
        for name, path in (("big", llama_gguf), ("small", close_draft_gguf))
    ]
    file.write_text("# mine\n" + "\n".join(entries), encoding="utf-8")
    return file


def test_apply_adds_the_pair_with_the_recommended_drafter_once(models_file: Path) -> None:
    old = models_file.read_text(encoding="utf-8")
    wanted = TuneRequest(target="big", draft_model="small", context=ContextConfig(threads=1), is_applied=True)
    result = tune(wanted, Quiet())
    assert result.applied == models_file
    new = models_file.read_text(encoding="utf-8")
    assert new.startswith(old)
    assert tomllib.loads(new)["pairs"] == tomllib.loads(result.snippet or "")["pairs"]
    pair = Registry.load().pair_for_target("big")
    assert pair is not None
    assert (pair.draft, pair.drafter) == ("small", "auto")
    progress = Quiet()
    with pytest.raises(ConfigError, match="already"):
        tune(wanted, progress)
    assert progress.stages == []  # said before a minute of measuring


def test_apply_needs_names(llama_gguf: Path) -> None:
    progress = Quiet()
    with pytest.raises(ConfigError, match="names"):
        tune(TuneRequest(target=str(llama_gguf), is_applied=True), progress)
    assert progress.stages == []
