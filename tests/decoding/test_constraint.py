"""The mask in the sampler's chain: behind bias and penalties, in front of the filters."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specllm.config import SamplingConfig
from specllm.decoding.constraint import is_allowed, masked
from specllm.decoding.sampling import KeyedSampler
from specllm.errors import NothingAllowed
from tests.decoding.test_sampling import FILTERS


class Only:
    """Allows the same tokens everywhere."""

    def __init__(self, tokens: Sequence[int], n_vocab: int) -> None:
        self.bits = np.packbits([token in tokens for token in range(n_vocab)], bitorder="little")

    def mask(self, context: Sequence[int]):
        return self.bits


@settings(max_examples=300, deadline=None)
@given(
    logits=st.lists(st.floats(-20, 20, width=32), min_size=1, max_size=30),
    chosen=st.sets(st.integers(0, 29), min_size=1),
    filters=st.sampled_from(FILTERS),
    temperature=st.sampled_from([0.0, 0.7, 1.3]),
    repeat_penalty=st.sampled_from([1.0, 1.4]),
    bias=st.sampled_from([(), ((0, 3.0),), ((0, -math.inf),)]),
    seed=st.integers(0, 5),
)
def test_a_masked_row_is_a_row_in_which_all_else_is_forbidden_by_bias(
    logits, chosen, filters, temperature, repeat_penalty, bias, seed
):
    row, context = np.array(logits, dtype=np.float32), [0, 0]
    allowed = {token % len(row) for token in chosen}
    options = {"temperature": temperature, "repeat_penalty": repeat_penalty, "seed": seed, **filters}
    forbidden = tuple((token, -math.inf) for token in range(len(row)) if token not in allowed)
    sampler = KeyedSampler(SamplingConfig(logit_bias=bias, **options), Only(allowed, len(row)))
    if allowed == {0} and bias == ((0, -math.inf),):
        with pytest.raises(NothingAllowed):
            sampler.pick(row, context)
        return
    reference = KeyedSampler(SamplingConfig(logit_bias=(*bias, *forbidden), **options))
    before = row.copy()
    assert sampler.pick(row, context) == reference.pick(row, context)
    ours, theirs = sampler.candidates(row, context), reference.candidates(row, context)
    assert ours.tokens.tolist() == theirs.tokens.tolist()
    assert ours.logprobs.tolist() == theirs.logprobs.tolist()
    assert row.tolist() == before.tolist()


@pytest.mark.parametrize("n_row", [5, 8, 20, 40])
def test_a_row_may_be_shorter_or_longer_than_the_mask(n_row):
    mask = Only([3, 7, 19], 20).bits
    row = masked(np.zeros(n_row, dtype=np.float32), mask)
    assert np.flatnonzero(row == 0).tolist() == [token for token in (3, 7, 19) if token < n_row]
    assert [token for token in range(64) if is_allowed(mask, token)] == [3, 7, 19]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_nothing_left_is_an_error_with_a_next_step(temperature):
    sampler = KeyedSampler(SamplingConfig(temperature=temperature), Only([9], 10))
    for row in (np.zeros(9, dtype=np.float32), np.full(10, -np.inf, dtype=np.float32)):
        with pytest.raises(NothingAllowed) as error:
            sampler.pick(row, [0])
        assert error.value.hint
