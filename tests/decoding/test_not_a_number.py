"""A model that computes no numbers is told, at every temperature and inside a grammar, and never picked from."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from specllm.config import SamplingConfig
from specllm.decoding.logprobs import LogprobSampler
from specllm.decoding.sampling import KeyedSampler
from specllm.errors import BackendError
from tests.decoding.test_constraint import Only
from tests.decoding.test_sampling import FILTERS

N = 40


@given(
    logits=st.lists(st.floats(-20, 20, width=32) | st.just(-math.inf), min_size=N, max_size=N),
    places=st.sets(st.integers(0, N - 1), min_size=1),
    value=st.sampled_from([math.nan, -math.nan, math.inf]),
    temperature=st.sampled_from([0.0, 0.7, 2.0]),
    filters=st.sampled_from(FILTERS),
    repeat_penalty=st.sampled_from([1.0, 1.4]),
    bias=st.sampled_from([(), ((0, 3.0),), ((1, -math.inf),)]),
    allowed=st.none() | st.sets(st.integers(0, N - 1), min_size=1),
)
def test_a_row_with_one_in_it_is_an_error(logits, places, value, temperature, filters, repeat_penalty, bias, allowed):
    """Wherever it is, also where a grammar or a bias forbids that token: nothing else in the row can be trusted."""
    row = np.array(logits, dtype=np.float32)
    row[list(places)] = value
    config = SamplingConfig(temperature=temperature, repeat_penalty=repeat_penalty, logit_bias=bias, **filters)
    sampler = KeyedSampler(config, None if allowed is None else Only(allowed, N))
    for asked in (sampler.pick, LogprobSampler(sampler, 2).pick, sampler.candidates):
        with pytest.raises(BackendError, match="no numbers") as error:
            asked(row, [1, 2])
        assert "verify" in error.value.hint


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_row_that_rules_out_every_token_is_an_error(temperature: float) -> None:
    with pytest.raises(BackendError, match="no numbers"):
        KeyedSampler(SamplingConfig(temperature=temperature)).pick(np.full(N, -np.inf, dtype=np.float32), [1])


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_tokens_that_a_model_rules_out_are_fine(temperature: float) -> None:
    row = np.full(N, -np.inf, dtype=np.float32)
    row[7] = -3.0
    for constraint in (None, Only([6, 7], N)):
        assert KeyedSampler(SamplingConfig(temperature=temperature), constraint).pick(row, [1]) == 7
