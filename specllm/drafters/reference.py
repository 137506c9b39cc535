"""Proposes the text that the answer is expected to resemble: the file that is edited, a predicted output."""

from __future__ import annotations

from collections.abc import Sequence

from specllm.decoding.protocols import EMPTY_DRAFT, Draft, Round, Token

ANCHOR_PRIOR = {1: 0.9}


class ReferenceDrafter:
    """Implements `protocols.Drafter`. The reference stays the same for all requests."""

    name = "reference"

    def __init__(self, reference: Sequence[Token]) -> None:
        self._reference = tuple(reference)

    def begin(self, context: Sequence[Token]) -> None:
        self._pointer = 0

    def propose(self, context: Sequence[Token], k: int) -> Draft:
        return EMPTY_DRAFT

    def observe(self, round: Round) -> None:
        pass
