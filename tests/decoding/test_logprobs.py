"""Log probabilities: those of the definition, of every committed token, whoever drafted it."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specllm.config import SamplingConfig
from specllm.decoding.decode import Until, decode, prefill
from specllm.decoding.logprobs import LogprobSampler, Ranking
from specllm.decoding.sampling import KeyedSampler
from specllm.drafters.none import NoDrafter
from tests.fakes import BigramModel, ScriptedDrafter, plain_continuation

logits = st.lists(st.floats(-60, 60, width=32) | st.just(-math.inf), min_size=2, max_size=30)


def by_definition(values: list[float]) -> list[float]:
    total = math.fsum(math.exp(value) for value in values)
    return [value - math.log(total) for value in values]


@settings(deadline=None)
@given(logits.filter(lambda values: max(values) > -math.inf), st.integers(0, 40), st.data())
def test_a_row_is_ranked_by_definition(values, n_best, data):
    token = data.draw(st.integers(0, len(values) - 1))
    ranking = Ranking.of_row(np.array(values, dtype=np.float32), token, n_best)
    expected = by_definition(values)
    assert ranking.logprob == pytest.approx(expected[token], abs=1e-9)
    order = sorted((i for i, value in enumerate(values) if value > -math.inf), key=lambda i: (-values[i], i))
    assert [one for one, _ in ranking.best] == order[:n_best]
    assert [logprob for _, logprob in ranking.best] == pytest.approx([expected[i] for i in order[:n_best]], abs=1e-9)


def test_large_logits_do_not_overflow():
    ranking = Ranking.of_row(np.array([3e4, 3e4, -3e4], dtype=np.float32), 1, 1)
    assert ranking == Ranking(pytest.approx(math.log(0.5)), ((0, pytest.approx(math.log(0.5))),))


SAMPLINGS = [
    SamplingConfig(temperature=0.0),
    SamplingConfig(temperature=0.0, repeat_penalty=1.4),
    SamplingConfig(temperature=1.0, top_k=0, top_p=1.0, min_p=0.0),
    SamplingConfig(temperature=0.7, top_k=5, seed=3, logit_bias=((4, 2.0), (5, -math.inf))),
]


def answered(sampling: SamplingConfig, drafter, k: int) -> LogprobSampler:
    model, sampler = BigramModel(seed=2), LogprobSampler(KeyedSampler(sampling), 3)
    context = [1, 2, 3]
    list(prefill(model, context))
    drafter.begin(context)
    for _ in decode(model, drafter, sampler, context, k, Until(20)):
        pass
    assert [one.token for one in sampler.kept(3, 23)] == context[3:]
    return sampler


@pytest.mark.parametrize("sampling", SAMPLINGS)
@pytest.mark.parametrize("n_right", [0, 2, 7])
def test_a_drafted_token_has_what_it_has_without_a_draft(sampling, n_right):
    """Fault 24."""
    model = BigramModel(seed=2)

    def script(context, k):
        right = plain_continuation(model, KeyedSampler(sampling), context, k)
        return [token if i < n_right else (token + 1) % model.n_vocab for i, token in enumerate(right)]

    plain = answered(sampling, NoDrafter(), 0).kept(3, 23)
    assert answered(sampling, ScriptedDrafter(script), 5).kept(3, 23) == plain
    assert all(one.raw.logprob < 0 for one in plain)
    is_greedy = sampling.temperature == 0
    assert all((one.sampled.logprob == 0) is is_greedy or len(one.sampled.best) == 1 for one in plain)


def test_the_sampled_distribution_is_that_of_the_filters_and_the_raw_one_is_not():
    row = np.array([1.0, 3.0, 2.0, -1.0], dtype=np.float32)
    sampling = SamplingConfig(
        temperature=0.5, top_k=2, top_p=1.0, min_p=0.0, logit_bias=((0, 4.0),), repeat_penalty=2.0
    )  # so the logits are 5, 1.5, 2 and -2
    sampler = LogprobSampler(KeyedSampler(sampling), 4)
    token = sampler.pick(row, [3, 1])
    (found,) = sampler.kept(2, 3)
    raw, sampled = by_definition([1.0, 3.0, 2.0, -1.0]), by_definition([10.0, 4.0])
    assert dict(found.raw.best) == pytest.approx(dict(enumerate(raw)))
    assert dict(found.sampled.best) == pytest.approx({0: sampled[0], 2: sampled[1]})
    assert found.raw.logprob == pytest.approx(raw[token])
    assert found.sampled.logprob == pytest.approx(dict(found.sampled.best)[token])
