"""Proposes what a small language model with the target's vocabulary would say.

It picks with the target's own sampler settings and keyed noise: greedy at temperature 0, and above it a sample from its
own distribution whose randomness it shares with the target, so that the two agree nearly as often as their distributions
overlap (Daliri, Musco, Suresh 2024, arXiv:2408.07978). It sees a recent window of the context and reads nothing before it
is asked for a draft.
"""

from __future__ import annotations

import logging
import math
from bisect import bisect_right
from collections.abc import Callable, Sequence
from itertools import takewhile
from typing import Protocol

import numpy as np
import numpy.typing as npt

from specllm.decoding.certainty import top_probability
from specllm.decoding.constraint import Constraint
from specllm.decoding.controller import Verdict
from specllm.decoding.protocols import EMPTY_DRAFT, FREE, Draft, LanguageModel, Round, Sampler, Token
from specllm.drafters.grammar import foreseen
from specllm.errors import NothingAllowed

LOGGER = logging.getLogger("specllm")

# Evidence: the draft model's own confidence, the probability of its likeliest token. What is believed before anything is seen was
# measured on 26 answers of a 1.5B model and its 0.5B sibling in Q4_0 (30 November 2026): how often a token of each class is
# accepted, and how often each comes up by how certain the target has been (`Certainty.level`, from uncertain to sure).
CONFIDENCE_STEPS = (0.3, 0.5, 0.7, 0.85, 0.95, 0.99)
CONFIDENCE_PRIOR = dict(enumerate((0.3, 0.49, 0.66, 0.84, 0.94, 0.98, 0.995)))
CONFIDENCE_SHARES = (
    (0.21, 0.23, 0.18, 0.12, 0.09, 0.08, 0.10),
    (0.14, 0.18, 0.18, 0.14, 0.14, 0.08, 0.14),
    (0.09, 0.12, 0.17, 0.12, 0.15, 0.12, 0.24),
    (0.02, 0.07, 0.12, 0.11, 0.13, 0.17, 0.37),
    (0.01, 0.05, 0.08, 0.09, 0.11, 0.12, 0.54),
    (0.01, 0.02, 0.03, 0.06, 0.05, 0.10, 0.72),
    (0.01, 0.01, 0.02, 0.03, 0.08, 0.06, 0.78),
)


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
    """Implements `protocols.Drafter` on a `LanguageModel` that nobody else feeds from its first draft on.

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
        self.is_off = False  # it has computed no numbers
        self.seen: tuple[int, ...] = ()  # the evidence of the last proposal, and of the token that ended it unproposed

    def take_over(self, other: ModelDrafter) -> None:
        """Goes on with what another drafter, asked no more, has fed the same model, and with what that is known for."""
        self._start, self._fed, self.is_off = other._start, other._fed, other.is_off

    def begin(self, context: Sequence[Token]) -> None:
        """Forgets the last request, but for the tokens in the cache that are also this one's; nothing is computed yet."""
        self._n_agreed = 0
        if self._start and self._n_agreeing(context) < self._model.n_ctx // 2:  # less than a new window begins with
            self._start, self._fed = 0, []

    def propose(self, context: Sequence[Token], k: int) -> Draft:
        k = min(k, self._model.n_ctx // 4)
        self.dropped, self.seen = EMPTY_DRAFT, ()
        pending = [] if self.is_off else self._catch_up(context, k)
        if not pending:
            return EMPTY_DRAFT
        extended = list(context)  # the sampler looks back for penalties, and its noise is keyed by the length
        evidence: list[int] = []
        while True:
            free, of_free = self._free(extended, k - len(evidence))
            extended += free
            evidence += of_free
            if len(evidence) == k:
                break
            pending += free
            row = self._model.forward(pending, logits="last")[0]
            self._fed += pending
            best = int(row.argmax())
            if not math.isfinite(row[best]):  # NaN is the largest of all to numpy: then nothing here can be trusted
                LOGGER.warning("the draft model is off from here on: it computes no numbers (%s)", row[best])
                self.is_off = True
                return EMPTY_DRAFT
            probability = top_probability(row, best)
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
        self.seen = tuple(evidence)
        return Draft(tokens, self.name, tuple(evidence[: len(tokens)]))

    def _free(self, context: Sequence[Token], n: int) -> tuple[list[Token], tuple[int, ...]]:
        """At most `n` tokens that no forward of the draft model is spent on, and their evidence: what a grammar lets follow
        alone, or next to it. How what probably follows ends, the draft model knows better."""
        tokens, evidence = foreseen(self._constraint, context, n) if self._constraint else ((), ())
        free = [token for token, one in zip(tokens, evidence, strict=True) if one in FREE]
        free = list(takewhile(self._can_draft, free))
        return free, evidence[: len(free)]

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
