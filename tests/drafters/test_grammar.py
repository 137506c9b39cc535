"""Forced tokens in drafts: whose they are, what they cost, and what the controller believes of them."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from specllm.decoding.acceptance import Acceptance
from specllm.decoding.decode import Until, decode
from specllm.decoding.metrics import Metrics
from specllm.decoding.protocols import EMPTY_DRAFT, FORCED, Draft, Round
from specllm.drafters.grammar import GrammarDrafter
from specllm.drafters.model import ModelDrafter, floor_rule
from specllm.drafters.none import NoDrafter
from specllm.errors import NothingAllowed
from tests.fakes import CountingModel

WORDS = (5, 6, 7)  # what the grammar forces behind a 4


class Counting:
    """Numbers in turn; behind a 4 there is no choice up to 7. Behind `dead_end` nothing may follow."""

    def __init__(self, dead_end: int = -1) -> None:
        self.dead_end = dead_end

    def forced(self, context: Sequence[int]) -> tuple[int, ...]:
        last = context[-1]
        return tuple(token for token in WORDS if token > last) if last in (4, *WORDS) else ()

    def n_allowed(self, context: Sequence[int], tokens: Sequence[int]) -> int:
        expected = range(context[-1] + 1, context[-1] + 1 + len(tokens))
        return next((i for i, pair in enumerate(zip(tokens, expected, strict=True)) if pair[0] != pair[1]), len(tokens))


class Saying:
    """A drafter that proposes the same tokens, with evidence of class 3."""

    name = "saying"

    def __init__(self, *tokens: int) -> None:
        self.tokens = tokens

    def begin(self, context: Sequence[int]) -> None: ...

    def propose(self, context: Sequence[int], k: int) -> Draft:
        return Draft(self.tokens[:k], self.name, (3,) * len(self.tokens[:k]))

    def observe(self, round: Round) -> None: ...


class Picking:
    """Picks the best token; raises where the grammar has a dead end."""

    def __init__(self, dead_end: int = -1) -> None:
        self.dead_end = dead_end

    def pick(self, logits, context: Sequence[int]) -> int:
        if context[-1] == self.dead_end:
            raise NothingAllowed("nothing", "give up")
        return int(logits.argmax())


CASES = {  # the last token of the context, what the inner drafter says, k -> tokens, source, how many forced in front, behind
    "nothing at all": (1, (), 9, (), "none", 0, 0),
    "only forced": (4, (), 9, (5, 6, 7), "grammar", 3, 0),
    "in front": (4, (5, 6, 7, 8, 9), 9, (5, 6, 7, 8, 9), "saying", 3, 0),
    "behind": (2, (3, 4), 9, (3, 4, 5, 6, 7), "saying", 0, 3),
    "between": (3, (4, 5, 6), 9, (4, 5, 6, 7), "saying", 0, 1),
    "inner is shorter": (4, (5,), 9, (5, 6, 7), "grammar", 3, 0),
    "inner is wrong": (4, (8, 9), 9, (5, 6, 7), "grammar", 3, 0),
    "inner is wrong later": (4, (5, 6, 7, 8, 4, 5), 9, (5, 6, 7, 8), "saying", 3, 0),
    "inner is forbidden": (1, (7, 8), 9, (), "none", 0, 0),
    "k cuts the forced": (4, (5, 6, 7, 8), 2, (5, 6), "grammar", 2, 0),
    "k cuts behind": (2, (3, 4), 3, (3, 4, 5), "saying", 0, 1),
}


@pytest.mark.parametrize("name", CASES)
def test_forced_tokens_stand_in_front_of_a_draft_and_behind_it(name):
    last, said, k, tokens, source, n_front, n_behind = CASES[name]
    draft = GrammarDrafter(Saying(*said), Counting()).propose([last], k)
    n_own = len(tokens) - n_front - n_behind
    assert draft.tokens == tokens
    assert draft.evidence == (FORCED,) * n_front + (3,) * n_own + (FORCED,) * n_behind
    assert draft.sources == ("grammar",) * n_front + ("saying",) * n_own + ("grammar",) * n_behind
    assert draft.source == source
    assert tokens or draft == EMPTY_DRAFT


def test_alone_it_is_called_grammar_else_as_the_drafter_inside():
    assert GrammarDrafter(NoDrafter(), Counting()).name == "grammar"
    assert GrammarDrafter(Saying(), Counting()).name == "saying"


def model_drafter(constraint: Counting, sampler: Picking) -> tuple[ModelDrafter, CountingModel]:
    model = CountingModel(n_vocab=12)
    drafter = ModelDrafter(model, sampler, rule=floor_rule(0.0), constraint=constraint)
    drafter.begin([2])
    return drafter, model


def test_a_draft_model_spends_no_forward_on_what_is_forced():
    drafter, model = model_drafter(Counting(), Picking())
    draft = drafter.propose([2], 7)
    assert draft.tokens == (3, 4, 5, 6, 7, 8, 9)
    assert [evidence == FORCED for evidence in draft.evidence] == [False, False, True, True, True, False, False]
    assert model.n_forwards == 4
    again = drafter.propose([2, 3, 4, 5, 6, 7, 8, 9, 10], 1)  # what it fed itself is kept
    assert (again.tokens, model.n_forwards) == ((11,), 5)


def test_a_draft_that_the_grammar_forces_to_its_end_costs_nothing():
    drafter, model = model_drafter(Counting(), Picking())
    assert drafter.propose([4], 3).tokens == WORDS
    assert model.n_forwards == 0


def test_a_draft_model_that_runs_into_a_dead_end_stops_there():
    drafter, _ = model_drafter(Counting(), Picking(dead_end=9))
    assert drafter.propose([2], 11).tokens == (3, 4, 5, 6, 7, 8, 9)


def test_a_draft_cut_at_the_end_of_the_text_keeps_its_evidence():
    model = CountingModel(n_vocab=12)
    context = [2]
    drafter = GrammarDrafter(Saying(3, 4), Counting())
    rounds = list(decode(model, drafter, Picking(), context, 9, Until(20, frozenset([6]))))
    assert context == [2, 3, 4, 5, 6]
    assert rounds[0].draft == Draft((3, 4, 5), "saying", (3, 3, FORCED))
    metrics = Metrics()
    metrics.add(rounds[0])
    assert metrics.drafted_by_source == metrics.accepted_by_source == {"saying": 2, "grammar": 1}
    assert metrics.rounds_by_source == {"saying": 1}


def test_forced_tokens_are_certain_and_teach_nothing_about_a_drafter():
    acceptance = Acceptance({3: 0.5}, 0.5)
    before = acceptance.chance(3), acceptance.average()
    acceptance.observe(Round((5, 6, 7, 8), Draft((5, 6, 7), "saying", (FORCED,) * 3), 0, 0, 0))
    assert acceptance.chances((FORCED, 3, FORCED)) == [1.0, before[0], 1.0]
    assert (acceptance.chance(3), acceptance.average()) == before
    acceptance.observe(Round((5, 6, 9), Draft((5, 6, 7), "saying", (FORCED, 3, 3)), 0, 0, 0))
    assert acceptance.counts()["3"] == acceptance.counts()["pooled"] == pytest.approx([1, 2], abs=0.01)
