"""The suffix array against a search by hand, and what the store drafter makes of it."""

from __future__ import annotations

import random
from collections import Counter

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from specllm.drafters.store import (
    LONGEST_MATCH,
    STORE_PRIOR,
    StoreDrafter,
    encode,
    join,
    sort_suffixes,
)
from tests.drafters.suffixes import suffix_array

SEPARATOR = 2**32 - 1
documents_of = st.lists(st.lists(st.integers(0, 3), max_size=40), max_size=5)


def drafted(documents: list[list[int]], context: list[int], k: int, min_match: int = 1) -> list[int]:
    return list(StoreDrafter([suffix_array(documents)], min_match).propose(context, k).tokens)


def ends(documents: list[list[int]], suffix: list[int]) -> list[tuple[int, int]]:
    """Where `suffix` ends in the documents."""
    n = len(suffix)
    return [
        (i, end) for i, one in enumerate(documents) for end in range(n, len(one) + 1) if one[end - n : end] == suffix
    ]


@settings(max_examples=200, deadline=None)
@given(documents=documents_of)
@example(documents=[[7] * 300])
@example(documents=[[1, 2] * 100, [1, 2] * 100])
def test_suffixes_are_in_the_order_of_their_first_tokens(documents):
    text = join([encode(document) for document in documents])
    tokens = [int.from_bytes(text[i : i + 4], "big") for i in range(0, len(text), 4)]
    order = list(memoryview(sort_suffixes(text)).cast("I"))
    assert sorted(order) == list(range(len(tokens)))
    beginnings = [tokens[place : place + LONGEST_MATCH] for place in order]
    assert beginnings == sorted(beginnings)


@settings(max_examples=300, deadline=None)
@given(documents=documents_of, context=st.lists(st.integers(0, 4), min_size=1, max_size=60))
def test_the_longest_suffix_and_all_its_occurrences_are_found(documents, context):
    longest = max((n for n in range(1, len(context) + 1) if ends(documents, context[-n:])), default=0)
    match = suffix_array(documents).find(context, 1)
    assert match.length == longest
    if longest:
        assert match.end - match.first == len(ends(documents, context[-longest:]))


@settings(max_examples=200, deadline=None)
@given(documents=documents_of, context=st.lists(st.integers(0, 3), min_size=1, max_size=20), k=st.integers(1, 30))
def test_a_draft_follows_most_occurrences_and_never_crosses_a_document(documents, context, k):
    draft = drafted(documents, context, k)
    longest = max((n for n in range(1, len(context) + 1) if ends(documents, context[-n:])), default=0)
    suffix = context[-longest:] if longest else []
    followers = [documents[i][end : end + k] for i, end in ends(documents, suffix)] if longest else []
    for position, token in enumerate(draft):
        counts = Counter(one[position] if position < len(one) else SEPARATOR for one in followers)
        assert counts[token] == max(counts.values())
        followers = [one for one in followers if one[position : position + 1] == [token]]
    assert len(draft) <= k
    if len(draft) < k and followers:  # it ended where a document does
        assert any(len(one) == len(draft) for one in followers)


def test_a_match_is_no_longer_than_what_is_sorted():
    text = [*range(200)]
    context = [*range(150)]
    assert suffix_array([text]).find(context, 1).length == LONGEST_MATCH
    assert drafted([text], context, 5) == [150, 151, 152, 153, 154]


def test_a_shorter_match_than_asked_for_drafts_nothing():
    assert drafted([[1, 2, 3, 4]], [9, 2, 3], 4, min_match=3) == []
    assert drafted([[1, 2, 3, 4]], [9, 2, 3], 4, min_match=2) == [4]


def test_evidence_is_the_match_and_the_agreement_of_its_occurrences():
    def chances(documents: list[list[int]], k: int) -> list[float]:
        return [STORE_PRIOR[one] for one in StoreDrafter([suffix_array(documents)], 2).propose([5, 6], k).evidence]

    alone = chances([[5, 6, 7, 8]], 2)
    two_of_three = chances([[5, 6, 7, 8], [5, 6, 7, 8], [5, 6, 7, 9]], 2)
    one_of_four = chances([[5, 6, token] for token in range(4)], 1)
    assert alone[0] < alone[1]  # behind a longer match
    assert two_of_three[0] > alone[0] > one_of_four[0]  # all three agree about 7
    assert two_of_three[0] > two_of_three[1]  # and two of them about 8


@pytest.mark.parametrize("k", [1, 16, 127])
def test_every_evidence_has_a_prior(k):
    rng = random.Random(k)
    documents = [rng.choices(range(5), k=200) for _ in range(5)]
    drafter = StoreDrafter([suffix_array(documents)], 1)
    for _ in range(50):
        start = rng.randrange(150)
        draft = drafter.propose(documents[rng.randrange(5)][start : start + rng.randrange(1, 50)], k)
        assert len(draft.evidence) == len(draft.tokens)
        assert set(draft.evidence) <= STORE_PRIOR.keys()


def test_the_array_with_the_longest_match_drafts():
    arrays = [suffix_array([[2, 3, 9]]), suffix_array([[1, 2, 3, 4]])]
    assert StoreDrafter(arrays, 1).propose([1, 2, 3], 1).tokens == (4,)
    assert StoreDrafter(arrays[::-1], 1).propose([1, 2, 3], 1).tokens == (4,)


@pytest.mark.parametrize("documents", [[], [[]], [[1]]])
def test_a_store_without_continuations_drafts_nothing(documents):
    assert drafted(documents, [1], 8) == []
    assert drafted(documents, [2], 8) == []


def test_no_tokens_asked_for_is_no_draft():
    assert drafted([[1, 2, 3]], [1, 2], 0) == []


def test_frequent_matches_have_a_vote_by_a_sample():
    """Of 1,000 occurrences nine in ten agree; a draft reads a few of them, spread over all."""
    documents = [[1, 2, 3 if i % 10 else 4] for i in range(1000)]
    assert drafted(documents, [1, 2], 1) == [3]
    match = suffix_array(documents).find([1, 2], 1)
    assert match.end - match.first == 1000
    assert len(suffix_array(documents).following(match, 1)) <= 64
