"""Figures that no other test counts."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specllm.decoding.metrics import Metrics, recent_tok_per_s
from specllm.decoding.protocols import Draft, Round


def round_of(n_draft: int, n_accepted: int, source: str = "reference", seconds: float = 0.1) -> Round:
    draft = Draft(tuple(range(n_draft)), source)
    return Round((*draft.tokens[:n_accepted], 999), draft, 0.0, seconds, 0.0)


def folded(rounds: list[Round], n_prediction: int = 100) -> Metrics:
    metrics = Metrics(n_prediction=n_prediction)
    for round in rounds:
        metrics.add(round)
    return metrics


def test_what_is_drafted_from_a_prediction_is_accepted_or_rejected() -> None:
    metrics = folded([round_of(8, 8), round_of(5, 2), round_of(4, 3, "lookup"), round_of(0, 0, "none"), round_of(3, 0)])
    assert (metrics.n_prediction_accepted, metrics.n_prediction_rejected) == (10, 6)
    figures = metrics.as_dict()
    assert (figures["n_prediction_accepted"], figures["n_prediction_rejected"]) == (10, 6)


def test_without_a_prediction_nothing_is_said_about_it() -> None:
    metrics = folded([round_of(4, 3, "lookup")], n_prediction=0)
    assert (metrics.n_prediction_accepted, metrics.n_prediction_rejected) == (None, None)


def test_a_prediction_nobody_drafted_from_has_zeros() -> None:
    metrics = folded([round_of(4, 3, "lookup")])
    assert (metrics.n_prediction_accepted, metrics.n_prediction_rejected) == (0, 0)
    assert metrics.accepted_by_source == {"lookup": 3}  # asking leaves no trace


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9), st.sampled_from(["reference", "lookup"]))))
def test_accepted_and_rejected_add_up_to_drafted(rounds: list[tuple[int, int, str]]) -> None:
    made = [round_of(n, min(n, m), source) for n, m, source in rounds]
    metrics = folded(made)
    n_drafted = sum(len(round.draft.tokens) for round in made if round.draft.source == "reference")
    assert (metrics.n_prediction_accepted or 0) + (metrics.n_prediction_rejected or 0) == n_drafted


def test_the_speed_now_is_that_of_the_last_second() -> None:
    slow, fast = [round_of(0, 0, seconds=1.0)] * 5, [round_of(9, 9, seconds=0.5)] * 2
    assert recent_tok_per_s([*slow, *fast]) == pytest.approx(20.0)
    assert recent_tok_per_s([*fast, *slow]) == pytest.approx(1.0)
    assert recent_tok_per_s([]) is None


timed = st.floats(0.001, 10)


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9), timed), min_size=2), timed)
def test_the_speedup_is_what_plain_decoding_would_have_taken_over_what_it_took(
    rounds: list[tuple[int, int, float]], forward_s: float
) -> None:
    """From the end of the first round on, like the decode speed: the tokens of both are the same."""
    made = [
        replace(round_of(n, min(n, m), seconds=seconds), plain_s=forward_s * (min(n, m) + 1))
        for n, m, seconds in rounds
    ]
    metrics = folded(made)
    took_s = sum(round.verify_s for round in made[1:])
    plain_s = forward_s * sum(len(round.tokens) for round in made[1:])
    assert metrics.plain_tok_per_s == pytest.approx(1 / forward_s)
    assert metrics.speedup_over_plain == pytest.approx(plain_s / took_s)
    figures = metrics.as_dict()
    assert (figures["plain_tok_per_s"], figures["speedup_over_plain"]) == (
        metrics.plain_tok_per_s,
        metrics.speedup_over_plain,
    )


@given(st.lists(st.integers(0, 9), max_size=5))
def test_where_plain_decoding_was_not_measured_there_is_no_speedup(lengths: list[int]) -> None:
    metrics = folded([round_of(n, n) for n in lengths])
    assert (metrics.plain_tok_per_s, metrics.speedup_over_plain) == (None, None)
