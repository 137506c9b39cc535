"""From committed tokens to text that may be shown: whole characters, no part of a stop string, each with its source."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from specllm.decoding.protocols import Round, Token
from specllm.runtime.vocab import Detokenizer, Vocab

TARGET = "target"  # the source of corrected and bonus tokens; accepted ones carry their drafter's name


@dataclass(frozen=True, slots=True)
class Chunk:
    text: str
    source: str


class TextStream:
    """Told every committed token as it is committed, and every round once it is done."""

    def __init__(self, vocab: Vocab, stops: Sequence[str] = ()) -> None:
        self._detokenizer = Detokenizer(vocab)
        self._stops = stops
        self._held = ""  # text not released yet
        self._new: list[str] = []  # of it, the pieces of the round in progress, one per token
        self._settled: deque[Chunk] = deque()  # the rest of it, with sources
        self._stopped_at: int | None = None  # where in the held text the earliest stop string begins

    def push(self, token: Token) -> bool:
        """Adds a token; True once the text contains a stop string."""
        piece = self._detokenizer.push(token)
        self._new.append(piece)
        self._held += piece
        found = [at for stop in self._stops if (at := self._held.find(stop)) >= 0]
        if found:
            self._stopped_at = min(found)
        return bool(found)

    def settle(self, sources: Iterable[str]) -> list[Chunk]:
        """Ends a round whose tokens came from `sources`; returns what may be shown now."""
        for piece, source in zip(self._new, sources, strict=False):
            if piece:
                self._settled.append(Chunk(piece, source))
        self._new.clear()
        return self._release(len(self._held) - self._n_held_back() if self._stopped_at is None else self._stopped_at)

    def finish(self) -> list[Chunk]:
        """What was held back in case a stop string followed; bytes of an incomplete last character are dropped."""
        self._settled.extend(Chunk(piece, TARGET) for piece in self._new if piece)
        self._new.clear()
        return self._release(len(self._held) if self._stopped_at is None else self._stopped_at)

    def _n_held_back(self) -> int:
        """Characters at the end that could be the beginning of a stop string."""
        longest = max(map(len, self._stops), default=0)
        for n in range(min(longest - 1, len(self._held)), 0, -1):
            if any(stop.startswith(self._held[-n:]) for stop in self._stops):
                return n
        return 0

    def _release(self, n: int) -> list[Chunk]:
        self._held = self._held[n:]
        if self._stopped_at is not None:
            self._stopped_at -= n
        released = []
        while n > 0 and self._settled:
            chunk = self._settled.popleft()
            if len(chunk.text) > n:
                self._settled.appendleft(Chunk(chunk.text[n:], chunk.source))
                chunk = Chunk(chunk.text[:n], chunk.source)
            n -= len(chunk.text)
            released.append(chunk)
        return released


def sources(round: Round) -> list[str]:
    """Where each committed token of a round came from."""
    return [*round.draft.sources[: round.n_accepted], TARGET]
