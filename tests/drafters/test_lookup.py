"""The suffix index against a search by hand, and what the lookup drafter makes of it."""

from __future__ import annotations

import random
import sys
from itertools import cycle, islice

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specllm.config import DraftConfig
from specllm.drafters import lookup
from specllm.drafters.lookup import LookupDrafter, SuffixIndex, match_class, match_evidence


def occurrences(tokens: list[int], length: int) -> list[int]:
    """Where the last `length` tokens end earlier in the text."""
    suffix = tokens[len(tokens) - length :]
    return [end for end in range(length - 1, len(tokens) - 1) if tokens[end - length + 1 : end + 1] == suffix]


def longest_match(tokens: list[int]) -> int:
    return max((n for n in range(1, len(tokens)) if occurrences(tokens, n)), default=0)


def indexed(tokens: list[int]) -> SuffixIndex:
    index = SuffixIndex()
    for token in tokens:
        index.append(token)
    return index


# Fewer than 64 tokens have fewer than 64 nested suffixes, so the newest occurrence is known for each.
texts = st.integers(1, 5).flatmap(lambda n_vocab: st.lists(st.integers(0, n_vocab - 1), min_size=1, max_size=60))


@settings(max_examples=200, deadline=None)
@given(tokens=texts)
def test_the_match_is_the_longest_earlier_suffix_in_its_newest_place(tokens):
    index = SuffixIndex()
    for n, token in enumerate(tokens, start=1):
        index.append(token)
        seen = tokens[:n]
        assert index.match_length == longest_match(seen)
        if index.match_length:
            assert index.match_end == occurrences(seen, index.match_length)[-1]


@settings(max_examples=20, deadline=None)
@given(st.integers(1, 3).flatmap(lambda n: st.lists(st.integers(0, n - 1), min_size=100, max_size=250)))
def test_with_many_nested_suffixes_the_match_is_still_the_longest_and_stands_where_it_says(tokens):
    index = indexed(tokens)
    assert index.match_length == longest_match(tokens)
    assert not index.match_length or index.match_end in occurrences(tokens, index.match_length)


def fibonacci_word(n: int) -> list[int]:
    """The most repetitive text without long runs: every prefix comes back again and again."""
    older, newer = [0], [0, 1]
    while len(newer) < n:
        older, newer = newer, newer + older
    return newer[:n]


N = 4000
KINDS = {
    "one token": [7] * N,
    "short period": list(islice(cycle([1, 2, 3]), N)),
    "long period": list(islice(cycle(range(500)), N)),
    "fibonacci": fibonacci_word(N),
    "random bits": random.Random(1).choices(range(2), k=N),
    "random tokens": random.Random(2).choices(range(30_000), k=N),
    "run, then runs with one odd token": ([5] * 99 + [6]) * (N // 100),
}


def lines_run(index: SuffixIndex, tokens: list[int]) -> int:
    """How many lines of lookup.py it takes to append `tokens`."""
    n_lines = 0

    def trace(frame, event, argument):
        nonlocal n_lines
        n_lines += event == "line"
        return trace if frame.f_code.co_filename == lookup.__file__ else None

    previous = sys.gettrace()
    sys.settrace(trace)
    try:
        for token in tokens:
            index.append(token)
    finally:
        sys.settrace(previous)
    return n_lines


@pytest.mark.parametrize("kind", KINDS)
def test_a_token_costs_the_same_early_and_late(kind):
    tokens = KINDS[kind]
    index = SuffixIndex()
    per_token = [lines_run(index, tokens[start : start + N // 4]) / (N / 4) for start in range(0, N, N // 4)]
    assert max(per_token) < 300  # three lines for each of the 64 newest-updates, and the automaton
    assert per_token[3] < 2 * per_token[1]  # linear growth would be 7 / 3
    # The bounds of a suffix automaton (Blumer et al. 1985): fewer than 2n states, fewer than 3n transitions.
    assert len(index._next) < 2 * N
    assert sum(map(len, index._next)) < 3 * N


def drafted(drafter: LookupDrafter, context: list[int], k: int) -> list[int]:
    draft = drafter.propose(context, k)
    assert draft.source == ("lookup" if draft.tokens else "none")
    assert len(draft.evidence) == len(draft.tokens)
    return list(draft.tokens)


@settings(max_examples=150, deadline=None)
@given(tokens=texts, k=st.integers(1, 9), min_match=st.integers(1, 4), steps=st.lists(st.integers(1, 7), max_size=20))
def test_a_draft_is_copied_from_behind_the_match_and_then_from_itself(tokens, k, min_match, steps):
    """However the context grew: token by token, each from where the last one's source ended."""
    drafter = LookupDrafter(min_match)
    drafter.begin(tokens[:1])
    n = 1
    for step in [0, *steps]:
        n = min(n + step, len(tokens))
        seen = tokens[:n]
        draft = drafted(drafter, seen, k)
        length = longest_match(seen)
        if length < min_match:
            assert draft == []
        else:
            end = occurrences(seen, length)[-1]
            written = list(seen)
            for i in range(k):
                written.append(written[end + 1 + i])
            assert draft == written[n:]
            assert drafter.match_length == length


@settings(max_examples=100, deadline=None)
@given(tokens=texts, k=st.integers(1, 70))
def test_the_evidence_of_a_token_is_the_match_it_would_have_behind_the_accepted_ones_before(tokens, k):
    drafter = LookupDrafter(1)
    drafter.begin([])
    draft = drafter.propose(tokens, k)
    for i, evidence in enumerate(draft.evidence):
        assert evidence == match_class(longest_match([*tokens, *draft.tokens[:i]]))


@pytest.mark.parametrize("period", [[9], [1, 2, 3], [4, 4, 5, 4, 6]])
@pytest.mark.parametrize("k", [1, 2, 3, 4, 5, 100])
def test_a_periodic_text_is_drafted_as_far_as_one_likes(period, k):
    drafter = LookupDrafter(min_match=3)
    text = list(islice(cycle(period), 2 * len(period) + 3))
    drafter.begin([])
    following = list(islice(cycle(period), len(text), len(text) + k))
    assert drafted(drafter, text, k) == following
    assert drafter.propose(text, k).evidence[-1] == match_class(len(text) - len(period) + k - 1)


def test_nothing_is_drafted_where_nothing_is_asked_for():
    drafter = LookupDrafter(min_match=1)
    drafter.begin([])
    assert drafted(drafter, [1, 1, 1], 0) == []


def test_one_token_for_ever_is_drafted_as_itself():
    drafter = LookupDrafter(min_match=3)
    drafter.begin([])
    for n in range(1, 500):
        draft = drafted(drafter, [9] * n, 15)
        assert set(draft) == ({9} if n > 3 else set())


def test_a_copied_text_is_drafted_to_the_full_length():
    text = random.Random(3).choices(range(1000), k=200)
    drafter = LookupDrafter(min_match=3)
    context = [*text, 5000]
    drafter.begin(context)
    context += text[50:53]
    assert drafted(drafter, context, 15) == text[53:68]


def test_random_text_is_hardly_ever_drafted():
    """Fault 5: a hundred different tokens in random order repeat three in a row once in a thousand positions."""
    rng = random.Random(4)
    drafter = LookupDrafter(DraftConfig().lookup_min_match)
    context = rng.choices(range(100), k=500)
    drafter.begin(context)
    n_rounds = 1500
    n_drafting = 0
    for _ in range(n_rounds):
        n_drafting += bool(drafted(drafter, context, 15))
        context.append(rng.randrange(100))
    assert n_drafting < 0.05 * n_rounds


@settings(max_examples=50, deadline=None)
@given(first=texts, second=texts, k=st.integers(1, 8))
def test_begin_forgets_the_last_request(first, second, k):
    used, fresh = LookupDrafter(1), LookupDrafter(1)
    used.begin(first)
    used.propose(first, k)
    for drafter in (used, fresh):
        drafter.begin(second)
    assert used.propose(second, k) == fresh.propose(second, k)
    assert used.match_length == fresh.match_length


@given(st.integers(0, 400), st.integers(0, 200))
def test_each_drafted_token_stands_behind_one_more_matched_one(n_matched, k):
    assert match_evidence(n_matched, k) == tuple(match_class(n_matched + i) for i in range(k))
