"""How far a draft model is let go on: against exact recursion over every sequence of confidences."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from specllm.decoding.certainty import LEVELS, Certainty, CertaintySampler
from specllm.decoding.chain import Chain, Shares

probability = st.floats(0.02, 0.999)


def exact_worth(n: int, survival: float, curve, token_s, chances, shares, rate, n_max) -> float:
    """What is to come behind `n` drafted tokens, in tokens: no grid, every confidence that may come up."""
    stopped = -rate * curve[n]
    if n == n_max:
        return stopped
    going_on = -rate * token_s
    for chance, share in zip(chances, shares, strict=True):
        alive = survival * chance
        kept = alive + exact_worth(n + 1, alive, curve, token_s, chances, shares, rate, n_max)
        going_on += share * max(kept, stopped)
    return max(going_on, stopped) if n else going_on


@given(
    steps=st.lists(st.floats(0.05, 1.5), min_size=4, max_size=5),
    token_s=st.floats(0.05, 0.8),
    classes=st.lists(st.tuples(probability, st.floats(0.1, 1.0)), min_size=2, max_size=3),
)
@example(
    steps=[0.25, 0.25, 0.25, 1.0], token_s=0.5, classes=[(0.9375, 1.0), (0.9375, 1.0)]
)  # halfway between grid points
@settings(max_examples=150, deadline=None)
def test_the_plan_is_the_best_one(steps, token_s, classes) -> None:
    curve = 1.0 + np.concatenate([[0.0], np.cumsum(steps)])
    chances, shares = np.array(classes).T
    shares = shares / shares.sum()
    chain = Chain(curve, token_s, chances, shares, 1.0)
    # At its own rate a round is worth just its time: nothing better can be promised, and this much is.
    value = 1.0 + exact_worth(0, 1.0, curve, token_s, chances, shares, chain.rate, len(curve) - 1)
    assert value == pytest.approx(0.0, abs=0.03)


def test_it_goes_on_while_confident_and_stops_where_it_is_not() -> None:
    curve = np.arange(1.0, 17.0) * 0.2 + 0.8
    chain = Chain(curve, 0.2, np.array([0.3, 0.98]), np.array([0.2, 0.8]), 1.0)
    assert chain.rate > 1.2
    assert chain.worth(1, 0.98) > chain.stopped(1)  # another forward is worth it
    assert chain.worth(1, 0.05) == pytest.approx(chain.stopped(1))


@given(survival=st.floats(1e-9, 1.0), n=st.integers(0, 60))
def test_nothing_is_worth_less_than_stopping(survival: float, n: int) -> None:
    chain = Chain(np.arange(1.0, 41.0), 0.3, np.array([0.5, 0.9]), np.array([0.5, 0.5]), 1.0)
    if 0 < n <= chain.n_max:
        assert chain.worth(n, survival) >= chain.stopped(n) - 1e-9


def test_shares_follow_what_comes_up_and_keep_levels_apart() -> None:
    shares = Shares([[1.0, 3.0], [1.0, 1.0]])
    assert shares.at(0) == pytest.approx([0.25, 0.75])
    for _ in range(400):
        shares.observe(0, (0,))
    assert shares.at(0)[0] > 0.95
    assert shares.at(1) == pytest.approx([0.5, 0.5])
    for _ in range(400):
        shares.observe(0, (1, 1))
    assert shares.at(0)[1] > 0.9


class First:
    def pick(self, logits, context) -> int:
        return int(logits.argmax())


def test_certainty_is_a_moving_average_and_the_pick_is_the_samplers_own() -> None:
    certainty = Certainty()
    sampler = CertaintySampler(First(), certainty)
    unsure, sure = np.zeros(100, dtype=np.float32), np.zeros(100, dtype=np.float32)
    sure[7] = 30.0
    for _ in range(60):
        assert sampler.pick(sure, []) == 7
    assert certainty.level == len(LEVELS)
    for _ in range(60):
        sampler.pick(unsure, [])
    assert certainty.value == pytest.approx(math.log(0.01), abs=0.1)
    assert certainty.level == 0
    certainty.begin()
    assert 0 < certainty.level < len(LEVELS)
