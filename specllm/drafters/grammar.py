"""Proposes what a grammar forces (keys, punctuation, the rest of an enum value), and keeps other drafts inside it.

Forced tokens go through the target like any draft, so tokenization and probabilities stay the model's. A draft is cut at
its first forbidden token: the target cannot pick that one, and what stands behind it could not be used.
"""

from __future__ import annotations

from collections.abc import Sequence

from specllm.decoding.constraint import Constraint
from specllm.decoding.protocols import EMPTY_DRAFT, FORCED, Draft, Drafter, Round, Token


class GrammarDrafter:
    """Implements `protocols.Drafter` over another one: forced tokens stand in front of its draft and behind it."""

    def __init__(self, inner: Drafter, constraint: Constraint) -> None:
        self._inner = inner
        self._constraint = constraint

    @property
    def name(self) -> str:
        """The other one's; alone, `grammar`."""
        return self._inner.name if self._inner.name != "none" else "grammar"

    def begin(self, context: Sequence[Token]) -> None:
        self._inner.begin(context)

    def propose(self, context: Sequence[Token], k: int) -> Draft:
        forced = self._constraint.forced(context)[:k]
        # The inner drafter sees committed tokens only. What it proposes here counts where it begins as it must.
        inner = self._inner.propose(context, k)
        n = self._constraint.n_allowed(context, inner.tokens)
        if inner.tokens[: min(n, len(forced))] != forced:
            inner, n = EMPTY_DRAFT, 0
        if not n and not forced:
            return EMPTY_DRAFT
        n_front = len(forced)
        tokens = inner.tokens[:n] if n > n_front else forced
        behind = self._constraint.forced([*context, *tokens])[: k - len(tokens)] if n > n_front else ()
        evidence = (FORCED,) * n_front + inner.evidence[n_front:n] + (FORCED,) * len(behind)
        return Draft((*tokens, *behind), inner.source if n > n_front else "grammar", evidence)

    def observe(self, round: Round) -> None:
        self._inner.observe(round)
