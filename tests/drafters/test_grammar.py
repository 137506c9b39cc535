"""Forced tokens in drafts: whose they are, what they cost, and what the controller believes of them."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from specllm.app.drafting import new_acceptance
from specllm.decoding.acceptance import Acceptance
from specllm.decoding.controller import Controller
from specllm.decoding.cost import CostModel, DraftCost
from specllm.decoding.decode import Until, decode
from specllm.decoding.metrics import Metrics
from specllm.decoding.protocols import EMPTY_DRAFT, FORCED, FREE, GUESSED, SPELLED, Draft, Round
from specllm.drafters.auto import AutoDrafter
from specllm.drafters.grammar import GUESSED_CHANCE, SPELLED_CHANCE, GrammarDrafter
from specllm.drafters.model import ModelDrafter, floor_rule
from specllm.drafters.none import NoDrafter
from specllm.errors import NothingAllowed
from tests.fakes import CountingModel

WORDS = (5, 6, 7)  # what the grammar forces behind a 4
SPLITS = (15, 16)  # what the text behind a 14 is split into; 20 would spell it too, and that behind a 4
GUESS = (25, 26, 27)  # what probably follows a 24, which has to follow a 23


class Counting:
    """Numbers in turn; behind a 4 there is no choice up to 7, behind a 14 none of text, behind
    a 24 a likely one. Behind `dead_end` nothing may follow."""

    def __init__(self, dead_end: int = -1) -> None:
        self.dead_end = dead_end

    def foreseen(self, context: Sequence[int]) -> tuple[tuple[int, ...], int]:
        last = context[-1]
        for text, n_certain in ((WORDS, len(WORDS)), (SPLITS, 0), ((24, *GUESS), last == 23)):
            if text[0] - 1 <= last <= text[-1]:
                tokens = tuple(token for token in text if token > last)
                return tokens, min(len(tokens), n_certain)
        return (), 0

    def n_allowed(self, context: Sequence[int], tokens: Sequence[int]) -> int:
        if context[-1] in (4, 14) and tokens[:1] == (20,):
            return 1 + self.n_allowed([20], tokens[1:])
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


S15, S16, S27 = SPELLED + 15, SPELLED + 16, SPELLED + 27
SPLIT_CASES = {  # the last token of the context, what the inner drafter says, k -> tokens, source, evidence
    "alone": (14, (), 9, SPLITS, "grammar", (GUESSED, S16)),
    "only its end": (15, (), 9, (16,), "grammar", (S16,)),
    "k cuts it": (14, (), 1, (15,), "grammar", (GUESSED,)),
    "in front": (14, (15, 16, 17), 9, (15, 16, 17), "saying", (GUESSED, S16, 3)),
    "behind": (12, (13, 14), 9, (13, 14, 15, 16), "saying", (3, 3, GUESSED, S16)),
    "inner is shorter": (14, (15,), 9, SPLITS, "grammar", (GUESSED, S16)),
    "inner splits otherwise": (14, (20, 21), 9, (20, 21), "saying", (3, 3)),
    "inner splits otherwise what is certain": (4, (20, 21), 9, WORDS, "grammar", (FORCED,) * 3),
    "inner is forbidden": (14, (18,), 9, SPLITS, "grammar", (GUESSED, S16)),
    "a guess": (24, (), 9, GUESS, "grammar", (GUESSED, GUESSED, S27)),
    "a guess behind what is certain": (23, (), 9, (24, *GUESS), "grammar", (FORCED, GUESSED, GUESSED, S27)),
    "a guess behind another": (22, (23,), 9, (23, 24, *GUESS), "saying", (3, FORCED, GUESSED, GUESSED, S27)),
}


@pytest.mark.parametrize("name", SPLIT_CASES)
def test_forced_text_is_drafted_though_it_can_be_split_otherwise_and_gives_way_to_who_splits_it_so(name):
    last, said, k, tokens, source, evidence = SPLIT_CASES[name]
    draft = GrammarDrafter(Saying(*said), Counting()).propose([last], k)
    assert draft == Draft(tokens, source, evidence)
    assert draft.sources == tuple("saying" if one == 3 else "grammar" for one in evidence)


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


def test_a_draft_model_spends_one_forward_on_how_probable_text_ends():
    model = CountingModel(n_vocab=40)
    drafter = ModelDrafter(model, Picking(), rule=floor_rule(0.0), constraint=Counting())
    drafter.begin([22])
    draft = drafter.propose([22], 6)
    assert draft.tokens == (23, 24, 25, 26, 27, 28)
    assert [one in FREE for one in draft.evidence] == [False, True, True, True, False, False]
    assert draft.evidence[1:4] == (FORCED, GUESSED, GUESSED)
    assert model.n_forwards == 3


def test_a_draft_ends_where_probable_text_goes_on_with_a_token_of_another_meaning():
    model = CountingModel(n_vocab=40)
    drafter = ModelDrafter(
        model, Picking(), rule=floor_rule(0.0), can_draft=lambda token: token != 25, constraint=Counting()
    )
    drafter.begin([22])
    assert drafter.propose([22], 6) == Draft((23, 24), "model", (3, FORCED))


def test_only_what_a_draft_model_was_asked_for_counts_as_its_own():
    """Its cost is measured by its forwards, and how confident it is by what it said."""
    cost = DraftCost(0.001, 0.0001)
    controller = Controller(CostModel(dict.fromkeys((1, 2, 4, 8), 0.01)), new_acceptance(), cost)
    draft = Draft((23, 24, 25, 26, 27), "model", (3, FORCED, GUESSED, GUESSED, 4))
    for _ in range(200):
        controller.observe(Round((*draft.tokens, 28), draft, 0.008, 0.01, 0), n_pending=1, seen=(0, FORCED, GUESSED, 0))
    assert cost.token_s == pytest.approx(0.004)


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
    before = acceptance.chance(3)
    acceptance.observe(Round((5, 6, 7, 8), Draft((5, 6, 7), "saying", (FORCED,) * 3), 0, 0, 0))
    assert acceptance.chances((FORCED, 3, FORCED)) == [1.0, before, 1.0]
    assert acceptance.chance(3) == before
    acceptance.observe(Round((5, 6, 9), Draft((5, 6, 7), "saying", (FORCED, 3, 3)), 0, 0, 0))
    assert acceptance.counts() == {"3": pytest.approx([1, 2], abs=0.01)}


def test_how_each_token_of_forced_text_is_split_is_learned_by_itself():
    grammar = new_acceptance()["grammar"]
    grammar.observe(Round((15, 20), Draft(SPLITS, "grammar", (S15, S16)), 0, 0, 0))
    assert grammar.chance(S15) > SPELLED_CHANCE > grammar.chance(S16)
    assert grammar.chance(SPELLED + 17) == SPELLED_CHANCE
    assert grammar.chance(FORCED) == 1
    assert grammar.chance(GUESSED) == new_acceptance()["model"].chance(GUESSED) == GUESSED_CHANCE


def test_what_the_grammar_alone_proposes_is_judged_once():
    """Also where it stands in for a drafter that has nothing to say."""
    acceptance = new_acceptance()
    controller = Controller(CostModel(dict.fromkeys((1, 2, 4), 0.01)), acceptance)
    free = [GrammarDrafter(inner, Counting()) for inner in (NoDrafter(), Saying())]
    acceptance["saying"] = Acceptance({3: 0.9}, 0.9)
    drafter = AutoDrafter(controller, free)
    drafter.begin([1])
    drafter.observe(Round((14,), EMPTY_DRAFT, 0, 0.01, 0))
    draft = drafter.propose([1, 14], 9)
    assert draft == Draft(SPLITS, "grammar", (GUESSED, S16))
    drafter.observe(Round((15, 16, 17), draft, 0, 0.01, 0))
    drafter.propose([1, 14, 15, 16, 17], 9)
    assert sum(judged for _, judged in acceptance["grammar"].counts().values()) == pytest.approx(2, abs=0.01)
    assert acceptance["saying"].counts() == Acceptance({}, 0.5).counts()
