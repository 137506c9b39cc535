"""How likely the target is to accept a drafted token, given that it is reached: counted by drafter and evidence.

A fully accepted draft only proves "at least so many", so only tokens that the target judged are counted: each it said too, and
the first where it said something else. That is the conditional chance (a hazard), not the average over all drafted tokens. A
proposal need not be verified for that: what the target says instead judges it as well.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from specllm.decoding.protocols import FORCED, Draft, Round, Token

# Content changes inside one answer (code, then prose). Counts fade slowly, so that the chance is known well; a change is
# noticed by a CUSUM test (Page 1954) within a few rounds, and the counts then start over from where it began.
MEMORY = 300.0  # observations remembered
PRIOR_WEIGHT = 3.0  # observations that a prior counts for
_ALARM = 8.0  # nats of evidence for a change: by luck alone once in e^8 = 3,000 observations at worst
_EDGE = 0.02  # chances nearer to 0 or 1 are not told apart


@dataclass(slots=True)
class Change:
    """Evidence that a chance is no longer `before` but `after`, and what was counted since that began."""

    nats: float = 0.0
    accepted: float = 0.0
    judged: float = 0.0

    def add(self, is_accepted: bool, before: float, after: float) -> bool:
        """True once the evidence is strong."""
        step = math.log(after / before) if is_accepted else math.log((1 - after) / (1 - before))
        self.nats += step
        if self.nats <= 0:
            self.nats = self.accepted = self.judged = 0.0
            return False
        self.accepted += is_accepted
        self.judged += 1
        return self.nats > _ALARM


@dataclass(slots=True)
class Chance:
    """Fading counts of judged tokens."""

    accepted: float = 0.0
    judged: float = 0.0
    fall: Change = field(default_factory=Change)  # to half of it
    rise: Change = field(default_factory=Change)  # halfway to 1

    def add(self, is_accepted: bool) -> None:
        before = min(max(self.mean(0.5), _EDGE), 1 - _EDGE)
        self.accepted += is_accepted - self.accepted / MEMORY
        self.judged += 1.0 - self.judged / MEMORY
        for change, after in ((self.fall, before / 2), (self.rise, (1 + before) / 2)):
            if change.add(is_accepted, before, after):
                self.accepted, self.judged = change.accepted, change.judged
                self.fall, self.rise = Change(), Change()

    def mean(self, prior: float, weight: float = PRIOR_WEIGHT) -> float:
        return (self.accepted + weight * prior) / (self.judged + weight)


class Acceptance:
    """The chances of one drafter, by class of evidence (`Draft.evidence`).

    `prior(class)` is what is believed before anything was seen; `credit` how many forwards of width 1 drafts that are not
    nearly sure may lose in an answer before they have gained any.
    """

    def __init__(
        self, prior: Mapping[int, float], default: float, weight: float = PRIOR_WEIGHT, *, credit: float = math.inf
    ) -> None:
        self.credit = credit
        self._prior = prior
        self._default = default
        self._weight = weight
        self.by_class: dict[int, Chance] = {}

    @property
    def n_judged(self) -> float:
        """Tokens that the target judged, faded."""
        return sum(one.judged for one in self.by_class.values())

    def prior(self, evidence: int) -> float:
        return self._prior.get(evidence, self._default)

    def chance(self, evidence: int) -> float:
        """Of a token with that evidence, given that it is reached."""
        if evidence == FORCED:
            return 1.0
        known = self.by_class.get(evidence)
        return known.mean(self.prior(evidence), self._weight) if known else self.prior(evidence)

    def chances(self, evidence: Iterable[int]) -> list[float]:
        cache: dict[int, float] = {}
        return [cache[e] if e in cache else cache.setdefault(e, self.chance(e)) for e in evidence]

    def observe(self, round: Round) -> None:
        """Counts what the target judged of the round's draft."""
        self.judge(round.draft, round.tokens)

    def judge(self, draft: Draft, said: Sequence[Token], start: int = 0) -> None:
        """Counts what `said`, the target's own tokens, says of a draft from its token `start` on; verified or not.

        Nothing where the target parted from the draft before.
        """
        if draft.tokens[:start] != tuple(said[:start]):
            return
        evidence = draft.evidence or (0,) * len(draft.tokens)
        for i in range(start, min(len(draft.tokens), len(said))):
            is_accepted = draft.tokens[i] == said[i]
            if evidence[i] != FORCED:  # what has to follow says nothing about the drafter
                self.by_class.setdefault(evidence[i], Chance()).add(is_accepted)
            if not is_accepted:
                break

    def counts(self) -> dict[str, list[float]]:
        """What was counted, for `restore`: [accepted, judged] by class."""
        known = self.by_class.items()
        return {str(evidence): [round(one.accepted, 3), round(one.judged, 3)] for evidence, one in known}

    def restore(self, counts: Mapping[str, Sequence[float]], *, weight: float, most: float) -> None:
        """Starts from earlier counts times `weight`, each at most `most` observations. Raises ValueError for nonsense."""
        for name, (accepted, judged) in counts.items():
            if not 0 <= accepted <= judged < math.inf:
                raise ValueError(f"{accepted} of {judged} accepted")
            scale = min(weight, most / judged) if judged else 0.0
            self.by_class[int(name)] = Chance(accepted * scale, judged * scale)
