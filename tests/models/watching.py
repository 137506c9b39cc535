"""A Progress that remembers, and can stop a pull in the middle as Ctrl-C does."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass
class Watching:
    works: list[tuple[str, int | None, int]] = field(default_factory=list)  # label, total, done before
    advanced: dict[str, int] = field(default_factory=dict)
    messages: list[str] = field(default_factory=list)
    interrupt_at: str = ""  # the label of the work that Ctrl-C comes into

    def begin(self, label: str, total_bytes: int | None, done_bytes: int = 0) -> None:
        self.works.append((label, total_bytes, done_bytes))
        if label == self.interrupt_at:
            raise KeyboardInterrupt

    def advance(self, n_bytes: int) -> None:
        label = self.works[-1][0] if self.works else ""
        self.advanced[label] = self.advanced.get(label, 0) + n_bytes

    def message(self, text: str) -> None:
        self.messages.append(text)
