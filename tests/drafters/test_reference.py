"""The reference drafter along known edits: how often it is wrong, and that nothing of one answer stays for the next."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from itertools import takewhile

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specllm.decoding.protocols import Draft, Round
from specllm.drafters.reference import REFERENCE_PRIOR, ReferenceDrafter

PROMPT = [900, 901, 902]


def edited(drafter: ReferenceDrafter, answer: Sequence[int], k: int = 32, begun: int = 0) -> list[Round]:
    """The rounds in which `answer` is committed behind its first `begun` tokens, whatever is drafted."""
    context, end = [*PROMPT, *answer[:begun]], len(PROMPT) + len(answer)
    drafter.begin(context)
    rounds = []
    while len(context) < end:
        draft = believed(drafter.propose(context, min(k, end - len(context) - 1)))
        assert len(draft.tokens) == len(draft.evidence) <= k
        assert all(evidence in REFERENCE_PRIOR for evidence in draft.evidence)
        wanted = answer[len(context) - len(PROMPT) :]
        n = 0
        while n < len(draft.tokens) and draft.tokens[n] == wanted[n]:
            n += 1
        rounds.append(Round(tuple(wanted[: n + 1]), draft, 0.0, 0.0, 0.0))
        context += wanted[: n + 1]
        drafter.observe(rounds[-1])
    return rounds


def believed(draft: Draft) -> Draft:
    """The part of a draft that a controller would verify on most machines, before it has seen anything."""
    tokens = list(takewhile(lambda i: REFERENCE_PRIOR[draft.evidence[i]] >= 0.5, range(len(draft.tokens))))
    return Draft(draft.tokens[: len(tokens)], draft.source, draft.evidence[: len(tokens)])


def n_wrong(rounds: Sequence[Round]) -> int:
    return sum(round.is_rejected for round in rounds)


FILE = [token for line in range(40) for token in (1, 100 + line, 2, 300 + line % 7, 3)]  # 200 tokens in lines of five


def replaced(file: list[int], at: int, n_old: int, new: list[int]) -> list[int]:
    return file[:at] + new + file[at + n_old :]


def renamed(file: list[int]) -> list[int]:
    """One name, in six places, becomes two tokens."""
    return [token for old in file for token in ((700, 701) if old == 303 else (old,))]


CHANGES: dict[str, tuple[list[int], int, int]] = {  # the answer, how many drafts may be wrong, how many rounds there may be
    "nothing": (FILE, 0, 7),
    "a token": (replaced(FILE, 101, 1, [800]), 1, 11),
    "a line": (replaced(FILE, 100, 5, [1, 800, 2, 801, 3]), 1, 13),
    "a line more": (replaced(FILE, 100, 0, [1, 800, 2, 801, 3]), 1, 13),
    "a line less": (replaced(FILE, 100, 5, []), 1, 8),
    "ten lines less": (replaced(FILE, 50, 50, []), 1, 6),
    "ten new lines": (replaced(FILE, 50, 0, list(range(800, 850))), 1, 60),
    "the first line": (replaced(FILE, 0, 5, [800, 801]), 1, 12),
    "the last line": (replaced(FILE, 195, 5, [800, 801]), 1, 8),
    "more at the end": ([*FILE, 800, 801, 802], 0, 10),
    "less at the end": (FILE[:150], 0, 6),
    "a block moved up": (FILE[:20] + FILE[100:150] + FILE[20:100] + FILE[150:], 3, 9),
    "a block moved down": (FILE[:20] + FILE[70:150] + FILE[20:70] + FILE[150:], 3, 9),
    "a name in six places": (renamed(FILE), 1, 12),
}  # fmt: skip


@pytest.mark.parametrize("change", CHANGES)
def test_a_change_costs_few_wrong_drafts(change: str) -> None:
    answer, most_wrong, most_rounds = CHANGES[change]
    rounds = edited(ReferenceDrafter(FILE), answer)
    assert [token for round in rounds for token in round.tokens] == answer
    assert n_wrong(rounds) <= most_wrong
    assert len(rounds) <= most_rounds


def test_a_name_changed_once_is_drafted_as_changed() -> None:
    rounds = edited(ReferenceDrafter(FILE), renamed(FILE))
    drafted = [token for round in rounds[-3:] for token in round.draft.tokens]
    assert 700 in drafted
    assert 303 not in drafted


def test_a_block_in_which_every_line_begins_otherwise() -> None:
    """Re-indentation: one token of each line is another, always the same other."""
    answer = FILE[:50] + [11 if token == 1 else token for token in FILE[50:150]] + FILE[150:]
    rounds = edited(ReferenceDrafter(FILE), answer)
    assert n_wrong(rounds) <= 4  # into the block, once more until it is learned, out of it


def test_a_substitution_that_was_wrong_once_is_not_tried_again() -> None:
    answer = list(FILE)
    for i in [i for i, token in enumerate(FILE) if token == 303][:1]:
        answer[i] = 700
    rounds = edited(ReferenceDrafter(FILE), answer)
    drafted_wrongly = [r.draft.tokens[r.n_accepted] for r in rounds if r.is_rejected]
    assert drafted_wrongly.count(700) == 1


def test_it_goes_on_where_the_answer_was_begun_for_the_model() -> None:
    rounds = edited(ReferenceDrafter(FILE), FILE, begun=7)
    assert rounds[0].draft.tokens == tuple(FILE[7:39])


@pytest.mark.parametrize("reference", [[], [5]])
def test_a_reference_of_nearly_nothing(reference: list[int]) -> None:
    assert n_wrong(edited(ReferenceDrafter(reference), [1, 2, 3, 5, 6])) <= 1


def test_one_token_for_ever() -> None:
    rounds = edited(ReferenceDrafter([1] * 5000), [1] * 4000, k=127)
    assert n_wrong(rounds) == 0
    assert len(rounds) == 32


def rounds_of(make: Callable[[], ReferenceDrafter], answers: list[list[int]]) -> list[Draft]:
    drafter = make()
    return [[round.draft for round in edited(drafter, answer)] for answer in answers][-1]


texts = st.lists(st.integers(1, 6), max_size=60)


@given(reference=texts, first=texts, second=texts)
@settings(max_examples=200, deadline=None)
def test_nothing_of_an_answer_stays_for_the_next(reference: list[int], first: list[int], second: list[int]) -> None:
    alone = rounds_of(lambda: ReferenceDrafter(reference), [second])
    assert rounds_of(lambda: ReferenceDrafter(reference), [first, second]) == alone


@given(seed=st.integers(0, 10_000))
@settings(max_examples=100, deadline=None)
def test_random_edits_are_followed(seed: int) -> None:
    """However a file is edited, most of what was copied was drafted: at most five wrong drafts for each change."""
    random_ = random.Random(seed)
    file = [random_.randrange(1, 60) for _ in range(300)]
    answer, n_changes = list(file), random_.randrange(5)
    for _ in range(n_changes):
        at, n_old = random_.randrange(len(answer)), random_.randrange(12)
        answer = replaced(answer, at, n_old, [random_.randrange(60, 99) for _ in range(random_.randrange(6))])
    rounds = edited(ReferenceDrafter(file), answer)
    assert n_wrong(rounds) <= 5 * n_changes
