"""The sampler: its chain against a slow reference, its law exactly and by chi-square, its keyed noise."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specllm.config import SamplingConfig
from specllm.decoding.sampling import KeyedSampler, gumbel_noise
from specllm.errors import ConfigError

FILTERS = [
    {"top_k": 0, "top_p": 1.0, "min_p": 0.0},
    {"top_k": 3, "top_p": 1.0, "min_p": 0.0},
    {"top_k": 0, "top_p": 0.8, "min_p": 0.0},
    {"top_k": 0, "top_p": 1.0, "min_p": 0.2},
    {"top_k": 4, "top_p": 0.9, "min_p": 0.05},
]


def reference_law(logits, context, config: SamplingConfig) -> dict[int, float]:
    """The chain as llama.cpp defines it, one plain loop a step: token -> probability."""
    values = {token: float(value) for token, value in enumerate(logits)}
    for token, bias in config.logit_bias:
        values[token] += bias
    window = context if config.penalty_last_n < 0 else context[max(0, len(context) - config.penalty_last_n) :]
    for token in set(window):
        value = values[token]
        value = value / config.repeat_penalty if value > 0 else value * config.repeat_penalty
        values[token] = value - window.count(token) * config.frequency_penalty - config.presence_penalty

    ordered = sorted((token for token in values if values[token] > -math.inf), key=lambda t: (-values[t], t))
    ordered = ordered[: config.top_k or None]

    def probabilities(tokens, temperature=1.0):
        weights = [math.exp((values[token] - values[tokens[0]]) / temperature) for token in tokens]
        return [weight / sum(weights) for weight in weights]

    if config.top_p < 1:
        total = 0.0
        for n, p in enumerate(probabilities(ordered), start=1):
            total += p
            if total >= config.top_p - 1e-12:
                ordered = ordered[:n]
                break
    if config.min_p > 0:
        ordered = [token for token in ordered if values[token] >= values[ordered[0]] + math.log(config.min_p)]
    return dict(zip(ordered, probabilities(ordered, config.temperature), strict=True))


finite_logits = st.lists(st.floats(-20, 20, width=32), min_size=1, max_size=30)


@settings(max_examples=300, deadline=None)
@given(
    logits=finite_logits,
    context=st.lists(st.integers(0, 0), max_size=0) | st.lists(st.integers(0, 29), max_size=12),
    filters=st.sampled_from(FILTERS),
    temperature=st.sampled_from([0.3, 0.7, 1.0, 1.3]),
    penalties=st.sampled_from([(1.0, 0.0, 0.0), (1.3, 0.0, 0.0), (0.9, 0.5, 0.25)]),
    penalty_last_n=st.sampled_from([-1, 0, 3, 64]),
    bias=st.sampled_from([(), ((0, 3.0),), ((0, -5.0), (0, 1.0))]),
)
def test_the_chain_is_llama_cpps(logits, context, filters, temperature, penalties, penalty_last_n, bias):
    context = [token % len(logits) for token in context]
    repeat, frequency, presence = penalties
    config = SamplingConfig(
        temperature=temperature, repeat_penalty=repeat, frequency_penalty=frequency, presence_penalty=presence,
        penalty_last_n=penalty_last_n, logit_bias=bias, **filters,
    )  # fmt: skip
    row = np.array(logits, dtype=np.float32)
    before = row.copy()
    candidates = KeyedSampler(config).candidates(row, context)
    law = reference_law(row, context, config)
    got = dict(zip(candidates.tokens.tolist(), np.exp(candidates.logprobs).tolist(), strict=True))
    # A value on the edge of a filter may fall either way in float32; its probability then decides.
    for token in law.keys() ^ got.keys():
        assert {**law, **got}[token] < 1e-3 or filters["top_p"] < 1
    if law.keys() == got.keys():
        assert got == pytest.approx(law, abs=1e-5)
    assert np.array_equal(row, before), "the row is the model's memory and must not be written"


@settings(max_examples=200, deadline=None)
@given(logits=st.lists(st.floats(-50, 50, width=32) | st.just(-np.inf) | st.just(1.0), min_size=1, max_size=200),
       k=st.integers(0, 50))  # fmt: skip
def test_top_k_equals_a_full_sort_with_ties_broken_by_id(logits, k):
    row = np.array(logits, dtype=np.float32)
    if not np.isfinite(row).any():
        return
    config = SamplingConfig(top_k=k, top_p=1.0, min_p=0.0, temperature=1.0)
    tokens = KeyedSampler(config).candidates(row, []).tokens
    expected = sorted((i for i in range(len(row)) if row[i] > -np.inf), key=lambda i: (-row[i], i))[: k or None]
    assert tokens.tolist() == expected


@pytest.mark.parametrize("spread", [0.3, 2.0, 6.0])
@pytest.mark.parametrize(
    "filters", [*FILTERS, {"top_k": 40, "top_p": 0.999, "min_p": 0.001}, {"top_k": 300, "top_p": 0.5, "min_p": 0.0}]
)
def test_what_is_not_looked_at_never_changes_the_answer(filters, spread):
    """On rows of 5,000 logits, flat and peaked: the same survivors as with every logit sorted."""
    rng = np.random.default_rng(8)
    config = SamplingConfig(temperature=0.8, **filters)
    for _ in range(2):
        row = rng.normal(0, spread, 5000).astype(np.float32)
        candidates = KeyedSampler(config).candidates(row, [])
        assert candidates.tokens.tolist() == list(reference_law(row, [], config))


def test_greedy_is_the_highest_logit_and_the_lowest_id_of_equal_ones():
    sampler = KeyedSampler(SamplingConfig(temperature=0.0))
    assert sampler.pick(np.array([1, 5, 5, 2], dtype=np.float32), []) == 1


@pytest.mark.parametrize("filters", FILTERS)
@pytest.mark.parametrize("temperature", [0.7, 1.0, 1.3])
def test_the_law_on_a_tiny_vocabulary_is_exact(filters, temperature):
    """Gumbel-max has the law p when the noise is Gumbel and independent over tokens: both are checked on what the chain
    leaves, over many positions, with a bound of five standard errors for every token."""
    row = np.array([1.5, 0.3, -0.7, 2.0, 0.0], dtype=np.float32)
    config = SamplingConfig(temperature=temperature, seed=11, **filters)
    sampler, law = KeyedSampler(config), reference_law(row, [], config)
    n = 12_000
    counts = np.zeros(5)
    for position in range(n):
        counts[sampler.pick(row, range(position))] += 1
    for token in range(5):
        p = law.get(token, 0.0)
        assert abs(counts[token] / n - p) <= 5 * math.sqrt(p * (1 - p) / n), (token, p, counts / n)


def test_two_positions_are_independent():
    """The joint law of two following picks is the product of their laws: keyed noise does not repeat itself."""
    row = np.log(np.array([0.5, 0.3, 0.2], dtype=np.float32))
    config = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0}
    n = 6000
    counts = np.zeros((3, 3))
    for seed in range(n):
        sampler = KeyedSampler(SamplingConfig(seed=seed, **config))
        counts[sampler.pick(row, range(7)), sampler.pick(row, range(8))] += 1
    expected = n * np.exp(row)[:, None] * np.exp(row)[None, :]
    assert ((counts - expected) ** 2 / expected).sum() < 26.1  # chi-square, 8 degrees of freedom, p = 0.001


@pytest.mark.parametrize("filters", FILTERS[1:])
def test_the_law_on_a_larger_vocabulary_passes_chi_square(filters):
    rng = np.random.default_rng(5)
    row = rng.normal(0, 1.5, 2000).astype(np.float32)
    config = SamplingConfig(temperature=0.9, seed=3, **filters)
    sampler, law = KeyedSampler(config), reference_law(row, [], config)
    n = 12_000
    counts: dict[int, int] = {}
    for position in range(n):
        token = sampler.pick(row, range(position))
        counts[token] = counts.get(token, 0) + 1
    assert counts.keys() <= law.keys()
    frequent = [token for token, p in law.items() if n * p >= 5]
    pooled = 1 - sum(law[token] for token in frequent)
    statistic = sum((counts.get(token, 0) - n * law[token]) ** 2 / (n * law[token]) for token in frequent)
    if pooled * n >= 5:
        statistic += (sum(c for t, c in counts.items() if t not in set(frequent)) - n * pooled) ** 2 / (n * pooled)
    degrees = max(1, len(frequent) - (pooled * n < 5))
    assert statistic < degrees + 4 * math.sqrt(2 * degrees) + 8  # beyond p = 1e-4 at every size


def test_noise_is_standard_gumbel_and_a_function_of_its_key():
    noise = np.concatenate([gumbel_noise(9, position, np.arange(1000)) for position in range(100)])
    assert noise.mean() == pytest.approx(0.5772, abs=0.02)  # Euler's constant
    assert noise.var() == pytest.approx(math.pi**2 / 6, abs=0.03)
    assert np.array_equal(gumbel_noise(9, 4, np.array([17, 3])), gumbel_noise(9, 4, np.array([3, 17]))[::-1])
    assert not np.array_equal(gumbel_noise(9, 4, np.arange(5)), gumbel_noise(9, 5, np.arange(5)))
    assert not np.array_equal(gumbel_noise(9, 4, np.arange(5)), gumbel_noise(10, 4, np.arange(5)))


def test_shared_noise_agrees_at_least_as_often_as_the_bound_says():
    rng = np.random.default_rng(1)
    config = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0, "seed": 4}
    sampler = KeyedSampler(SamplingConfig(**config))
    p_row = rng.normal(0, 1, 50).astype(np.float32)
    q_row = (p_row + rng.normal(0, 0.7, 50)).astype(np.float32)
    p, q = (np.exp(row - np.logaddexp.reduce(row)) for row in (p_row, q_row))
    total_variation = 0.5 * np.abs(p - q).sum()
    n = 8000
    agreed = sum(sampler.pick(p_row, range(i)) == sampler.pick(q_row, range(i)) for i in range(n)) / n
    independent = float((p * q).sum())
    assert agreed >= (1 - total_variation) / (1 + total_variation) - 0.02
    assert agreed > 2 * independent


@pytest.mark.parametrize(
    "wrong",
    [
        {"temperature": -0.1}, {"temperature": math.nan}, {"temperature": math.inf}, {"top_k": -1}, {"top_p": 0.0},
        {"top_p": 1.1}, {"min_p": -0.1}, {"min_p": 1.5}, {"repeat_penalty": 0.0}, {"frequency_penalty": math.nan},
        {"penalty_last_n": -2}, {"seed": -1}, {"seed": 2**64}, {"logit_bias": ((-1, 1.0),)},
        {"logit_bias": ((1, math.nan),)}, {"logit_bias": ((1, math.inf),)},
    ],
)  # fmt: skip
def test_impossible_settings_are_refused_by_name(wrong):
    with pytest.raises(ConfigError) as error:
        SamplingConfig(**wrong)
    assert error.value.hint
