"""Proposes nothing: the loop is plain decoding."""

from __future__ import annotations

from collections.abc import Sequence

from specllm.decoding.protocols import EMPTY_DRAFT, Draft, Round, Token


class NoDrafter:
    """Implements `protocols.Drafter`."""

    name = "none"

    def begin(self, context: Sequence[Token]) -> None:
        pass

    def propose(self, context: Sequence[Token], k: int) -> Draft:
        return EMPTY_DRAFT

    def observe(self, round: Round) -> None:
        pass
