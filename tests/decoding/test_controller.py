"""The controller on simulated machines: whole runs in milliseconds, told every second by the simulation."""

from __future__ import annotations

import math
import random

import numpy as np
import pytest

from specllm.decoding.acceptance import Acceptance
from specllm.decoding.controller import MIN_GAIN, Controller, Verdict
from specllm.decoding.cost import CALIBRATION_WIDTHS, CostModel, DraftCost
from specllm.decoding.protocols import EMPTY_DRAFT, FORCED, GUESSED, Draft, Round

K = 32  # what a user may allow per round

MACHINES = {
    "flat": lambda w: 0.030 * (1 + 0.005 * (w - 1)),  # a GPU far from its compute limit
    "steep": lambda w: 0.030 * w,  # every row costs a forward
    "moe": lambda w: 0.030 * (1 + 0.6 * (w - 1)),
    "staircase": lambda w: 0.030 * {1: 1, 2: 1.45, 3: 1.9}.get(w, 1.7 + 0.55 * ((w + 3) // 4 - 1)),
    "this": lambda w: 0.071 * float(np.interp(w, [1, 2, 3, 4, 5, 8, 12, 16, 20, 24, 32, 64],
                                              [1, 1.44, 1.92, 1.73, 2.1, 3, 3.83, 3.9, 5, 5.9, 6.65, 11.5])),
}  # fmt: skip


class Machine:
    """A target with the cost curve V, a draft model that is right with a fixed chance, and a clock."""

    def __init__(self, v, acceptance: float, draft_s: float, seed: int = 0, noise: float = 0.0) -> None:
        self.v, self.acceptance, self.draft_s, self.noise = v, acceptance, draft_s, noise
        self.rng = random.Random(seed)
        self.seconds = 0.0
        self.n_tokens = 0

    def round(self, source: str, length: int, evidence: tuple[int, ...] = (), n_forwards: int = 0) -> Round:
        n_accepted = 0
        while n_accepted < length and self.rng.random() < self.acceptance:
            n_accepted += 1
        jitter = 1 + self.noise * self.rng.uniform(-1, 1)
        verify_s = self.v(length + 1) * jitter
        draft_s = n_forwards * self.draft_s
        self.seconds += verify_s + draft_s
        self.n_tokens += n_accepted + 1
        draft = Draft(tuple([1] * length), source, evidence or (0,) * length) if length else EMPTY_DRAFT
        last = 2 if n_accepted < length else 1
        return Round((*([1] * n_accepted), last), draft, draft_s, verify_s, 0.0)

    def best_fixed_rate(self) -> float:
        """Tokens per second of the best constant draft length, 0 included, in closed form."""
        a = self.acceptance
        return max((1 + sum(a**j for j in range(1, k + 1))) / (self.v(k + 1) + k * self.draft_s) for k in range(K + 1))


def cost_model(v) -> CostModel:
    return CostModel({width: v(width) for width in CALIBRATION_WIDTHS})


def run_model(machine: Machine, controller: Controller, n_tokens: int) -> None:
    """The loop of `AutoDrafter` with a draft model, on the simulated machine."""
    controller.begin()
    while machine.n_tokens < n_tokens:
        option = controller.model_option("model", 2, K)
        if controller.choose({"model": option}) is None:
            controller.observe(machine.round("none", 0))
            continue
        seen: list[int] = []
        verdict: Verdict = "more"
        while verdict == "more" and len(seen) < option.length:
            seen.append(0)
            verdict = "more" if controller.is_probing else controller.verdict("model", seen, option.length)
        length = len(seen) - (verdict == "drop")
        controller.observe(machine.round("model", length, n_forwards=len(seen)), n_pending=2, seen=seen)


@pytest.mark.parametrize("acceptance", [0.1, 0.5, 0.7, 0.8, 0.95])
@pytest.mark.parametrize("draft_share", [0.05, 0.2])
@pytest.mark.parametrize("name", MACHINES)
def test_a_run_is_within_three_percent_of_the_best_fixed_length(name, draft_share, acceptance):
    v = MACHINES[name]
    shares = []
    for seed in range(5):
        machine = Machine(v, acceptance, draft_share * v(1), seed=seed, noise=0.1)
        controller = Controller(
            cost_model(v), {"model": Acceptance({}, 0.75)}, DraftCost(draft_share * v(1), 0.1 * draft_share * v(1))
        )
        run_model(machine, controller, 2500)
        shares.append(machine.n_tokens / machine.seconds / machine.best_fixed_rate())
    assert sum(shares) / len(shares) >= 0.97


@pytest.mark.parametrize("name", MACHINES)
def test_a_bad_draft_costs_at_most_three_percent_from_the_first_token_on(name):
    """Twenty answers of 100 tokens with a draft that is nearly always wrong."""
    v = MACHINES[name]
    machine = Machine(v, 0.05, 0.3 * v(1), noise=0.1)
    controller = Controller(cost_model(v), {"model": Acceptance({}, 0.75)}, DraftCost(0.3 * v(1), 0.03 * v(1)))
    for answer in range(20):
        run_model(machine, controller, 100 * (answer + 1))
    assert machine.seconds <= 1.03 * machine.n_tokens * v(1)


def run_lookup(machine: Machine, controller: Controller, n_tokens: int, *, match: int = 8, share: float = 1.0) -> None:
    """The loop of `AutoDrafter` with a lookup that finds 40 tokens of evidence `match` in a share of the rounds."""
    controller.begin()
    end = machine.n_tokens + n_tokens
    while machine.n_tokens < end:
        evidence = (match,) * 40 if machine.rng.random() < share else ()
        option = controller.best_prefix("lookup", evidence)
        controller.choose({"lookup": option})
        controller.observe(
            machine.round("lookup" if option.length else "none", option.length, evidence[: option.length])
        )
        if evidence and not option.length:  # what was not verified is judged by the target's own token
            said = 1 if machine.rng.random() < machine.acceptance else 2
            controller.acceptance["lookup"].judge(Draft((1,), "lookup", evidence[:1]), (said,))


@pytest.mark.parametrize("name", MACHINES)
def test_lookup_is_switched_off_on_a_poem_after_code_and_on_again(name):
    v = MACHINES[name]
    controller = Controller(cost_model(v), {"lookup": Acceptance({3: 0.45, 8: 0.8}, 0.8)})
    machine = Machine(v, 0.93, 0.0, noise=0.05)
    run_lookup(machine, controller, 3000)
    best = machine.best_fixed_rate()
    assert machine.n_tokens / machine.seconds >= 0.95 * best
    poem = Machine(v, 0.1, 0.0, seed=1, noise=0.05)
    run_lookup(poem, controller, 600, match=3, share=0.2)  # now and then three words come again
    assert poem.seconds <= poem.n_tokens * v(1) / 0.98
    code = Machine(v, 0.93, 0.0, seed=2, noise=0.05)
    run_lookup(code, controller, 6000)
    assert code.n_tokens / code.seconds >= 0.95 * best


def without_credit(prior: float, v=MACHINES["this"]) -> Controller:
    return Controller(cost_model(v), {"lookup": Acceptance({}, prior, credit=0.0)})


@pytest.mark.parametrize("n_tokens", [5, 20, 80, 320])
@pytest.mark.parametrize("prior", [0.7, 0.8, 0.9])
@pytest.mark.parametrize("name", MACHINES)
def test_without_credit_wrong_drafts_lose_half_a_percent_of_any_answer(name, prior, n_tokens):
    """However much is believed of them."""
    v = MACHINES[name]
    machine = Machine(v, 0.0, 0.0)
    run_lookup(machine, without_credit(prior, v), n_tokens)
    assert machine.seconds <= machine.n_tokens * v(1) * 1.006


def test_what_is_nearly_sure_needs_no_credit():
    controller = without_credit(0.8)
    assert not controller.best_prefix("lookup", (8,) * 20).length
    controller.acceptance["lookup"] = Acceptance({8: 0.97}, 0.8, credit=0.0)
    assert controller.best_prefix("lookup", (8,) * 20).length >= 10
    assert controller.best_prefix("lookup", (8,) * 4 + (2,) * 16).length <= 4  # up to where it is sure


@pytest.mark.parametrize("credit", [4.0, math.inf])
def test_credit_lets_a_first_draft_through(credit):
    controller = without_credit(0.88)
    assert not controller.best_prefix("lookup", (8,) * 20).length
    controller.acceptance["lookup"] = Acceptance({}, 0.88, credit=credit)
    assert controller.best_prefix("lookup", (8,) * 20).length


def test_what_drafts_gained_may_be_lost_again_in_the_same_answer():
    v = MACHINES["this"]
    controller = without_credit(0.88)
    controller.begin()
    draft = Draft((1,) * 15, "lookup", (30,) * 15)
    controller.observe(Round((1,) * 16, draft, 0.0, v(16), 0.0))
    assert controller.best_prefix("lookup", (8,) * 20).length
    controller.begin()
    assert not controller.best_prefix("lookup", (8,) * 20).length


def test_widths_snap_to_the_good_steps():
    v = MACHINES["staircase"]
    controller = Controller(cost_model(v), {"lookup": Acceptance({0: 0.97}, 0.97)})
    option = controller.best_prefix("lookup", (0,) * 30)
    assert (option.length + 1) % 4 == 0
    assert 16 in cost_model(MACHINES["this"]).good_widths()
    assert 20 not in cost_model(MACHINES["this"]).good_widths()


def test_a_machine_that_slows_down_is_followed():
    v = MACHINES["flat"]
    model = cost_model(v)
    for _ in range(60):
        model.observe(1, 2 * v(1))
    assert model.seconds(1) == pytest.approx(2 * v(1), rel=0.05)
    assert (
        1.15 * v(16) < model.seconds(16) < 2 * v(16)
    )  # perhaps it is memory that is slow: wide forwards wait less for it
    for _ in range(3):
        model.observe(16, 2 * v(16))
    assert model.seconds(16) == pytest.approx(2 * v(16), rel=0.15)
    assert model.seconds(1) == pytest.approx(2 * v(1), rel=0.2)
    model.observe(1, 50 * v(1))  # one hiccup
    assert model.seconds(1) < 2.5 * v(1)


def test_a_table_measured_beside_other_work_is_wrong_after_one_round():
    """Nothing is ten times faster than it can be, as a hiccup is ten times slower."""
    v = MACHINES["this"]
    model = CostModel({width: 30 * v(width) for width in CALIBRATION_WIDTHS})
    model.observe(1, v(1))
    assert model.seconds(1) == pytest.approx(v(1))
    assert model.seconds(2) / v(2) < 4


def test_a_wrong_calibration_point_is_unlearned():
    v = MACHINES["flat"]
    points = {width: v(width) for width in CALIBRATION_WIDTHS}
    points[16] *= 3
    model = CostModel(points)
    for i in range(200):
        width = 16 if i % 2 else 1
        model.observe(width, v(width))
    assert model.seconds(16) == pytest.approx(v(16), rel=0.15)
    assert model.seconds(1) == pytest.approx(v(1), rel=0.1)


def test_what_probing_may_lose_is_a_hundredth_of_the_time():
    v = MACHINES["flat"]
    machine = Machine(v, 0.0, 0.2 * v(1))
    controller = Controller(cost_model(v), {"model": Acceptance({}, 0.05)}, DraftCost(0.2 * v(1), 0.02 * v(1)))
    run_model(machine, controller, 3000)
    assert sum(controller.lengths["model"].values()) >= 50, "nothing was tried"
    assert machine.seconds <= 1.011 * machine.n_tokens * v(1)


def test_a_fully_accepted_draft_proves_only_as_many_as_it_had():
    acceptance = Acceptance({}, 0.5)
    acceptance.observe(Round((1, 1, 9), Draft((1, 1), "x", (4, 5)), 0, 0, 0))
    assert {c: (x.accepted, x.judged) for c, x in acceptance.by_class.items()} == {4: (1, 1), 5: (1, 1)}
    acceptance.observe(Round((9,), Draft((1, 1), "x", (4, 5)), 0, 0, 0))
    assert acceptance.by_class[5].judged == 1, "the position behind a rejection was never reached"
    assert acceptance.by_class[4].judged == pytest.approx(2, abs=0.05)


def test_a_dropped_token_was_a_forward_too_and_a_forced_one_is_none():
    v = MACHINES["flat"]
    controller = Controller(cost_model(v), {"model": Acceptance({}, 0.75)}, DraftCost(0.01, 0.001))
    for _ in range(50):  # one drafted, one dropped behind it, three free: two forwards
        draft = Draft((1,) * 4, "model", (FORCED, GUESSED, FORCED, 0))
        controller.observe(Round((2,), draft, 0.02 + 0.001, v(5), 0.0), n_pending=2, seen=(*draft.evidence, 0))
    assert controller.draft_cost.token_s == pytest.approx(0.01, rel=0.02)
    free = Draft((1, 1), "model", (FORCED, FORCED))  # all of a draft, which took no time
    controller.observe(Round((2,), free, 0.0, v(3), 0.0), n_pending=2, seen=free.evidence)
    assert controller.draft_cost.token_s == pytest.approx(0.01, rel=0.02)


@pytest.mark.parametrize("name", MACHINES)
@pytest.mark.parametrize("factor", [0.5, 3.0])
def test_a_bad_draft_does_not_seem_to_pay_where_the_machine_changes(name, factor):
    """Width 1 must not stand at what it was dragged to by rounds that drafted, once there are no others."""
    v = MACHINES[name]
    machine = Machine(v, 0.1, 0.1 * v(1))
    controller = Controller(cost_model(v), {"model": Acceptance({}, 0.75)}, DraftCost(0.1 * v(1), 0.01 * v(1)))
    run_model(machine, controller, 500)
    machine.v, before = (lambda w: factor * v(w)), (machine.seconds, machine.n_tokens)
    run_model(machine, controller, 1500)
    seconds, n_tokens = machine.seconds - before[0], machine.n_tokens - before[1]
    assert seconds <= n_tokens * factor * v(1) / 0.97


def test_no_width_comes_to_cost_less_than_one_token():
    v = MACHINES["flat"]
    model = cost_model(v)
    for width, slower in ((1, 2.0), (2, 2.0), (16, 1.0), (1, 0.5), (128, 1.0), (4, 3.0), (1, 3.0)):
        for _ in range(20):
            model.observe(width, slower * v(width))
            assert model.curve.min() >= model.seconds(1) * (1 - 1e-9)
        assert model.seconds(width) == pytest.approx(slower * v(width), rel=0.05)


@pytest.mark.parametrize("name", [name for name in MACHINES if name != "steep"])
def test_a_guess_has_to_promise_more_than_what_is_proven_or_certain(name):
    """Of many guesses the overrated ones get chosen; what was judged often, or has to follow, is no guess."""
    v = MACHINES[name]

    def option(chance, n_judged=0):
        controller = Controller(cost_model(v), {"lookup": Acceptance({3: chance}, chance)})
        for i in range(n_judged):  # spread, so that no change is suspected
            said = 1 if int((i + 1) * chance) > int(i * chance) else 2
            controller.acceptance["lookup"].judge(Draft((1,), "lookup", (3,)), (said,))
        return controller.best_prefix("lookup", (3,) * 15)

    chances = np.linspace(0.01, 0.99, 99)
    guessed = next(chance for chance in chances if option(chance).length)
    proven = next(chance for chance in chances if option(chance, 400).length)
    assert proven < guessed
    assert all(option(chance).length <= option(chance, 400).length for chance in chances if chance < 0.9)
    seconds = cost_model(v).seconds  # and of a copy there is no doubt
    assert option(0.95).rate == pytest.approx(max((1 - 0.95 ** (k + 1)) / 0.05 / seconds(k + 1) for k in range(1, 16)))
    forced = Controller(cost_model(v), {"grammar": Acceptance({}, 0.5)}).best_prefix("grammar", (FORCED,) * 15)
    cheapest = max(range(1, 16), key=lambda k: (k + 1) / v(k + 1))
    assert bool(forced.length) == ((cheapest + 1) / v(cheapest + 1) > MIN_GAIN / v(1))


@pytest.mark.parametrize("n_left", [7, 60, 1000])
@pytest.mark.parametrize("pending", [40, 400, 4000])
def test_reading_is_risked_once_the_answer_so_far_would_have_saved_what_it_costs(pending, n_left):
    """Of how long an answer becomes nothing is known: it goes on as long as it has, and no longer than it may."""
    v = MACHINES["this"]
    cost = DraftCost(0.1 * v(1), 0.05 * v(1))
    controller = Controller(cost_model(v), {"model": Acceptance({}, 0.99)}, cost)
    n_said = 0
    while n_said < 5000 and not (controller.asks_now() and controller.model_option("model", pending, n_left).length):
        controller.observe(Round((1,), Draft((), "none"), 0.0, v(1), 0.0))
        n_said += 1
    saved = 1 - controller.plain().rate / controller.model_option("model", 1, n_left).rate
    rounds = cost.catch_up_s(pending) / v(1) / saved  # that would have paid for it
    if n_left < rounds:
        assert n_said == 5000
    else:
        assert rounds <= n_said <= 1.1 * rounds + 24  # and the outlook takes its time


def test_a_draft_model_that_does_not_pay_is_asked_about_in_every_fourth_round_and_one_that_does_in_each():
    v = MACHINES["this"]
    for chance, n_asked in ((0.05, 10), (0.99, 40)):
        controller = Controller(cost_model(v), {"model": Acceptance({}, chance)}, DraftCost(0.2 * v(1), 0.02 * v(1)))
        controller.begin()
        questions = 0
        for _ in range(40):
            if controller.asks_now():
                questions += 1
                controller.model_option("model", 1, 8)
            controller.observe(Round((1,), EMPTY_DRAFT, 0.0, v(1), 0.0))
        assert questions == pytest.approx(n_asked, abs=1)
        controller.begin()
        assert controller.asks_now(), "a new answer is asked about at once"


@pytest.mark.parametrize("factor", [0.8, 1.0, 1.4])
@pytest.mark.parametrize("name", MACHINES)
def test_what_plain_decoding_would_have_taken_follows_the_machine(name, factor):
    """Half the rounds draft, on a machine that is not as fast as it was when it was measured."""
    machine = Machine(lambda width: factor * MACHINES[name](width), 0.8, 0.0, noise=0.05)
    controller = Controller(cost_model(MACHINES[name]), {"lookup": Acceptance({}, 0.8)})
    controller.begin()
    plain_s = 0.0
    for i in range(400):
        round = machine.round("lookup", 7) if i % 2 else machine.round("none", 0)
        controller.observe(round)
        plain_s += controller.plain_s(round)
    assert plain_s == pytest.approx(machine.n_tokens * machine.v(1), rel=0.03)


def test_a_round_without_a_draft_was_plain_decoding_but_for_asking_the_drafters():
    controller = Controller(cost_model(MACHINES["this"]), {"lookup": Acceptance({}, 0.8)})
    assert controller.plain_s(Round((1,), EMPTY_DRAFT, 0.5, 0.07, 0.01)) == pytest.approx(0.08)
