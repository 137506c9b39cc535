"""The loop, on a model whose KV cache is the list of tokens it was fed."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specllm.config import SamplingConfig
from specllm.decoding.decode import Until, decode, prefill
from specllm.decoding.metrics import Metrics
from specllm.decoding.protocols import Round
from specllm.decoding.sampling import KeyedSampler
from specllm.drafters.lookup import LookupDrafter
from specllm.drafters.model import ModelDrafter, floor_rule
from specllm.drafters.none import NoDrafter
from tests.fakes import BigramModel, CountingModel, ScriptedDrafter, plain_continuation

GREEDY = KeyedSampler(SamplingConfig(temperature=0.0))


def run(model, drafter, sampler, prompt, k, until) -> tuple[list[int], list[Round]]:
    context = list(prompt)
    list(prefill(model, context))
    drafter.begin(context)
    rounds = []
    for round in decode(model, drafter, sampler, context, k, until):
        assert model.cache == context[:-1]
        rounds.append(round)
    return context[len(prompt) :], rounds


def perfect_drafter(model, sampler) -> ScriptedDrafter:
    return ScriptedDrafter(lambda context, k: plain_continuation(model, sampler, context, k))


def test_full_acceptance_adds_a_bonus_token():
    model = BigramModel()
    tokens, rounds = run(model, perfect_drafter(model, GREEDY), GREEDY, [1, 2], 4, Until(10))
    assert tokens == plain_continuation(model, GREEDY, [1, 2], 10)
    assert [len(round.tokens) for round in rounds] == [5, 5]
    assert [round.n_accepted for round in rounds] == [4, 4]


def test_the_first_mismatch_is_corrected_and_the_rest_of_the_draft_dropped():
    model = BigramModel()

    def third_is_wrong(context, k):
        right = plain_continuation(model, GREEDY, context, k)
        return [(token + (i == 2)) % model.n_vocab for i, token in enumerate(right)]

    tokens, rounds = run(model, ScriptedDrafter(third_is_wrong), GREEDY, [3], 5, Until(9))
    assert tokens == plain_continuation(model, GREEDY, [3], 9)
    assert [round.n_accepted for round in rounds] == [2, 2, 2]
    assert [round.is_rejected for round in rounds] == [True, True, False]  # the last draft was two tokens long


drafter_names = st.sampled_from(["none", "lookup", "model", "self", "random", "too long"])


def make_drafter(name: str, target: BigramModel, sampler: KeyedSampler, seed: int):
    import random

    rng = random.Random(seed)
    return {
        "none": NoDrafter(),
        "lookup": LookupDrafter(min_match=2),
        "model": ModelDrafter(BigramModel(seed=seed), sampler, rule=floor_rule(0.0)),
        "self": ModelDrafter(BigramModel(seed=0), sampler, rule=floor_rule(0.3)),
        "random": ScriptedDrafter(lambda _, k: [rng.randrange(target.n_vocab) for _ in range(rng.randint(0, k))]),
        "too long": ScriptedDrafter(lambda context, k: plain_continuation(target, sampler, context, k + 3)),
    }[name]


@settings(max_examples=150, deadline=None)
@given(
    name=drafter_names,
    k=st.integers(0, 16),
    n=st.integers(1, 40),
    seed=st.integers(0, 2**64 - 1),
    temperature=st.sampled_from([0.0, 0.7, 1.3]),
    prompt=st.lists(st.integers(0, 11), min_size=1, max_size=20),
    repeat_penalty=st.sampled_from([1.0, 1.3]),
)
def test_text_is_the_targets_own_for_every_drafter_and_length(name, k, n, seed, temperature, prompt, repeat_penalty):
    sampler = KeyedSampler(SamplingConfig(temperature=temperature, seed=seed, repeat_penalty=repeat_penalty))
    model = BigramModel()
    tokens, rounds = run(model, make_drafter(name, model, sampler, seed % 1000), sampler, prompt, k, Until(n))
    assert tokens == plain_continuation(model, sampler, prompt, n)
    metrics = Metrics()
    for round in rounds:
        metrics.add(round)
    assert metrics.n_committed == metrics.n_rounds + metrics.n_accepted == n
    assert metrics.n_accepted <= metrics.n_drafted


@pytest.mark.parametrize("n", range(1, 21))
def test_max_tokens_is_exact_whatever_is_drafted(n):
    model = BigramModel()
    tokens, rounds = run(model, perfect_drafter(model, GREEDY), GREEDY, [5], 7, Until(n))
    assert len(tokens) == n
    assert rounds[-1].reason == "length"


@pytest.mark.parametrize("offset", range(12))
def test_a_stop_inside_a_block_commits_nothing_behind_it(offset):
    model = CountingModel(n_vocab=400)
    plain = plain_continuation(model, GREEDY, [7], 12)
    until = Until(100, is_stop=lambda token: token == plain[offset])
    tokens, rounds = run(model, perfect_drafter(model, GREEDY), GREEDY, [7], 5, until)
    assert tokens == plain[: offset + 1]
    assert rounds[-1].reason == "stop"
    assert model.n_past == offset + 1  # prompt and all committed tokens but the last
    assert sum(len(round.tokens) for round in rounds) == len(rounds) + sum(round.n_accepted for round in rounds)
    assert not any(round.is_rejected for round in rounds)


@pytest.mark.parametrize("offset", range(8))
def test_nothing_behind_a_drafted_end_of_generation_is_evaluated(offset):
    model = CountingModel(n_vocab=400)
    plain = plain_continuation(model, GREEDY, [7], 12)
    until = Until(100, eog=frozenset([plain[offset]]))
    tokens, rounds = run(model, perfect_drafter(model, GREEDY), GREEDY, [7], 12, until)
    assert tokens == plain[: offset + 1]
    assert [round.reason for round in rounds] == ["eog"]
    assert rounds[0].width == offset + 1


def test_every_round_commits_a_token_even_where_the_target_changes_its_mind():
    class FlippingModel(BigramModel):
        def row(self, tokens):
            row = super().row(tokens).copy()
            best, second = row.argsort()[-1], row.argsort()[-2]
            if self.n_forwards % 2:
                row[best], row[second] = row[second], row[best]
            return row

    model = FlippingModel()
    _, rounds = run(model, perfect_drafter(model, GREEDY), GREEDY, [1], 8, Until(50))
    assert all(round.tokens for round in rounds)
    assert sum(len(round.tokens) for round in rounds) == 50


def test_counters_follow_a_known_pattern():
    model = BigramModel()
    lengths = iter([2, 0, 1, 3, 1000])  # how many of the four drafted tokens are right

    def script(context, k):
        n_right = next(lengths)
        right = plain_continuation(model, GREEDY, context, k)
        return [token if i < n_right else (token + 1) % model.n_vocab for i, token in enumerate(right)]

    _, rounds = run(model, ScriptedDrafter(script), GREEDY, [2], 4, Until(3 + 1 + 2 + 4 + 5))
    metrics = Metrics()
    for round in rounds:
        metrics.add(round)
    assert (metrics.n_rounds, metrics.n_drafted, metrics.n_accepted) == (5, 20, 10)
    assert metrics.zero_accept_share == 1 / 5
    assert metrics.acceptance_by_position == [4 / 5, 3 / 4, 2 / 3, 1 / 2]
    assert metrics.mean_accepted_draft == 2.0
    assert metrics.tokens_per_forward == 3.0
    assert metrics.acceptance_rate == 0.5


@pytest.mark.parametrize("where", ["draft", "forward", "pick"])
@pytest.mark.parametrize("after", range(6))
def test_an_interrupted_round_goes_on_as_if_nothing_had_happened(where, after):
    """Ctrl-C in draft, verify or commit: after a rollback to the context the text continues as it would have."""
    calls, is_armed = 0, False

    def interrupt_in(place):
        nonlocal calls
        if place == where and is_armed:
            calls += 1
            if calls == after + 1:
                raise KeyboardInterrupt

    class Model(BigramModel):
        def forward(self, tokens, *, logits="all"):
            if len(tokens) > 1 and after % 2:  # half of the block is in the cache already
                super().forward(tokens[:1])
                interrupt_in("forward")
                super().rollback(self.n_past - 1)
            interrupt_in("forward")
            return super().forward(tokens, logits=logits)

    class Picky(KeyedSampler):
        def pick(self, logits, context):
            interrupt_in("pick")
            return super().pick(logits, context)

    model = Model()
    context = [4, 5]
    list(prefill(model, context))

    def script(context, k):
        interrupt_in("draft")
        return plain_continuation(model, GREEDY, context, k)

    drafter = ScriptedDrafter(script)
    is_armed = True
    with pytest.raises(KeyboardInterrupt):
        for _ in decode(model, drafter, Picky(SamplingConfig(temperature=0.0)), context, 3, Until(40)):
            pass
    model.rollback(min(model.n_past, len(context) - 1))
    list(prefill(model, context))
    n = 12 - len(context)
    for _ in decode(model, drafter, GREEDY, context, 3, Until(n)) if n > 0 else ():
        pass
    assert context[2:12] == plain_continuation(BigramModel(), GREEDY, [4, 5], max(10, len(context) - 2))[:10]
    assert model.cache == context[:-1]
