"""Proposes the text that a grammar forces (keys, punctuation, the rest of an enum value), or that most answers would have there,
and keeps other drafts inside it.

It goes through the target like any draft, so text, tokenization and probabilities stay the model's: what follows is certain
where the grammar allows one token alone (`FORCED`), elsewhere a guess (`GUESSED`), and most of all its end (`SPELLED`). A draft
is cut at its first forbidden token: the target cannot pick that one, and what stands behind it could not be used.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import takewhile
from operator import eq

from specllm.decoding.constraint import Constraint
from specllm.decoding.protocols import EMPTY_DRAFT, FORCED, GUESSED, SPELLED, Draft, Drafter, Round, Token

# That the last token of such text is picked, before anything was seen: 454 of 608 in 37 known answers split by the tokenizer of
# Qwen2.5 (30 November 2026); ` "` nearly always, ` {` never (what follows makes it ` {"` or ` {}`).
SPELLED_CHANCE = 0.75
# That one before it is: 1717 of 1724 in the same answers, which name nearly every property. Were half of the optional ones left
# out, 0.9 would promise more than 0.95, and where none is it costs next to nothing.
GUESSED_CHANCE = 0.9


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
        front, evidence = foreseen(self._constraint, context, k)
        # The inner drafter sees committed tokens only. What it proposes here counts where it begins as it must.
        inner = self._inner.propose(context, k)
        n = self._constraint.n_allowed(context, inner.tokens)
        n_agreeing = sum(takewhile(bool, map(eq, inner.tokens[:n], front)))
        if n_agreeing == n or n_agreeing < evidence.count(FORCED):
            return Draft(front, "grammar", evidence) if front else EMPTY_DRAFT
        tokens = inner.tokens[:n]
        behind, of_behind = foreseen(self._constraint, [*context, *tokens], k - n)
        own = inner.evidence[n_agreeing:n]
        return Draft((*tokens, *behind), inner.source, (*evidence[:n_agreeing], *own, *of_behind))

    def observe(self, round: Round) -> None:
        self._inner.observe(round)


def foreseen(constraint: Constraint, context: Sequence[Token], k: int) -> tuple[tuple[Token, ...], tuple[int, ...]]:
    """At most `k` tokens of the text that has to follow, or else probably does, and their evidence."""
    if not k:
        return (), ()
    tokens, n_forced = constraint.foreseen(context)
    evidence = [FORCED if i < n_forced else GUESSED for i in range(len(tokens))]
    if len(tokens) > n_forced:  # what comes next may become part of the last one
        evidence[-1] = SPELLED + tokens[-1]
    return tokens[:k], tuple(evidence[:k])
