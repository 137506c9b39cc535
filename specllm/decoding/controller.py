"""Which drafter, how many tokens, or none: the choice that promises the most tokens per second on this machine.

    rate(d, k) = (1 + sum over j <= k of prod over i <= j of a_d(i)) / (D_d(k) + V(k + 1))

with V measured, sampling and rollback included (`cost`), acceptance a conditional on what a token's draft rests on
(`acceptance`), and D what drafting costs. What a draft model will be confident of is not known before it is asked: it is
expected by how certain the target has been (`certainty`), and how far it goes on is planned (`chain`). k = 0 is always among
the choices, so what does not pay is not done. Acceptance rate is a diagnosis, never the goal.

Pure: no clock, no model, no randomness. It is told every round and can be simulated by the thousand.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from specllm.decoding.acceptance import Acceptance
from specllm.decoding.certainty import LEVELS, Certainty
from specllm.decoding.chain import Chain, Shares
from specllm.decoding.cost import CostModel, DraftCost
from specllm.decoding.protocols import FREE, Round

PROBE_SHARE = 0.01  # of the time may be lost to trying what does not seem to pay
# Forwards of width 1 that an unspent budget may grow to: a new kind of text must not pay for old luck.
PROBE_SAVINGS = 4.0
HOPE = 0.95  # the chance of a drafted token that a probe hopes for
MIN_GAIN = 1.05  # what is switched on must promise this much more than plain decoding: estimates have errors, deciding takes time
# A free draft's chances are doubted: what is believed at first differs from text to text, and of all guesses the overrated ones
# get chosen. So they are taken to the power of 1 + doubt, which makes first drafts shorter and rarer; where they are nearly sure
# the text is a copy, and no doubt. Halved by so many tokens that the target judged. Over 66 prompts and seven cost
# tables (simulated, 1.5B) the worst of 13 kinds of text comes to 0.999 of plain decoding, without it to 0.957; code loses 1.4 %.
_DOUBT, _DOUBT_FADES = 0.75, 40.0
_NO_DOUBT = 0.9  # from that chance on
# Where a kind of text gives drafts no credit (`Acceptance.credit`), one that is not nearly sure may lose no more than that share
# of the answer so far and what drafts of its source gained in it. Over the 66 prompts (simulated, the clang build's costs) the
# worst kind comes from 0.987 to 1.000 of plain decoding, answers below 0.99 from 6 to 1.5 in a hundred, all from 1.067 to 1.058.
_STAKE = 0.005
# Of what a draft model promises beyond plain decoding, so much is doubted at first, fading alike. With three such tables it takes
# the worst kind of text from 0.991 to 1.000 and math from 1.20 to 1.15; all kinds together stay at 1.087.
_MODEL_DOUBT = 0.5
_OUTLOOK_RATE = 1 / 24  # per round, of the moving average of what the draft model would save
_NAP = 4  # rounds from one question about a draft model that does not pay to the next: one costs 0.1 ms
_PLAN_ROUNDS, _OLDEST_PLAN = 16, 64  # the draft model's chain is planned anew after so many, where it was tried or not

Verdict = Literal["drop", "last", "more"]


@dataclass(frozen=True, slots=True)
class Option:
    """So many tokens of one drafter, and the tokens per second that promises."""

    length: int
    rate: float
    is_probe: bool = False


NOTHING = Option(0, 0.0)


def _newness(acceptance: Acceptance) -> float:
    """1 where nothing of the drafter was judged, towards 0 where much was."""
    return _DOUBT_FADES / (_DOUBT_FADES + acceptance.n_judged)


class Controller:
    """Told every round; asked before every draft."""

    def __init__(
        self,
        cost: CostModel,
        sources: dict[str, Acceptance],
        draft_cost: DraftCost | None = None,
        shares: Shares | None = None,  # of the draft model's classes; None: it has one class of evidence, 0
    ) -> None:
        self.cost = cost
        self.acceptance = sources  # by drafter name
        self.draft_cost = draft_cost
        self.certainty = Certainty()
        self._shares = shares or Shares([[1.0]] * (len(LEVELS) + 1))
        self._level = self.certainty.level  # when the draft model was last asked about
        self._chains: dict[int, Chain] = {}  # by level
        self._chain_age: Counter[int] = Counter()
        self._n_tried = 0  # rounds that told something about the draft model
        self._tried_before: Counter[int] = Counter()  # of them, before the plan of each level
        self.lengths: dict[str, Counter[int]] = defaultdict(Counter)  # drafted lengths by source, for the summary
        self._budget_s = 0.0  # what probing may lose now
        self._gained_s: dict[str, float] = defaultdict(float)  # by source, of this answer, against plain decoding
        self._probing = ""
        self._n_context = 0  # tokens before the answer
        self._n_committed = 0
        self._elapsed_s = 0.0
        self._can_model_pay = draft_cost is not None and self.can_model_pay()
        self._model_rate = 0.0  # what the draft model last promised
        self._outlook = 0.0  # the share of the time that it would have saved lately, had it been up to date
        self._does_model_pay = True  # as the last question about it found
        self._n_since_asked = 0  # rounds
        if self._can_model_pay and "model" in sources:
            for level in range(len(LEVELS) + 1):  # now, not in the answer: a plan costs a millisecond
                self._chain("model", level)

    def begin(self, n_context: int = 0) -> None:
        """A new answer starts behind `n_context` tokens; what was learned stays."""
        self._n_context = n_context
        self._n_committed, self._elapsed_s = 0, 0.0
        self._probing = ""
        self._gained_s.clear()
        self.lengths.clear()
        self.certainty.begin()
        self._level = self.certainty.level
        self._outlook = 0.0
        self._does_model_pay, self._n_since_asked = True, 0
        self._can_model_pay = self.draft_cost is not None and self.can_model_pay()
        if "model" in self.acceptance and self.draft_cost and self.cost.max_width > 1:
            self._model_rate = self._chain("model", self._level).rate

    @property
    def is_probing(self) -> bool:
        """Whether the round in the making is a try of something that is not believed to pay."""
        return bool(self._probing)

    @property
    def asks_a_model(self) -> bool:
        """Whether a draft model may be asked in this answer, so that the target's certainty matters."""
        return self._can_model_pay

    def can_model_pay(self) -> bool:
        """Whether a draft model of that cost could win here if nearly everything it drafts were accepted."""
        k = self.cost.max_width - 1
        return k > 0 and self._best_chain(HOPE, k).rate > self.plain().rate * MIN_GAIN

    # ---- options ------------------------------------------------------------------------------------------------

    def plain(self) -> Option:
        return Option(0, 1.0 / self.cost.seconds(1))

    def plain_s(self, round: Round) -> float:
        """Seconds that plain decoding would have taken for the tokens of a round just observed."""
        if not round.draft.tokens:
            return round.verify_s + round.rest_s  # it was plain decoding; asking the drafters is not part of that
        return len(round.tokens) / self.plain().rate

    def best_prefix(self, source: str, evidence: Sequence[int]) -> Option:
        """How much of a draft that is already there to verify.

        No probes: what is not verified is judged all the same, by what the target says (`Acceptance.judge`).
        """
        n = min(len(evidence), self.cost.max_width - 1)
        if not n:
            return NOTHING
        acceptance = self.acceptance[source]
        plain = self.plain()
        may_lose_s = acceptance.credit / plain.rate + _STAKE * self._elapsed_s + self._gained_s[source]
        most_s = 1.0 / plain.rate + may_lose_s
        best, survival, tokens, is_sure = NOTHING, 1.0, 1.0, True
        power = 1.0 + _DOUBT * _newness(acceptance)
        chances = acceptance.chances(evidence[:n])
        for length, chance in enumerate(chances, start=1):  # arrays take longer: they are not in the cache
            if chance <= _NO_DOUBT:
                chance, is_sure = chance**power, False
            survival *= chance
            tokens += survival
            seconds = self.cost.seconds(length + 1)
            if tokens > best.rate * seconds and (is_sure or seconds <= most_s):
                best = Option(length, tokens / seconds)
        return best if best.rate > plain.rate * MIN_GAIN else NOTHING

    def asks_now(self) -> bool:
        """Whether to ask about the draft model in this round; where it did not pay at the last question, not in each."""
        self._n_since_asked += 1
        return self._can_model_pay and (self._does_model_pay or self._n_since_asked >= _NAP)

    def model_option(self, source: str, n_pending: int, k: int, free_rate: float = 0.0) -> Option:
        """How many tokens to ask of the draft model when `n_pending` context tokens are still to be fed to it.

        `free_rate` is what the best free drafter promises in this round.
        """
        cost, n_left = self.draft_cost, k
        n_rounds, self._n_since_asked = max(1, self._n_since_asked), 0
        k = min(k, self.cost.max_width - 1)
        if cost is None or k <= 0 or not self._can_model_pay:
            return NOTHING
        self._level = self.certainty.level
        plain = self.plain()
        self._model_rate = self._chain(source, self._level).rate
        doubted = _MODEL_DOUBT * _newness(self.acceptance[source]) * max(0.0, self._model_rate - plain.rate)
        option = Option(k, self._model_rate - doubted)
        otherwise = max(plain.rate, free_rate)
        saved = max(0.0, 1.0 - otherwise / option.rate)
        self._outlook += _OUTLOOK_RATE * n_rounds * (saved - self._outlook)
        self._does_model_pay = option.rate > plain.rate * MIN_GAIN
        if self._does_model_pay:
            # Catching up is an investment: it pays if what is still to come gains more than it costs. An answer of which
            # nothing else is known goes on for as long as it already has.
            rest_s = self._elapsed_s
            if n_left < min(self.cost.max_width, self._n_committed):
                rest_s *= n_left / self._n_committed
            if n_pending <= 2 or rest_s * self._outlook > cost.catch_up_s(n_pending):
                return option
            return NOTHING
        return self._probe(k, cost.catch_up_s(n_pending))

    def choose(self, options: dict[str, Option]) -> str | None:
        """The source to draft from in this round; None is plain decoding."""
        best = max(options, key=lambda source: options[source].rate, default=None)
        if best is None or not options[best].length:
            return None
        chosen = options[best]
        self._probing = best if chosen.is_probe else ""
        return best

    def verdict(self, source: str, evidence: Sequence[int], k: int) -> Verdict:
        """Whether the last of `evidence` (a draft model's next token) is worth its row, and another one its forward."""
        chain, n = self._chains[self._level], len(evidence)
        survival = float(np.prod(self.acceptance[source].chances(evidence)))
        is_longest = n >= min(k, chain.n_max)
        to_come = chain.stopped(n) if is_longest else chain.worth(n, survival)
        if survival + to_come < chain.stopped(n - 1):
            return "drop"
        return "more" if to_come > chain.stopped(n) else "last"

    # ---- learning -----------------------------------------------------------------------------------------------

    def observe(self, round: Round, *, n_pending: int = 0, seen: Sequence[int] = ()) -> None:
        """Counts a round; `n_pending` context tokens were fed to the draft model in it, and it was `seen` to be that
        confident, its dropped token included."""
        seconds = round.draft_s + round.verify_s + round.rest_s
        source, n = round.draft.source, len(round.draft.tokens)
        depth = self._n_context + self._n_committed
        self.cost.observe(round.width, round.verify_s + round.rest_s, forward_s=round.verify_s, depth=depth)
        if n and source in self.acceptance:
            self._gained_s[source] += len(round.tokens) * self.cost.seconds(1) - seconds
            self.acceptance[source].observe(round)
            self.lengths[source][n] += 1
        n_asked = sum(one not in FREE for one in seen)  # forwards of the draft model, one for a dropped token too
        if self.draft_cost is not None:
            self.draft_cost.follow(self.cost.drift)
            if n_pending and (n_asked or not seen):
                self.draft_cost.observe(n_pending, max(1, n_asked), round.draft_s)
            else:
                self.draft_cost.fade()
        # Behind a wrong token it was confident of something else.
        reached = [one for one in seen[: round.n_accepted + 1] if one not in FREE]
        if reached:
            self._n_tried += 1
            self._shares.observe(self._level, reached)
        self._budget_s += PROBE_SHARE * seconds
        self._n_committed += len(round.tokens)
        self._elapsed_s += seconds
        if self._probing:
            self._budget_s -= max(0.0, seconds - len(round.tokens) / self.plain().rate)
            self._probing = ""
        self._budget_s = min(self._budget_s, PROBE_SAVINGS * self.cost.seconds(1))

    def summary(self) -> str:
        """What was done and why, in a few words: `lookup 12-16, model off (would lose 18 %)`."""
        parts = []
        for source in self.acceptance:
            drafted = self.lengths.get(source)
            if drafted:
                lengths = sorted(drafted.elements())
                low, high = lengths[len(lengths) // 10], lengths[(len(lengths) * 9) // 10]
                parts.append(f"{source} {low}" if low == high else f"{source} {low}-{high}")
            elif source == "model" and self._model_rate:
                loss = 1 - self._model_rate / self.plain().rate
                parts.append(f"{source} off (would lose {loss:.0%})" if loss > 0 else f"{source} not started")
            else:
                parts.append(f"{source} off")
        return ", ".join(parts) or "plain decoding"

    # ---- arithmetic ---------------------------------------------------------------------------------------------

    def _chain(self, source: str, level: int) -> Chain:
        """The plan for that level of certainty, a little old perhaps."""
        assert self.draft_cost is not None
        old = self._chains.get(level)
        limit = _PLAN_ROUNDS if self._n_tried > self._tried_before[level] else _OLDEST_PLAN
        if old is None or self._chain_age[level] >= limit:
            shares = self._shares.at(level)
            chances = np.array(self.acceptance[source].chances(range(len(shares))))
            rate = old.rate if old else self.plain().rate
            self._chains[level] = Chain(self.cost.curve, self.draft_cost.token_s, chances, shares, rate)
            self._chain_age[level], self._tried_before[level] = 0, self._n_tried
        self._chain_age[level] += 1
        return self._chains[level]

    def _best_chain(self, chance: float, k: int) -> Option:
        """The best number of tokens of a draft model whose tokens all have this chance, if one chose it before.

        At what they were measured to cost: a stall must not rule it out for a whole answer.
        """
        assert self.draft_cost is not None
        lengths = np.arange(1, k + 1)
        tokens = 1.0 + np.cumsum(np.cumprod(np.full(k, chance)))
        seconds = self.cost.curve[1 : k + 1] + lengths * self.draft_cost.hoped_token_s
        best = int(np.argmax(tokens / seconds))
        return Option(best + 1, float(tokens[best] / seconds[best]))

    def _probe(self, k: int, extra_s: float) -> Option:
        """The draft of at most `k` tokens that tells most for what it may lose, if that fits the budget; nothing where luck could
        not make it pay. `extra_s` comes on top, once."""
        assert self.draft_cost is not None
        if extra_s > self._budget_s:
            return NOTHING
        lengths, verify_s = np.arange(1, k + 1), self.cost.curve[1 : k + 1]
        seconds, hoped_s = (
            verify_s + lengths * each for each in (self.draft_cost.token_s, self.draft_cost.hoped_token_s)
        )
        plain = self.plain()
        pays = (1.0 + np.cumsum(HOPE**lengths)) / hoped_s > plain.rate * MIN_GAIN
        if not pays.any():
            return NOTHING
        losses = seconds + extra_s - 1.0 / plain.rate  # nothing accepted
        judged = np.cumsum(0.7 ** np.arange(len(seconds)))  # tokens, if things go middling
        length = int(np.argmin(np.where(pays, losses / judged, np.inf))) + 1
        loss_s = float(losses[length - 1])
        if loss_s > self._budget_s:
            return NOTHING
        # Never before something that is believed to pay: a probe's promise is the plain rate.
        return Option(length, plain.rate, is_probe=True)
