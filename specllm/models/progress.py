"""What a pull tells whoever watches it: a label, bytes, and now and then a sentence."""

from __future__ import annotations

from typing import Protocol


class Progress(Protocol):
    def begin(self, label: str, total_bytes: int | None, done_bytes: int = 0) -> None:
        """New work starts, of which `done_bytes` were there before (they do not count as speed)."""

    def advance(self, n_bytes: int) -> None:
        """`n_bytes` more are done."""

    def message(self, text: str) -> None:
        """Something worth a line: a source that failed, another process to wait for."""


class NoProgress:
    """Nobody watches."""

    def begin(self, label: str, total_bytes: int | None, done_bytes: int = 0) -> None:
        pass

    def advance(self, n_bytes: int) -> None:
        pass

    def message(self, text: str) -> None:
        pass
