"""What free drafters are believed: every token they proposed is judged once, whether it was verified or not."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specllm.decoding.acceptance import Acceptance
from specllm.decoding.controller import Controller
from specllm.decoding.cost import CALIBRATION_WIDTHS, CostModel
from specllm.decoding.protocols import Draft, Round
from specllm.drafters.auto import AutoDrafter

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
