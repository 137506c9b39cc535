"""Proposes what a small language model with the target's vocabulary would say.

It picks with the target's own sampler settings and keyed noise: greedy at temperature 0, and above it a sample from its
own distribution whose randomness it shares with the target, so that the two agree nearly as often as their distributions
overlap (Daliri, Musco, Suresh 2024, arXiv:2408.07978). It sees a recent window of the context and reads nothing before it
is asked for a draft.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from itertools import takewhile
from typing import Protocol

import numpy as np
import numpy.typing as npt

from specllm.decoding.constraint import Constraint
from specllm.decoding.controller import Verdict
from specllm.decoding.protocols import EMPTY_DRAFT, FORCED, Draft, LanguageModel, Round, Sampler, Token
from specllm.errors import NothingAllowed

# Evidence: the draft model's own confidence, the probability of its likeliest token. The chances are those of a model of the
# same family before anything is seen.
CONFIDENCE_STEPS = (0.3, 0.5, 0.7, 0.85, 0.95, 0.99)
CONFIDENCE_PRIOR = dict(enumerate((0.2, 0.4, 0.55, 0.7, 0.85, 0.93, 0.97)))


class StopRule(Protocol):
    """Decides after each of the draft model's forwards what becomes of the token it shows.

    It may look at the distribution only (its highest probability, and the evidence classes of the draft including this
    token), never at the token drawn from it: that would bias the draft.
    """

    def __call__(self, probability: float, evidence: Sequence[int], k: int) -> Verdict: ...


def floor_rule(floor: float) -> StopRule:
    """Drafts on while the likeliest token has at least that probability."""

    def rule(probability: float, evidence: Sequence[int], k: int) -> Verdict:
        return "drop" if probability < floor else "more"

    return rule


class ModelDrafter:
    """Implements `protocols.Drafter` on a `LanguageModel`.

    `can_draft(token)` is False for ids that mean something else to the target; they are never proposed, and the window
    starts behind any that the draft model has no row for.
    """

    name = "model"

    def __init__(
        self,
        model: LanguageModel,
        sampler: Sampler,
        *,
        rule: StopRule,
        can_draft: Callable[[Token], bool] = lambda token: True,
        constraint: Constraint | None = None,
    ) -> None:
        self._model = model
        self._sampler = sampler
        self.rule = rule
        self._can_draft = can_draft
        self._constraint = constraint  # the sampler's
        self._start = 0  # where in the context the window begins
        self._fed: list[Token] = []  # the tokens in the draft model's KV cache
        self._n_agreed = 0  # of them, known to be the context's
        self.dropped = EMPTY_DRAFT  # the token that the rule dropped last, where that left no draft at all

    def begin(self, context: Sequence[Token]) -> None:
        """Forgets the last request; nothing is computed before the first proposal."""
        self._model.rollback(0)
        self._start, self._fed, self._n_agreed = 0, [], 0

    def propose(self, context: Sequence[Token], k: int) -> Draft:
        k = min(k, self._model.n_ctx // 4)
        self.dropped = EMPTY_DRAFT
        pending = self._catch_up(context, k)
        if not pending:
            return EMPTY_DRAFT
        extended = list(context)  # the sampler looks back for penalties, and its noise is keyed by the length
        evidence: list[int] = []
        while True:
            forced = self._forced(extended, k - len(evidence))
            extended += forced
            evidence += [FORCED] * len(forced)
            if len(evidence) == k:
                break
            pending += forced
            row = self._model.forward(pending, logits="last")[0]
            self._fed += pending
            probability = top_probability(row)
            evidence.append(bisect_right(CONFIDENCE_STEPS, probability))
            verdict = self.rule(probability, evidence, k)
            token = self._pick(row, extended) if verdict != "drop" or len(evidence) == 1 else None
            if token is None or not self._can_draft(token):
                break
            if verdict == "drop":
                self.dropped = Draft((token,), self.name, tuple(evidence))
                break
            extended.append(token)
            if verdict == "last" or len(evidence) == k:
                break
            pending = [token]
        tokens = tuple(extended[len(context) :])
        return Draft(tokens, self.name, tuple(evidence[: len(tokens)]))

    def _forced(self, context: Sequence[Token], n: int) -> list[Token]:
        """At most `n` tokens that a grammar lets follow alone: no forward of the draft model is spent on guessing them."""
        forced = self._constraint.forced(context)[:n] if self._constraint else ()
        return list(takewhile(self._can_draft, forced))

    def _pick(self, row: npt.NDArray[np.float32], context: Sequence[Token]) -> Token | None:
        """The sampler's pick; None where a grammar leaves none behind these tokens, which the target may never say."""
        try:
            return self._sampler.pick(row, context)
        except NothingAllowed:
            return None

    def n_pending(self, context: Sequence[Token]) -> int:
        """Context tokens that a proposal would have to feed first; 1 or 2 where the draft model is up to date."""
        n_window = len(context) - self._start
        if n_window > self._model.n_ctx:
            return self._model.n_ctx // 2
        return n_window - self._n_agreeing(context)

    def observe(self, round: Round) -> None:
        """Nothing to learn: what was accepted is found by comparing with the context."""

    def _catch_up(self, context: Sequence[Token], k: int) -> list[Token]:
        """Takes back what the target did not accept; returns the context tokens still to be fed, at least the last one.

        Empty where the draft model has no row for the last token.
        """
        del self._fed[self._model.n_past :]  # Ctrl-C in a rollback may have cost more than was to be dropped
        n_kept = self._n_agreeing(context)
        if len(context) - self._start + k > self._model.n_ctx:  # the window is full: begin a half-empty one
            self._start, n_kept = max(self._start, len(context) - self._model.n_ctx // 2), 0
        pending = list(context[self._start + n_kept :])
        for i in range(len(pending) - 1, -1, -1):
            if pending[i] >= self._model.n_vocab:
                self._start, n_kept, pending = self._start + n_kept + i + 1, 0, pending[i + 1 :]
                break
        self._model.rollback(n_kept)
        del self._fed[n_kept:]
        self._n_agreed = n_kept + len(pending)
        return pending

    def _n_agreeing(self, context: Sequence[Token]) -> int:
        """How many of the fed tokens are the context's; never its last one, which is fed (again) for its logits."""
        # Fewer than once agreed were fed where a forward was interrupted.
        n = max(0, min(self._n_agreed, len(self._fed), len(context) - 1 - self._start))
        last = min(len(self._fed), len(context) - 1 - self._start)
        while n < last and self._fed[n] == context[self._start + n]:
            n += 1
        return n


def top_probability(row: npt.NDArray[np.float32]) -> float:
    """The probability of the most likely token, from one row of logits.

    Taken among the tokens within 10 nats of it: a fourth of the time of a full softmax over 150,000 tokens.
    """
    highest = row.max()
    return float(1.0 / np.exp(row[row > highest - 10.0] - highest).sum())
