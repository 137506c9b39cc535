"""What free drafters are believed: every token they proposed is judged once, whether it was verified or not."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specllm.config import SamplingConfig
from specllm.decoding.acceptance import Acceptance
from specllm.decoding.chain import Shares
from specllm.decoding.controller import Controller
from specllm.decoding.cost import CALIBRATION_WIDTHS, CostModel, DraftCost
from specllm.decoding.protocols import EMPTY_DRAFT, Draft, Round
from specllm.decoding.sampling import KeyedSampler
from specllm.drafters.auto import AutoDrafter
from specllm.drafters.model import CONFIDENCE_PRIOR, CONFIDENCE_SHARES, ModelDrafter, floor_rule
from tests.fakes import BigramModel, CountingModel

STEEP = CostModel({width: float(width) for width in CALIBRATION_WIDTHS})  # nothing is ever worth verifying
FLAT = CostModel({width: 1.0 + 0.001 * width for width in CALIBRATION_WIDTHS})  # everything is


class Scripted:
    """Proposes what `script` says for each length of the context."""

    def __init__(self, name: str, script: dict[int, Sequence[int]]) -> None:
        self.name, self._script = name, script

    def begin(self, context: Sequence[int]) -> None: ...

    def propose(self, context: Sequence[int], k: int) -> Draft:
        tokens = tuple(self._script.get(len(context), ())[:k])
        return Draft(tokens, self.name, tuple(range(1, len(tokens) + 1)))

    def observe(self, round: Round) -> None: ...


def answered(
    answer: Sequence[int], scripts: dict[str, dict[int, Sequence[int]]], cost: CostModel
) -> dict[str, Acceptance]:
    """What is believed about each script after `answer` was committed behind a prompt of one token."""
    acceptance = {name: Acceptance({}, 0.6) for name in scripts}
    drafter = AutoDrafter(Controller(cost, acceptance), [Scripted(name, script) for name, script in scripts.items()])
    context = [0]
    drafter.begin(context)
    while len(context) <= len(answer):
        draft = drafter.propose(context, 8)
        wanted = answer[len(context) - 1 :]
        n = 0
        while n < len(draft.tokens) and n < len(wanted) - 1 and draft.tokens[n] == wanted[n]:
            n += 1
        context += wanted[: n + 1]
        drafter.observe(Round(tuple(wanted[: n + 1]), draft, 0.0, cost.seconds(len(draft.tokens) + 1), 0.0))
    drafter.propose(context, 8)  # the last round's proposals are judged when the next one is made
    return acceptance


def counted(acceptance: Acceptance) -> dict[int, tuple[int, int]]:
    return {
        evidence: (round(chance.accepted), round(chance.judged)) for evidence, chance in acceptance.by_class.items()
    }


ANSWER = list(range(1, 13))


def test_what_is_not_verified_is_judged_by_what_was_said() -> None:
    right, wrong = {n: [n, n + 1] for n in range(2, 12)}, {n: [99, n + 1] for n in range(2, 12)}
    acceptance = answered(ANSWER, {"right": right, "wrong": wrong}, STEEP)
    assert counted(acceptance["right"]) == {1: (10, 10)}
    assert counted(acceptance["wrong"]) == {1: (0, 10)}


@pytest.mark.parametrize("verified", ["one", "other"])
def test_a_verified_draft_is_not_judged_twice_and_tells_about_the_other(verified: str) -> None:
    scripts = {"one": {2: [2, 3, 99]}, "other": {2: [2, 98, 4]}}
    if verified == "other":
        scripts["other"][2] = [2, 98, 4, 5, 6, 7, 8]  # longer: it promises more
    acceptance = answered(ANSWER, scripts, FLAT)
    as_far_as_said = {1: (1, 1), 2: (1, 1)}
    assert counted(acceptance["one"]) == as_far_as_said | ({3: (0, 1)} if verified == "one" else {})
    assert counted(acceptance["other"]) == {1: (1, 1), 2: (0, 1)}


@given(script=st.dictionaries(st.integers(2, 12), st.lists(st.integers(1, 12), max_size=6)), flat=st.booleans())
@settings(max_examples=200, deadline=None)
def test_no_token_counts_twice(script: dict[int, list[int]], flat: bool) -> None:
    """By hand: a proposal made at a position is compared with what stands there, as far as the round reached."""
    acceptance = answered(ANSWER, {"script": script}, FLAT if flat else STEEP)["script"]
    judged = sum(n for _, n in counted(acceptance).values())
    assert judged <= sum(len(proposed) for proposed in script.values())
    if not flat:  # plain rounds judge the first token of each proposal and no other
        proposed = {n: tokens for n, tokens in script.items() if tokens and n <= len(ANSWER)}
        right = sum(tokens[0] == ANSWER[n - 1] for n, tokens in proposed.items())
        assert counted(acceptance) == ({1: (right, len(proposed))} if proposed else {})


def with_model(cost: CostModel, **options: object) -> tuple[AutoDrafter, BigramModel]:
    """A draft model that is certain and cheap."""
    model = CountingModel(n_vocab=40)
    acceptance = {"model": Acceptance(CONFIDENCE_PRIOR, 0.75)}
    controller = Controller(cost, acceptance, DraftCost(0.01, 0.01), Shares(CONFIDENCE_SHARES))
    sampler = KeyedSampler(SamplingConfig(temperature=0.0))
    return AutoDrafter(controller, [], ModelDrafter(model, sampler, rule=floor_rule(0.0), **options)), model


def begun(drafter: AutoDrafter, context: Sequence[int]) -> None:
    """The first token comes without a draft, and the answer is then long enough that reading its prompt pays."""
    drafter.begin(context)
    drafter.propose(context, 8)
    for _ in range(20):
        drafter.observe(Round((1,), EMPTY_DRAFT, 0.0, 1.0, 0.0))


def test_what_ctrl_c_left_of_a_round_is_nothing_to_the_next_answer() -> None:
    drafter, _ = with_model(FLAT)
    begun(drafter, [1, 2, 3])
    assert drafter.propose([1, 2, 3, 4], 8).tokens  # and no round comes of it
    drafter.controller._probing = "model"
    token_s, shares = drafter.controller.draft_cost.token_s, drafter.controller._shares._counts
    before = [counts.copy() for counts in shares]
    begun(drafter, [1, 2, 3])
    assert not drafter.controller.is_probing
    assert drafter.controller.draft_cost.token_s == token_s
    np.testing.assert_array_equal(shares, before)


@pytest.mark.parametrize("widest", [2, 4, 8])
def test_a_draft_ends_where_nobody_knows_what_it_costs_also_where_a_grammar_goes_on(widest: int) -> None:
    """What a grammar forces takes many tokens at once; a slow machine's table may end at 16."""

    class Forcing:
        def foreseen(self, context: Sequence[int]) -> tuple[tuple[int, ...], int]:
            return (tuple(range(20, 32)), 12) if context[-1] == 5 else ((), 0)

    cost = CostModel({width: 1.0 + 0.001 * width for width in range(1, widest + 1)})
    drafter, _ = with_model(cost, constraint=Forcing())
    begun(drafter, [1, 2, 3])
    assert 0 < len(drafter.propose([1, 2, 3, 4], 31).tokens) < widest


def test_a_table_of_one_width_leaves_nothing_to_choose() -> None:
    drafter, model = with_model(CostModel({1: 1.0}))
    begun(drafter, [1, 2, 3])
    assert drafter.propose([1, 2, 3, 4], 8).tokens == ()
    assert model.n_forwards == 0
    assert drafter.controller.summary()
