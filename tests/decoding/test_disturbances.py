"""The controller on machines that stall, that others use too, and whose forwards take longer the deeper the context is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from specllm.decoding.acceptance import Acceptance
from specllm.decoding.controller import Controller
from specllm.decoding.cost import DraftCost
from specllm.decoding.protocols import Round
from tests.decoding.test_controller import MACHINES, Machine, cost_model, run_lookup, run_model

STALL_S = 2.0


class Disturbed(Machine):
    """Tells what its rounds took, and counts what they were worth: the tokens and seconds expected of such drafts undisturbed."""

    stalls = 0.0  # the share of the rounds in which something stalls
    stalls_next = ""  # draft or verify
    slower = 1.0  # so many times longer everything takes
    draft_slower = 1.0  # and the draft model's tokens on top
    growth = 0.0  # by so much of it per token of the context
    expected_tokens = expected_s = 0.0

    def round(self, source: str, length: int, evidence: tuple[int, ...] = (), n_forwards: int = 0) -> Round:
        one = super().round(source, length, evidence, n_forwards)
        self.expected_tokens += sum(self.acceptance**i for i in range(length + 1))
        self.expected_s += self.v(length + 1) + n_forwards * self.draft_s * self.draft_slower
        factor = self.slower * (1 + self.growth * self.n_tokens)
        draft_s, verify_s = factor * self.draft_slower * one.draft_s, factor * one.verify_s
        if self.rng.random() < self.stalls:
            self.stalls_next = self.rng.choice(["draft", "verify"])
        if self.stalls_next == "verify" or (self.stalls_next == "draft" and n_forwards):
            draft_s += STALL_S * (self.stalls_next == "draft")
            verify_s += STALL_S * (self.stalls_next == "verify")
            self.stalls_next = ""
        return replace(one, draft_s=draft_s, verify_s=verify_s)


Run = Callable[[Disturbed, int], None]  # so many tokens more


def with_model(name: str, acceptance: float, draft_share: float) -> tuple[Disturbed, Controller]:
    v = MACHINES[name]
    machine = Disturbed(v, acceptance, draft_share * v(1), noise=0.1)
    cost = DraftCost(draft_share * v(1), 0.1 * draft_share * v(1))
    return machine, Controller(cost_model(v), {"model": Acceptance({}, 0.75)}, cost)


def running(kind: str, name: str, acceptance: float, draft_share: float) -> tuple[Disturbed, Run]:
    """A machine on which the controller has settled, with a draft model or with lookups."""
    machine, controller = with_model(name, acceptance, draft_share)
    if kind == "model":

        def run(machine: Disturbed, n_tokens: int) -> None:
            run_model(machine, controller, machine.n_tokens + n_tokens)
    else:
        controller = Controller(controller.cost, {"lookup": Acceptance({8: 0.8}, 0.8)})

        def run(machine: Disturbed, n_tokens: int) -> None:
            run_lookup(machine, controller, n_tokens)

    run(machine, 500)
    return machine, run


def share_of_the_best(machine: Disturbed, run: Run, n_tokens: int) -> float:
    """The speed of the next tokens, over that of the best fixed choice."""
    machine.expected_tokens = machine.expected_s = 0.0
    run(machine, n_tokens)
    token_s = machine.draft_s * machine.draft_slower
    best = Machine(machine.v, machine.acceptance, token_s).best_fixed_rate()
    return machine.expected_tokens / machine.expected_s / best


DRAFTERS_THAT_PAY = [("flat", 0.8, 0.1), ("this", 0.9, 0.1), ("staircase", 0.8, 0.2), ("flat", 0.7, 0.2)]


@pytest.mark.parametrize(("name", "acceptance", "share"), DRAFTERS_THAT_PAY)
@pytest.mark.parametrize("n_stalls", [1, 2, 3])
def test_a_draft_model_that_stalled_is_asked_again_at_once(name, acceptance, share, n_stalls):
    """10 ms a token came to 59 by one stall of two seconds, and nobody asked again."""
    machine, controller = with_model(name, acceptance, share)
    run_model(machine, controller, 500)
    for _ in range(n_stalls):
        machine.stalls_next = "draft"
        run_model(machine, controller, machine.n_tokens + 20)
    assert controller.draft_cost.token_s < 1.5 * share * MACHINES[name](1)
    controller.lengths.clear()
    run_model(machine, controller, machine.n_tokens + 60)
    assert sum(controller.lengths["model"].values()) >= 5


KINDS = pytest.mark.parametrize("kind", ["model", "lookup"])
PLACES = pytest.mark.parametrize(
    ("name", "acceptance", "share"), [*DRAFTERS_THAT_PAY[:3], ("moe", 0.8, 0.2), ("steep", 0.9, 0.05)]
)


@KINDS
@PLACES
def test_stalls_at_random_rounds_cost_nothing_but_their_own_time(kind, name, acceptance, share):
    machine, run = running(kind, name, acceptance, share)
    machine.stalls = 0.02
    assert share_of_the_best(machine, run, 1500) >= 0.97


@KINDS
@PLACES
def test_a_busy_neighbour_is_followed_and_forgotten(kind, name, acceptance, share):
    machine, run = running(kind, name, acceptance, share)
    machine.slower = 3.0
    assert share_of_the_best(machine, run, 1000) >= 0.97
    machine.slower = 1.0
    assert share_of_the_best(machine, run, 1000) >= 0.97


@pytest.mark.parametrize("width", [1, 2, 4, 8, 16, 32, 128])
def test_one_slow_round_says_little_of_its_width_and_two_say_that_it_is_slow(width):
    v = MACHINES["this"]
    model = cost_model(v)
    model.observe(width, STALL_S + v(width))
    assert model.seconds(width) <= 1.25 * v(width)
    assert model.seconds(1) <= 1.25 * v(1)
    for _ in range(30):
        model.observe(width, 3 * v(width))
    assert model.seconds(width) == pytest.approx(3 * v(width), rel=0.1)


@pytest.mark.parametrize("name", MACHINES)
def test_a_width_that_was_slow_for_a_while_comes_back_without_being_tried(name):
    """Nobody tries what seems too dear: what is known of the machine has to bring it back."""
    v = MACHINES[name]
    model = cost_model(v)
    for _ in range(3):
        model.observe(16, 4 * v(16))
        model.observe(1, v(1))
    for _ in range(3000):
        model.observe(1, v(1))
    assert model.seconds(16) == pytest.approx(v(16), rel=0.15)


@KINDS
@PLACES
@pytest.mark.parametrize("growth", [1 / 4000, 1 / 500])
def test_a_context_that_grows_deep_is_no_reason_to_draft_less(kind, name, acceptance, share, growth):
    machine, run = running(kind, name, acceptance, share)
    machine.growth = growth
    assert share_of_the_best(machine, run, 1500) >= 0.97


@pytest.mark.parametrize("slower", [2.0, 4.0])
@pytest.mark.parametrize(("name", "acceptance", "share"), DRAFTERS_THAT_PAY)
def test_a_draft_model_that_really_is_slower_is_learned_in_some_tens_of_rounds(name, acceptance, share, slower):
    machine, controller = with_model(name, acceptance, share)
    run_model(machine, controller, 300)
    machine.draft_slower = slower
    controller.lengths.clear()
    n_asked = 0
    while controller.draft_cost.token_s < 0.8 * slower * share * MACHINES[name](1) and n_asked < 60:
        n_asked += 1
        controller.observe(machine.round("model", 3, n_forwards=3), n_pending=2, seen=(0, 0, 0))
    assert n_asked <= 40
    assert share_of_the_best(machine, lambda one, n: run_model(one, controller, one.n_tokens + n), 1500) >= 0.97


@pytest.mark.parametrize("name", MACHINES)
def test_a_bad_draft_loses_three_percent_at_most_whatever_disturbs(name):
    machine, controller = with_model(name, 0.1, 0.2)
    for slower, stalls in ((1.0, 0.0), (3.0, 0.0), (1.0, 0.05), (2.0, 0.02), (0.5, 0.0), (1.0, 0.0)):
        machine.slower, machine.stalls = slower, stalls
        run_model(machine, controller, machine.n_tokens + 500)
    assert machine.expected_s <= 1.03 * machine.expected_tokens * MACHINES[name](1)
