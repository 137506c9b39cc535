"""What drafting would bring on a measured machine: break-even points, and measured answers replayed with every setting.

Pure: no model, no clock, no file. A replay needs no forward: the answer is known, so is what each drafter would have
proposed, and V(w) says what verifying it costs.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from specllm.decoding.cost import CostModel, DraftCost
from specllm.decoding.protocols import Drafter, Token

ACCEPTANCES = (0.5, 0.7, 0.9)  # that a table of promises shows
_TOLERANCE = 1e-4


def promised_speedup(cost: CostModel, length: int, acceptance: float, token_s: float = 0.0) -> float:
    """Over plain decoding, when every drafted token is accepted with that chance, given that it is reached."""
    tokens = 1.0 + sum(acceptance**i for i in range(1, length + 1))
    return tokens * cost.seconds(1) / (cost.seconds(length + 1) + length * token_s)


def break_even(cost: CostModel, length: int, token_s: float = 0.0) -> float | None:
    """The acceptance at which drafting so many tokens is as fast as plain decoding; None where it never is."""
    if promised_speedup(cost, length, 1.0, token_s) <= 1:
        return None
    low, high = 0.0, 1.0
    while high - low > _TOLERANCE:
        middle = (low + high) / 2
        low, high = (low, middle) if promised_speedup(cost, length, middle, token_s) >= 1 else (middle, high)
    return high


def good_steps(cost: CostModel) -> list[int]:
    """The widths worth choosing: a token is cheaper there than at every narrower one, and no wider block costs less."""
    return [
        width
        for width in cost.good_widths()
        if all(cost.seconds(wider) > cost.seconds(width) for wider in cost.widths if wider > width)
    ]


@dataclass(frozen=True, slots=True)
class Promise:
    """What drafting `length` tokens needs and brings, for drafts that cost nothing and for the draft model's."""

    length: int
    free_break_even: float | None
    free_speedups: tuple[float, ...]  # at ACCEPTANCES
    model_break_even: float | None  # None also where there is no draft model
    model_speedups: tuple[float, ...]  # empty without one

    def as_result(self) -> dict[str, object]:
        return {
            "draft_length": self.length,
            "lookup_break_even": self.free_break_even,
            "lookup_speedup_at": dict(zip(map(str, ACCEPTANCES), self.free_speedups, strict=True)),
            "model_break_even": self.model_break_even,
            "model_speedup_at": dict(zip(map(str, ACCEPTANCES), self.model_speedups, strict=False)),
        }


def promises(cost: CostModel, draft_cost: DraftCost | None) -> list[Promise]:
    """One for each length that ends at a good step of V."""
    rows = []
    for length in [width - 1 for width in good_steps(cost) if width > 1]:
        token_s = draft_cost.token_s if draft_cost else 0.0
        rows.append(
            Promise(
                length,
                break_even(cost, length),
                tuple(promised_speedup(cost, length, chance) for chance in ACCEPTANCES),
                break_even(cost, length, token_s) if draft_cost else None,
                tuple(promised_speedup(cost, length, chance, token_s) for chance in ACCEPTANCES if draft_cost),
            )
        )
    return rows


@dataclass(frozen=True, slots=True)
class Sample:
    """A short answer of the target, and what the draft model would have said at each of its tokens."""

    category: str
    prompt: tuple[Token, ...]
    answer: tuple[Token, ...]
    agrees: tuple[
        bool | None, ...
    ] = ()  # per token of the answer; None where it would not have drafted; empty without one


@dataclass(frozen=True, slots=True)
class Replay:
    """A sample decoded with a fixed drafter and length, priced by the cost table."""

    drafter: str
    length: int
    speedup: float
    n_accepted: int
    n_judged: int

    @property
    def acceptance(self) -> float | None:
        """The chance of a drafted token, given that it was reached."""
        return self.n_accepted / self.n_judged if self.n_judged else None

    def as_result(self) -> dict[str, object]:
        return {"draft_length": self.length, "speedup": self.speedup, "conditional_acceptance": self.acceptance}


PLAIN = Replay("none", 0, 1.0, 0, 0)


def replay_lookup(sample: Sample, lookup: Drafter, length: int, cost: CostModel) -> Replay:
    """Its drafts cost nothing."""
    prompt, answer = list(sample.prompt), list(sample.answer)
    lookup.begin(prompt)

    def rounds() -> Iterator[tuple[int, int, float]]:
        i = 0
        while i < len(answer):
            k = min(length, len(answer) - i - 1)
            draft = lookup.propose(prompt + answer[:i], k).tokens if k else ()
            n = _n_equal(draft, answer[i:])
            yield n, len(draft), 0.0
            i += n + 1

    return _priced("lookup", length, len(answer), cost, rounds())


def replay_model(sample: Sample, length: int, cost: CostModel, draft_cost: DraftCost) -> Replay:
    """Behind its first wrong token the draft is taken to go on as long as it would have on the right text."""
    agrees = sample.agrees

    def rounds() -> Iterator[tuple[int, int, float]]:
        i = 0
        while i < len(agrees):
            chain = agrees[i : i + min(length, len(agrees) - i - 1)]
            drafted = chain[: chain.index(None)] if None in chain else chain
            n = drafted.index(False) if False in drafted else len(drafted)
            n_forwards = len(drafted) + (len(drafted) < len(chain))  # the one that shows it is too unsure
            yield n, len(drafted), n_forwards * draft_cost.token_s
            i += n + 1

    return _priced("model", length, len(agrees), cost, rounds())


def _priced(
    drafter: str, length: int, n_tokens: int, cost: CostModel, rounds: Iterator[tuple[int, int, float]]
) -> Replay:
    """`rounds`: tokens accepted, tokens drafted, seconds of drafting."""
    seconds, accepted, judged = 0.0, 0, 0
    for n_accepted, n_drafted, draft_s in rounds:
        seconds += draft_s + cost.seconds(n_drafted + 1)
        accepted += n_accepted
        judged += n_accepted + (n_accepted < n_drafted)
    return Replay(drafter, length, n_tokens * cost.seconds(1) / seconds, accepted, judged)


def _n_equal(draft: Sequence[Token], answer: Sequence[Token]) -> int:
    n = 0
    while n < min(len(draft), len(answer)) and draft[n] == answer[n]:
        n += 1
    return n


@dataclass(frozen=True, slots=True)
class Category:
    """What each drafter would bring for one kind of text, at every length."""

    name: str
    n_tokens: int
    replays: tuple[Replay, ...]

    def best(self, drafter: str) -> Replay | None:
        """The fastest length of that drafter; None where it was not replayed."""
        return max((one for one in self.replays if one.drafter == drafter), key=lambda one: one.speedup, default=None)

    def as_result(self) -> dict[str, object]:
        bests = {name: self.best(name) for name in ("lookup", "model")}
        return {
            "category": self.name,
            "n_tokens": self.n_tokens,
            **{name: best.as_result() if best else None for name, best in bests.items()},
        }


def category(sample: Sample, lookup: Drafter, cost: CostModel, draft_cost: DraftCost | None) -> Category:
    """The sample replayed with every drafter and measured width."""
    lengths = [width - 1 for width in cost.widths if width > 1]
    replays = [replay_lookup(sample, lookup, length, cost) for length in lengths]
    if draft_cost and sample.agrees:
        replays += [replay_model(sample, length, cost, draft_cost) for length in lengths]
    return Category(sample.category, len(sample.answer), tuple(replays))


def best_fixed(categories: Sequence[Category]) -> Replay:
    """The drafter and length with the least time over all categories, each as long as the others; PLAIN where none pays.

    Its acceptance is over all.
    """
    settings = {(one.drafter, one.length) for one in (categories[0].replays if categories else ())}
    best = PLAIN
    for drafter, length in sorted(settings):
        ones = [one for kind in categories for one in kind.replays if (one.drafter, one.length) == (drafter, length)]
        speedup = len(ones) / sum(1 / one.speedup for one in ones)
        if len(ones) == len(categories) and speedup > best.speedup:
            judged = sum(one.n_judged for one in ones)
            best = Replay(drafter, length, speedup, sum(one.n_accepted for one in ones), judged)
    return best
