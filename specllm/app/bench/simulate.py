"""What draft would be needed: the speed-up that a draft model of given acceptance and cost would bring on this machine.

    speed-up(k) = (1 + sum over j <= k of a^j) * V(1) / (V(k + 1) + k * c * V(1))

from the measured cost of forwards alone; c is the cost of a drafted token as a share of V(1).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

from specllm.decoding.cost import CostModel
from specllm.errors import ConfigError

_HINT = "use --simulate accept=0.7,draft_cost=0.2"
_STEPS = 40  # halvings of the interval that holds a break-even acceptance: 1e-12


@dataclass(frozen=True, slots=True)
class Supposed:
    """A draft model that need not exist."""

    accept: float  # the chance of a drafted token that is reached
    draft_cost: float  # seconds per drafted token / V(1)

    @classmethod
    def parse(cls, text: str) -> Self:
        """From `accept=0.7,draft_cost=0.2`; raises ConfigError."""
        values = {"draft_cost": 0.0}
        for part in text.split(","):
            name, _, value = part.partition("=")
            try:
                values[name.strip()] = float(value)
            except ValueError:
                raise ConfigError(f"--simulate {text}: {part.strip()!r} is no number with a name", _HINT) from None
        if set(values) != {"accept", "draft_cost"}:
            raise ConfigError(f"--simulate {text} names {', '.join(values)}", _HINT)
        if not 0 <= values["accept"] <= 1 or not 0 <= values["draft_cost"] < float("inf"):
            raise ConfigError(f"--simulate {text}: acceptance is from 0 to 1, the cost of a draft 0 or more", _HINT)
        return cls(**values)

    def speedup(self, cost: CostModel, k: int) -> float:
        """Of drafts of `k` tokens over plain decoding."""
        tokens = sum(self.accept**j for j in range(k + 1))
        return tokens * cost.seconds(1) / (cost.seconds(k + 1) + k * self.draft_cost * cost.seconds(1))


def break_even(cost: CostModel, k: int, draft_cost: float) -> float | None:
    """The acceptance from which on drafts of `k` tokens pay; None where not even perfect ones do."""
    if Supposed(1.0, draft_cost).speedup(cost, k) < 1:
        return None
    low, high = 0.0, 1.0
    for _ in range(_STEPS):
        middle = (low + high) / 2
        if Supposed(middle, draft_cost).speedup(cost, k) < 1:
            low = middle
        else:
            high = middle
    return high


def simulate(cost: CostModel, supposed: Supposed) -> dict[str, object]:
    """Speed-up and break-even acceptance by draft length, and the best length, 0 where nothing pays.

    Lengths are those whose block has a measured width: between two of them the cost is not known.
    """
    lengths = [
        {
            "draft_length": width - 1,
            "speedup": supposed.speedup(cost, width - 1),
            "break_even_acceptance": break_even(cost, width - 1, supposed.draft_cost),
        }
        for width in cost.widths
        if width > 1
    ]
    best = max(cost.widths, key=lambda width: supposed.speedup(cost, width - 1))  # width 1 is plain decoding, 1.0
    thresholds = [break_even(cost, width - 1, supposed.draft_cost) for width in cost.widths if width > 1]
    return {
        "accept": supposed.accept,
        "draft_cost": supposed.draft_cost,
        "lengths": lengths,
        "best_draft_length": best - 1,
        "best_speedup": supposed.speedup(cost, best - 1),
        "break_even_acceptance": min((least for least in thresholds if least is not None), default=None),
    }
