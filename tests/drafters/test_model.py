"""The model drafter on a model whose KV cache is the list of tokens it was fed."""

from __future__ import annotations

import random
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specllm.config import SamplingConfig
from specllm.decoding.sampling import KeyedSampler
from specllm.drafters.model import ModelDrafter, floor_rule
from tests.fakes import BigramModel, CountingModel

N_VOCAB = 12
GREEDY = KeyedSampler(SamplingConfig(temperature=0.0))


def sampler_for(temperature: float, repeat_penalty: float = 1.2) -> KeyedSampler:
    return KeyedSampler(SamplingConfig(temperature=temperature, seed=3, repeat_penalty=repeat_penalty))


def expected_draft(
    model: BigramModel, window: Sequence[int], context: Sequence[int], k: int, sampler, floor: float, can_draft
) -> list[int]:
    """What the drafter should say, without a cache: the model's rows over the window, picks keyed by the context."""
    draft: list[int] = []
    while len(draft) < k:
        row = model.row([*window, *draft]).astype(np.float64)
        if np.exp(row.max()) / np.exp(row).sum() < floor:
            break
        token = sampler.pick(model.row([*window, *draft]), [*context, *draft])
        if not can_draft(token):
            break
        draft.append(token)
    return draft


def windows_of(model: BigramModel, context: Sequence[int], draft: Sequence[int]) -> list[list[int]]:
    """The part of the context in the draft's cache; what lies behind it there must be the draft, its end perhaps unread.

    Where the context ends like the draft there are two ways to see that.
    """
    windows = []
    for n_read in range(len(draft), max(len(draft) - 2, -1), -1):
        n_window = len(model.cache) - n_read
        window = list(context[len(context) - n_window :]) if 0 < n_window <= len(context) else []
        if window and model.cache == [*window, *draft[:n_read]]:
            windows.append(window)
    assert windows, f"the cache {model.cache} is no window of {list(context)} with draft {list(draft)}"
    return windows


histories = st.lists(
    st.tuples(st.integers(1, 8), st.floats(0, 1), st.integers(0, N_VOCAB - 1)),  # k, share accepted, the target's token
    min_size=1, max_size=25,
)  # fmt: skip


requests = st.lists(
    st.tuples(
        st.floats(0, 1),  # the share of the last context that it begins with
        st.lists(st.integers(0, N_VOCAB + 2), min_size=1, max_size=30),  # and what follows
        histories,
    ),
    min_size=1, max_size=3,
)  # fmt: skip


@settings(max_examples=150, deadline=None)
@given(
    requests=requests,
    n_ctx=st.sampled_from([32, 48, 4096]),
    temperature=st.sampled_from([0.0, 0.7, 1.3]),
    floor=st.sampled_from([0.0, 0.25, 0.6]),
    differing=st.sampled_from([frozenset(), frozenset({3, 7})]),
    odd_ids=st.booleans(),
)
def test_after_any_history_the_cache_is_the_contexts_window_and_the_draft_the_models(
    requests, n_ctx, temperature, floor, differing, odd_ids
):
    """Over several requests, related or not, with one cache."""

    def can_draft(token: int) -> bool:
        return token not in differing

    has_odd_ids = odd_ids or any(max(tail) >= N_VOCAB for _, tail, _ in requests)
    sampler = sampler_for(temperature, repeat_penalty=1.0 if has_odd_ids else 1.2)
    model = BigramModel(n_vocab=N_VOCAB, n_ctx=n_ctx)
    drafter = ModelDrafter(model, sampler, rule=floor_rule(floor), can_draft=can_draft)
    context: list[int] = []
    for kept, tail, history in requests:
        context = [*context[: round(kept * len(context))], *tail]
        drafter.begin(context)
        for k, share, token in history:
            draft = drafter.propose(context, k)
            assert len(draft.evidence) == len(draft.tokens)
            if context[-1] >= N_VOCAB:
                assert draft.tokens == ()
            else:
                since_unknown = next((i for i, t in enumerate(reversed(context)) if t >= N_VOCAB), len(context))
                expected = [
                    expected_draft(model, window, context, min(k, n_ctx // 4), sampler, floor, can_draft)
                    for window in windows_of(model, context, draft.tokens)
                    if len(window) >= min(since_unknown, n_ctx // 2) and all(token < N_VOCAB for token in window)
                ]
                assert list(draft.tokens) in expected
            assert not differing & set(draft.tokens)
            context += draft.tokens[: round(share * len(draft.tokens))]
            context.append(N_VOCAB + 1 if odd_ids and token == 0 else token)


def test_nothing_is_computed_before_the_first_proposal():
    model = BigramModel()
    drafter = ModelDrafter(model, GREEDY, rule=floor_rule(0.0))
    drafter.begin([1, 2, 3])
    assert model.n_forwards == 0
    drafter.propose([1, 2, 3], 2)
    assert model.n_forwards == 2
    drafter.begin([4])
    assert model.n_forwards == 2


class FedModel(BigramModel):
    """Counts the tokens it is fed."""

    n_fed = 0

    def forward(self, tokens, *, logits="all"):
        self.n_fed += len(tokens)
        return super().forward(tokens, logits=logits)


def test_what_was_read_once_is_not_read_again():
    model = FedModel()
    drafter = ModelDrafter(model, GREEDY, rule=floor_rule(0.0))
    context = list(range(10)) * 10
    drafter.begin(context)
    assert drafter.n_pending(context) == 100
    context += drafter.propose(context, 4).tokens  # all accepted
    context.append(5)
    assert model.n_fed == 100 + 3  # the last drafted token is not fed: nobody asked what follows it
    assert drafter.n_pending(context) == 2
    drafter.propose(context, 4)
    assert model.n_fed == 103 + 2 + 3  # that one and the bonus token, then the draft
    context.append(6)  # all rejected
    assert drafter.n_pending(context) == 1
    drafter.propose(context, 4)
    assert model.n_fed == 108 + 1 + 3


@pytest.mark.parametrize("n_ctx", [4096, 128])
def test_the_next_request_reads_only_what_it_does_not_share_with_the_last(n_ctx):
    """A conversation goes on, also where the window no longer holds its beginning; another text is read whole."""
    model = FedModel(n_ctx=n_ctx)
    drafter = ModelDrafter(model, GREEDY, rule=floor_rule(0.0))
    context = random.Random(1).choices(range(N_VOCAB), k=300)
    drafter.begin(context)
    n_window = min(300, n_ctx // 2)
    guess = drafter.propose(context, 4).tokens[0]
    assert model.n_fed == n_window + 3
    context += [(guess + 1) % N_VOCAB, 7, 7]  # the answer: other than drafted
    drafter.begin(context)
    assert drafter.n_pending(context) == 3
    drafter.propose(context, 1)
    assert model.n_fed == n_window + 3 + 3
    other = [N_VOCAB - 1 - token for token in context[:40]]
    drafter.begin(other)
    assert drafter.n_pending(other) == 40
    drafter.propose(other, 1)
    assert (model.n_fed, model.cache) == (n_window + 6 + 40, other)


@pytest.mark.parametrize("n_ctx", [64, 512])
def test_a_window_smaller_than_the_context_goes_on_drafting(n_ctx):
    """Fault 16."""
    model = BigramModel(n_vocab=N_VOCAB, n_ctx=n_ctx)
    drafter = ModelDrafter(model, GREEDY, rule=floor_rule(0.0))
    context = random.Random(1).choices(range(N_VOCAB), k=4000)
    drafter.begin(context)
    for _ in range(n_ctx):
        draft = drafter.propose(context, 7)
        assert len(draft.tokens) == 7
        (window,) = windows_of(model, context, draft.tokens)
        assert n_ctx // 2 <= len(window) <= n_ctx - 7
        context += [*draft.tokens[:3], 1]


def test_a_draft_longer_than_the_window_is_cut():
    model = BigramModel(n_vocab=N_VOCAB, n_ctx=64)
    drafter = ModelDrafter(model, GREEDY, rule=floor_rule(0.0))
    drafter.begin([1])
    assert 1 <= len(drafter.propose([1] * 100, 200).tokens) < 64


def test_ids_that_differ_are_never_drafted():
    model = CountingModel(n_vocab=40)
    drafter = ModelDrafter(model, GREEDY, rule=floor_rule(0.0), can_draft=lambda token: token < 17)
    drafter.begin([9])
    assert drafter.propose([9], 20).tokens == tuple(range(10, 17))
    assert drafter.propose([9, 16], 20).tokens == ()
    assert drafter.propose([9, 16, 4], 3).tokens == (5, 6, 7)


def test_ids_beyond_the_drafts_vocabulary_in_the_context_are_stepped_over():
    model = CountingModel(n_vocab=40)
    drafter = ModelDrafter(model, GREEDY, rule=floor_rule(0.0))
    context = [9, 99, 5]
    drafter.begin(context)
    assert drafter.propose(context, 2).tokens == (6, 7)
    assert model.cache == [5, 6]
    context += [6, 77]
    assert drafter.propose(context, 2).tokens == ()
    context += [20]
    assert drafter.propose(context, 2).tokens == (21, 22)
    assert model.cache == [20, 21]


def test_a_penalty_on_an_id_beyond_the_drafts_vocabulary_does_no_harm():
    drafter = ModelDrafter(BigramModel(n_vocab=N_VOCAB), sampler_for(0.0), rule=floor_rule(0.0))
    context = [N_VOCAB + 1, 3]
    drafter.begin(context)
    assert drafter.propose(context, 2).tokens


def test_a_sampled_draft_shares_the_targets_noise():
    """A draft model that is the target proposes exactly what the target will pick, at any temperature."""
    for temperature in (0.0, 0.7, 1.3):
        sampler, target = sampler_for(temperature), BigramModel()
        drafter = ModelDrafter(BigramModel(), sampler, rule=floor_rule(0.0))
        context = [1, 2]
        drafter.begin(context)
        for token in drafter.propose(context, 40).tokens:
            assert token == sampler.pick(target.row(context), context)
            context.append(token)
        assert len(context) == 42


@pytest.mark.parametrize("is_confident", [(True, True, False), (False,), (True,) * 5])
def test_the_confidence_floor_ends_a_draft_before_the_first_doubtful_token(is_confident):
    class Model(CountingModel):
        def row(self, tokens):
            row = super().row(tokens)
            place = len(tokens) - 1  # the context is one token long
            return row if place >= len(is_confident) or is_confident[place] else row / 50

    drafter = ModelDrafter(Model(n_vocab=40), GREEDY, rule=floor_rule(0.4))
    drafter.begin([3])
    n = is_confident.index(False) if False in is_confident else 5
    assert drafter.propose([3], 5).tokens == tuple(range(4, 4 + n))


@pytest.mark.parametrize(
    ("verdicts", "n"), [(["more", "last"], 2), (["more", "drop"], 1), (["drop"], 0), (["more"] * 9, 6)]
)
def test_the_rule_decides_after_every_token_whether_it_stays_and_whether_another_follows(verdicts, n):
    asked = []

    def rule(probability, evidence, k):
        asked.append((len(evidence), k))
        assert 0 < probability <= 1
        return verdicts[len(evidence) - 1]

    model = CountingModel(n_vocab=40)
    drafter = ModelDrafter(model, GREEDY, rule=rule)
    drafter.begin([3])
    draft = drafter.propose([3], 6)
    assert draft.tokens == tuple(range(4, 4 + n))
    assert len(draft.evidence) == n
    assert asked == [(i + 1, 6) for i in range(model.n_forwards)]


@pytest.mark.parametrize("at_call", range(4))
@pytest.mark.parametrize("n_fed", [0, 1, 3])
def test_after_an_interrupted_forward_it_goes_on_as_if_nothing_had_happened(at_call, n_fed):
    class Model(BigramModel):
        calls_left = at_call

        def forward(self, tokens, *, logits="all"):
            if self.calls_left == 0:
                self.calls_left = -1
                super().forward(tokens[:n_fed], logits="none")
                raise KeyboardInterrupt
            self.calls_left -= 1
            return super().forward(tokens, logits=logits)

    model = Model()
    drafter = ModelDrafter(model, GREEDY, rule=floor_rule(0.0))
    context = [1, 2, 3, 4, 5]
    drafter.begin(context)
    with pytest.raises(KeyboardInterrupt):
        drafter.propose(context, 4)
    for _ in range(3):
        draft = drafter.propose(context, 4).tokens
        assert list(draft) == expected_draft(model, context, context, 4, GREEDY, 0.0, lambda token: True)
        assert context in windows_of(model, context, draft)
        context += [draft[0], 7]


def test_a_cache_that_lost_tokens_in_an_interrupted_rollback_is_filled_again():
    """A recurrent draft model rolls back by reading again, which Ctrl-C can cut short."""

    class Model(BigramModel):
        is_interrupted = False

        def rollback(self, n_past):
            if self.is_interrupted and n_past < self.n_past:
                self.is_interrupted = False
                super().rollback(2)
                raise KeyboardInterrupt
            super().rollback(n_past)

    model = Model()
    drafter = ModelDrafter(model, GREEDY, rule=floor_rule(0.0))
    context = [1, 2, 3, 4, 5]
    drafter.begin(context)
    drafter.propose(context, 4)
    context.append(0)
    model.is_interrupted = True
    with pytest.raises(KeyboardInterrupt):
        drafter.propose(context, 4)
    draft = drafter.propose(context, 4).tokens
    assert list(draft) == expected_draft(model, context, context, 4, GREEDY, 0.0, lambda token: True)
    assert context in windows_of(model, context, draft)


def test_begin_forgets_the_last_request():
    used, fresh = BigramModel(), BigramModel()
    drafter = ModelDrafter(used, GREEDY, rule=floor_rule(0.0))
    drafter.begin([1, 2, 3])
    drafter.propose([1, 2, 3], 5)
    drafter.begin([1, 2, 8, 9])
    again = ModelDrafter(fresh, GREEDY, rule=floor_rule(0.0))
    again.begin([1, 2, 8, 9])
    assert drafter.propose([1, 2, 8, 9], 5) == again.propose([1, 2, 8, 9], 5)
    assert used.cache == fresh.cache


class FailingModel(CountingModel):
    """Computes numbers up to a place, and none behind it."""

    def __init__(self, n_numbers: int, value: float) -> None:
        super().__init__(n_vocab=N_VOCAB)
        self.n_numbers, self.value = n_numbers, value

    def row(self, tokens: Sequence[int]):
        row = super().row(tokens)
        if len(tokens) > self.n_numbers:
            row[5] = self.value
        return row


@pytest.mark.parametrize("value", [np.nan, np.inf])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_draft_model_without_numbers_is_switched_off(value, temperature, caplog):
    """The text is the target's in any case: a broken draft model costs speed, and is told once."""
    model = FailingModel(4, value)
    drafter = ModelDrafter(model, sampler_for(temperature), rule=floor_rule(0.0))
    drafter.begin([1, 2])
    assert len(drafter.propose([1, 2], 2).tokens) == 2
    assert drafter.propose([1, 2, 3, 4], 4).tokens == ()
    n_forwards = model.n_forwards
    assert drafter.propose([1, 2, 3, 4], 4).tokens == ()
    drafter.begin([1])
    assert drafter.propose([1], 1).tokens == ()
    assert model.n_forwards == n_forwards
    assert [record.message for record in caplog.records] == [
        f"the draft model is off from here on: it computes no numbers ({value})"
    ]
