"""What the tests of stores share: a text, and how a store is opened and asked."""

from __future__ import annotations

from collections.abc import Callable

from specllm.app.store.add import AddedToStore
from specllm.app.store.stores import Store, open_store
from specllm.models.progress import NoProgress
from specllm.runtime.vocab import Vocab

TEXT = "def first(one):\n    return one + 1\n\n\ndef second(two):\n    return two * 2\n"


class Told(NoProgress):
    def __init__(self) -> None:
        self.messages: list[str] = []

    def message(self, text: str) -> None:
        self.messages.append(text)


Add = Callable[..., AddedToStore]


def tokens_of(vocab: Vocab, text: str) -> list[int]:
    return vocab.tokenize(text, adds_special=False, parses_special=False)


def continued(store: Store, vocab: Vocab, text: str, k: int = 200) -> str:
    """What the store drafts behind `text`."""
    draft = store.drafter().propose(tokens_of(vocab, text), k)
    return b"".join(map(vocab.piece, draft.tokens)).decode()


def opened(vocab: Vocab) -> Store:
    return open_store("mine", vocab, "tiny")
