"""The figures of a benchmark from its samples: speed-ups with intervals, rows, sums."""

from __future__ import annotations

import math
from dataclasses import fields, replace

import pytest

from specllm.app.bench.arms import Sample
from specllm.app.bench.stats import Speedup, k_over_time, rows, speedups, t_quantile, total
from specllm.decoding.metrics import Metrics
from specllm.decoding.protocols import Draft, Round


def sample(name: str, arm: str, run: int, tpot_s: float, category: str = "code", n: int = 11) -> Sample:
    """`n` tokens, one a round, the first one free of charge for the speed."""
    metrics = Metrics(n_prompt=101, prefill_s=1.0)
    made = [Round((5,), Draft((), "none"), 0.0, tpot_s, 0.0) for _ in range(n)]
    for one in made:
        metrics.add(one)
    return Sample(name, category, arm, run, (5,) * n, tuple(made), metrics, "length")


def test_an_interval_on_known_numbers():
    speedup = Speedup.of([1.0, 2.0, 4.0])
    half = 4.303 * math.log(2) / math.sqrt(3)
    assert speedup.mean == pytest.approx(2.0)
    assert speedup.low == pytest.approx(2 * math.exp(-half))
    assert speedup.high == pytest.approx(2 * math.exp(half))
    assert Speedup.of([1.5]) == Speedup(pytest.approx(1.5), None, None)
    assert Speedup.of([]) == Speedup(None)


@pytest.mark.parametrize(
    ("freedom", "quantile"), [(1, 12.706), (10, 2.228), (30, 2.042), (31, 2.0395), (60, 2.0003), (1000, 1.9623)]
)
def test_quantiles_are_those_of_the_tables(freedom, quantile):
    assert t_quantile(freedom) == pytest.approx(quantile, abs=0.0005)


def test_a_speedup_is_the_median_of_ratios_within_a_run():
    """The machine slows down threefold after the first run: ratios across runs would be nonsense."""
    samples = [sample("a", arm, run, tpot_s) for run, scale in enumerate((1, 3, 3)) for arm, tpot_s in
               (("none", 0.2 * scale), ("auto", (0.05 if run == 2 else 0.1) * scale))]  # fmt: skip
    assert speedups(samples) == {("a", "none"): pytest.approx(1), ("a", "auto"): pytest.approx(2)}


def test_rows_are_by_category_and_arm_and_over_all():
    samples = [sample("a", "auto", 0, 0.1), sample("a", "none", 0, 0.2), sample("b", "none", 0, 0.2, "chat"),
               sample("b", "auto", 0, 0.4, "chat", n=31)]  # fmt: skip
    table = {(row["category"], row["arm"]): row for row in rows(samples)}
    assert list(table) == [(category, arm) for category in ("code", "chat", "all") for arm in ("none", "auto")]
    assert table["code", "auto"]["speedup"] == pytest.approx(2)
    assert table["chat", "auto"]["speedup"] == pytest.approx(0.5)
    assert table["code", "auto"]["speedup_low"] is None
    assert table["all", "auto"]["speedup"] == pytest.approx(1)
    assert table["all", "auto"]["speedup_low"] < 0.01
    assert table["all", "auto"]["decode_tok_per_s"] == pytest.approx(
        40 / (1 + 12)
    )  # tokens over seconds, not a mean of speeds
    assert table["all", "none"]["prefill_tok_per_s"] == pytest.approx(100)
    assert table["all", "none"]["ceiling"] == pytest.approx(100 / 5)
    assert table["all", "auto"]["ttft_s"] == pytest.approx((1.1 + 1.4) / 2)
    assert table["all", "auto"]["n_prompts"] == 2


def test_sums_have_every_figure_of_the_metrics():
    round = Round((1, 2, 9), Draft((1, 2, 3), "model"), 0.1, 0.2, 0.3)
    one = Metrics(n_prompt=10, n_reused=2, prefill_s=1.0)
    one.add(round)
    both = total([one, one])
    for field in fields(Metrics):
        value, expected = getattr(both, field.name), getattr(one, field.name)
        if field.name == "n_reused":
            continue
        assert value == (expected + expected), field.name
    assert both.prefill_tok_per_s == pytest.approx(one.prefill_tok_per_s)


def test_one_answer_of_each_arm_shows_its_lengths_over_time():
    drafting = Round((1, 2, 9), Draft((1, 2, 3), "model"), 0.1, 0.2, 0.3)
    auto = replace(sample("b", "auto", 0, 0.1), rounds=(drafting, Round((4,), Draft((), "none"), 0, 1, 0)))
    shown = k_over_time(
        [sample("a", "none", 0, 0.1), sample("b", "none", 0, 0.1, n=20), sample("a", "auto", 0, 0.1), auto]
    )
    assert shown["auto"] == {"prompt": "b", "lengths": [3, 0], "accepted": [2, 0], "sources": ["model", "none"]}
    assert shown["none"]["prompt"] == "b"
