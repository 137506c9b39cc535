"""Proposes what a small language model with the target's vocabulary would say.

It picks with the target's own sampler settings and keyed noise: greedy at temperature 0, and above it a sample from its
own distribution whose randomness it shares with the target, so that the two agree nearly as often as their distributions
overlap (Daliri, Musco, Suresh 2024, arXiv:2408.07978). It sees a recent window of the context and reads nothing before it
is asked for a draft.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from specllm.decoding.protocols import EMPTY_DRAFT, Draft, LanguageModel, Round, Sampler, Token


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
        confidence_floor: float,
        can_draft: Callable[[Token], bool] = lambda token: True,
    ) -> None:
        self._model = model
        self._sampler = sampler
        self._confidence_floor = confidence_floor
        self._can_draft = can_draft
        self._start = 0  # where in the context the window begins
        self._fed: list[Token] = []  # the tokens in the draft model's KV cache
        self._n_agreed = 0  # of them, known to be the context's

    def begin(self, context: Sequence[Token]) -> None:
        """Forgets the last request; nothing is computed before the first proposal."""
        self._model.rollback(0)
        self._start, self._fed, self._n_agreed = 0, [], 0

    def propose(self, context: Sequence[Token], k: int) -> Draft:
        k = min(k, self._model.n_ctx // 4)
        pending = self._catch_up(context, k)
        if not pending:
            return EMPTY_DRAFT
        extended = list(context)  # the sampler looks back for penalties, and its noise is keyed by the length
        while True:
            row = self._model.forward(pending, logits="last")[0]
            self._fed += pending
            # The rule to stop looks at the distribution only, never at the token drawn from it (that would bias drafts).
            if top_probability(row) < self._confidence_floor:
                break
            token = self._sampler.pick(row, extended)
            if not self._can_draft(token):
                break
            extended.append(token)
            if len(extended) == len(context) + k:
                break
            pending = [token]
        return Draft(tuple(extended[len(context) :]), self.name)

    def observe(self, round: Round) -> None:
        """Nothing to learn: what was accepted is found by comparing with the context."""

    def _catch_up(self, context: Sequence[Token], k: int) -> list[Token]:
        """Takes back what the target did not accept; returns the context tokens still to be fed, at least the last one.

        Empty where the draft model has no row for the last token.
        """
        n_kept = min(self._n_agreed, len(self._fed))  # fewer were fed where a forward was interrupted
        while (
            n_kept < len(self._fed)
            and self._start + n_kept < len(context) - 1
            and self._fed[n_kept] == context[self._start + n_kept]
        ):
            n_kept += 1
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


def top_probability(row: npt.NDArray[np.float32]) -> float:
    """The probability of the most likely token, from one row of logits.

    Taken among the tokens within 10 nats of it: a fourth of the time of a full softmax over 150,000 tokens.
    """
    highest = row.max()
    return float(1.0 / np.exp(row[row > highest - 10.0] - highest).sum())
