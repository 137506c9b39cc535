"""Keeps drafts so short that their blocks compute, bit for bit, what single tokens do."""

from __future__ import annotations

from collections.abc import Sequence

from specllm.decoding.exact import ExactWidths
from specllm.decoding.protocols import EMPTY_DRAFT, Draft, Drafter, Round, Token


class ExactDrafter:
    """Implements `protocols.Drafter` over another one.

    How wide a block may be is measured where that one first drafts; before, nothing is spent on it.
    """

    def __init__(self, inner: Drafter, widths: ExactWidths) -> None:
        self._inner = inner
        self._widths = widths

    @property
    def name(self) -> str:
        return self._inner.name

    def begin(self, context: Sequence[Token]) -> None:
        self._inner.begin(context)

    def propose(self, context: Sequence[Token], k: int) -> Draft:
        width = self._widths.known(k + 1)
        if width is not None:  # whoever weighs lengths has to know which there are
            return self._inner.propose(context, width - 1) if width > 1 else EMPTY_DRAFT
        draft = self._inner.propose(context, k)
        n = self._widths.of(len(draft.tokens) + 1, context[-1]) - 1
        return Draft(draft.tokens[:n], draft.source, draft.evidence[:n])

    def observe(self, round: Round) -> None:
        self._inner.observe(round)
