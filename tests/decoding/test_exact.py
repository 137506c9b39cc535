"""Blocks that compute what single tokens do: found where they are, and never left."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specllm.config import SamplingConfig
from specllm.decoding.decode import Until, decode, prefill
from specllm.decoding.exact import STEPS, ExactWidths, exact_width
from specllm.decoding.sampling import KeyedSampler
from specllm.drafters.exact import ExactDrafter
from specllm.drafters.none import NoDrafter
from tests.fakes import BigramModel, ScriptedDrafter, plain_continuation

GREEDY = KeyedSampler(SamplingConfig(temperature=0.0))


class Kernels(BigramModel):
    """Blocks wider than `limits` allow at their depth give other logits, and so does whatever follows them in the cache.

    `limits`: the widest exact block by the cells up to which that holds.
    """

    def __init__(self, limits: dict[int, int], *, shift: int = 1, **options) -> None:
        super().__init__(**options)
        self.limits, self.shift = limits, shift
        self.n_good = 0  # tokens in the cache that are as single ones would have left them
        self.widths: list[int] = []

    def forward(self, tokens, *, logits="all"):
        if logits != "all":  # the prompt is read in the same blocks by everyone
            self.n_good += len(tokens) * (self.n_good == self.n_past)
            return super().forward(tokens, logits=logits)
        self.widths.append(len(tokens))
        limit = next(width for end, width in self.limits.items() if self.n_past + 1 <= end)
        end = next(end for end in self.limits if self.n_past + 1 <= end)
        is_good = len(tokens) <= limit and self.n_past + len(tokens) <= end and self.n_good == self.n_past
        self.n_good += len(tokens) * is_good
        rows = super().forward(tokens, logits=logits)
        return rows if is_good else np.roll(rows, self.shift, axis=1)

    def rollback(self, n_past):
        super().rollback(n_past)
        self.n_good = min(self.n_good, n_past)


@pytest.mark.parametrize("limit", [1, 2, 3, 4, 7, 8, 15, 16, 100, 10**6])
def test_the_last_step_before_the_kernels_change_is_found_and_the_cache_left_as_it_was(limit):
    model = Kernels({10**9: limit})
    model.forward([1, 2, 3, 4], logits="none")
    known = exact_width(model, 5, STEPS[1:])
    assert known == max(step for step in STEPS if step <= limit)
    assert model.cache == [1, 2, 3, 4]
    assert model.n_good == 4
    assert max(model.widths) <= 2 * max(limit, 2)


def test_the_smallest_difference_counts():
    class Nearly(BigramModel):
        def forward(self, tokens, *, logits="all"):
            rows = super().forward(tokens, logits=logits)
            if len(tokens) > 2:
                rows[-1, 3] = np.nextafter(rows[-1, 3], np.float32(np.inf))
            return rows

    assert exact_width(Nearly(), 5, STEPS[1:]) == 2


def test_only_what_is_wanted_and_has_room_is_tried_and_that_once():
    model = Kernels({10**9: 64}, n_ctx=300)
    model.forward([1] * 100, logits="none")
    widths = ExactWidths(model)
    assert widths.known(5) is None
    assert widths.of(5, 1) == 5
    assert max(model.widths) == 8  # the step above
    n_forwards = model.n_forwards
    assert [widths.of(n, 1) for n in (1, 2, 5, 8)] == [1, 2, 5, 8]
    assert model.n_forwards == n_forwards
    assert widths.known(9) is None
    assert widths.of(200, 1) == 64
    n_forwards = model.n_forwards
    assert widths.of(200, 1) == 64
    assert model.n_forwards == n_forwards
    model.forward([1] * (254 - 100), logits="none")
    assert widths.of(200, 1) == 2  # no block over the end of what was measured
    model.forward([1] * (299 - 254), logits="none")
    assert widths.of(200, 1) == 1
    assert widths.as_dict()["256"] == 64


def test_a_target_that_is_independent_of_widths_has_no_limit_and_nothing_is_measured():
    class Independent(Kernels):
        is_width_independent = True

    model = Independent({10**9: 3})
    widths = ExactWidths(model)
    assert widths.known(200) == widths.of(200, 1) == 200
    assert widths.summary() == "blocks of any length"
    assert model.n_forwards == 0


def test_another_depth_is_measured_anew():
    model = Kernels({256: 3, 10**9: 1})
    widths = ExactWidths(model)
    model.forward([1] * 200, logits="none")
    assert widths.of(9, 1) == 3
    assert widths.summary() == "blocks of at most 3 tokens"
    model.forward([1] * 56, logits="none")
    assert widths.known(9) is None
    assert widths.of(9, 1) == 1
    assert widths.as_dict() == {"256": 3, "512": 1}
    assert widths.summary() == "blocks of at most 1 to 3 tokens"


def run(model, drafter, prompt, k, n, sampler=GREEDY):
    context = list(prompt)
    list(prefill(model, context))
    drafter.begin(context)
    rounds = list(decode(model, drafter, sampler, context, k, Until(n)))
    assert model.cache == context[:-1]
    return context[len(prompt) :], rounds


@settings(deadline=None, max_examples=60)
@given(
    limit=st.integers(1, 9), deeper=st.integers(1, 9), n_prompt=st.integers(1, 300), k=st.integers(1, 12),
    seed=st.integers(0, 50), temperature=st.sampled_from([0.0, 1.0]),
)  # fmt: skip
def test_the_text_is_plain_decodings_whatever_wide_blocks_would_have_said(
    limit, deeper, n_prompt, k, seed, temperature
):
    sampler = KeyedSampler(SamplingConfig(temperature=temperature, seed=seed))
    limits = {256: limit, 10**9: deeper}
    model = Kernels(limits, seed=seed)
    prompt = [i % model.n_vocab for i in range(n_prompt)]
    honest = BigramModel(seed=seed)

    def script(context, k):
        right = plain_continuation(honest, sampler, context, k)
        return [token if (len(context) + i + seed) % 5 else 0 for i, token in enumerate(right)]

    plain, _ = run(Kernels(limits, seed=seed), NoDrafter(), prompt, 0, 40, sampler)
    drafted, rounds = run(model, ExactDrafter(ScriptedDrafter(script), ExactWidths(model)), prompt, k, 40, sampler)
    assert drafted == plain
    assert max(round.width for round in rounds) <= max(limit, deeper)


def test_without_it_that_model_says_something_else():
    model, honest = Kernels({10**9: 2}), BigramModel()
    drafter = ScriptedDrafter(lambda context, k: plain_continuation(honest, GREEDY, context, k))
    plain, _ = run(Kernels({10**9: 2}), NoDrafter(), [1, 2], 0, 20)
    assert run(model, drafter, [1, 2], 5, 20)[0] != plain
    exact, rounds = run(model := Kernels({10**9: 2}), ExactDrafter(drafter, ExactWidths(model)), [1, 2], 5, 20)
    assert exact == plain
    assert {round.width for round in rounds} == {2}


def test_nothing_is_measured_where_nothing_is_drafted():
    model = Kernels({10**9: 3})
    run(model, ExactDrafter(ScriptedDrafter(lambda context, k: []), ExactWidths(model)), [1, 2], 8, 20)
    assert set(model.widths) == {1}
    assert len(model.widths) == 20
