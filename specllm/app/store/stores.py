"""Stores: what the user's own files and earlier answers say, kept as token ids to draft from.

STORES_DIR/NAME/TOKENIZER.index     the files that were added, by one tokenizer (models of a family share it)
STORES_DIR/NAME/TOKENIZER.answers   the newest answers of models with that tokenizer
STORES_DIR/NAME/lock                whoever writes holds it
"""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import platformdirs

from specllm.app.store.file import Document, Head, StoreFile, read_head, write_store
from specllm.app.store.secrets import has_secret
from specllm.decoding.protocols import Token
from specllm.drafters.store import MIN_MATCH, TOKEN_BYTES, StoreDrafter, encode
from specllm.errors import ConfigError, StorageError
from specllm.models.disk import locked
from specllm.models.entries import NAME_HINT, is_safe_name
from specllm.runtime.vocab import Vocab, detokenize
from specllm.runtime.vocab_digest import vocabulary_digest

LOGGER = logging.getLogger("specllm")

# Of files: 80 MB on the disk; to sort them takes at worst 10 s and 0.8 GB of memory (2 cores, 30 November 2026).
MAX_TOKENS = 10_000_000
MAX_ANSWER_TOKENS = 200_000  # of answers; sorting them anew behind each one takes 20 ms
INDEX, ANSWERS = ".index", ".answers"


def stores_dir() -> Path:
    """SPECLLM_STORES_DIR, else a folder in the platform's place for data; may not exist yet."""
    chosen = os.environ.get("SPECLLM_STORES_DIR")
    if chosen:
        return Path(chosen).expanduser().absolute()
    return Path(platformdirs.user_data_dir("specllm", appauthor=False)) / "stores"


def store_folder(name: str) -> Path:
    """Where the store lies, or would; raises ConfigError for what is no name."""
    if not is_safe_name(name):
        raise ConfigError(f"{name!r} cannot be the name of a store", NAME_HINT)
    return stores_dir() / name


def existing_folder(name: str) -> Path:
    """Raises ConfigError where there is no such store."""
    folder = store_folder(name)
    if not files_of(folder):
        others = ", ".join(store_names())
        raise ConfigError(
            f"there is no store {name!r}" + (f"; there are {others}" if others else ""),
            f"specllm store add PATH.. --store {name}",
        )
    return folder


def store_names() -> list[str]:
    folders = sorted(stores_dir().iterdir()) if stores_dir().is_dir() else []
    return [folder.name for folder in folders if is_safe_name(folder.name) and files_of(folder)]


def files_of(folder: Path) -> list[Path]:
    """The indexes and answers in a store's folder."""
    return sorted(file for file in folder.glob("*.*") if file.suffix in (INDEX, ANSWERS))


class Store:
    """The part of a store that is of one tokenizer."""

    def __init__(self, folder: Path, vocab: Vocab, model: str) -> None:
        """Raises StorageError for a damaged file, ConfigError where nothing was added by that tokenizer."""
        self._tokenizer = tokenizer = vocabulary_digest(vocab)
        self._answers = folder / f"{tokenizer}{ANSWERS}"
        self._vocab = vocab
        self._model = model
        self._index = folder / f"{tokenizer}{INDEX}"
        if not self._index.exists():
            raise ConfigError(
                f"nothing in the store {folder.name!r} was added for the tokenizer of {model}",
                f"specllm store add --store {folder.name} -m {model}",
            )
        self._files = [StoreFile(file) for file in (self._index, self._answers) if file.exists()]

    @property
    def n_tokens(self) -> int:
        return sum(file.head.n_tokens for file in self._files)

    def drafter(self, min_match: int = MIN_MATCH) -> StoreDrafter:
        """Drafts from all of it."""
        return StoreDrafter([file.array for file in self._files], min_match)

    def remember(self, answer: Sequence[Token], *, prompt: Sequence[Token] = (), message: str = "") -> None:
        """The answer is in the store for the next run; the oldest ones give way. Raises StorageError.

        `message` is the last text of the prompt as the user gave it, without the template between it and the answer. Nothing
        but a warning where something looks like a secret: in the answer, in its prompt, or in both of them together. Nothing
        at all where somebody removed the store.
        """
        if not answer or not self._index.exists():
            return
        text = detokenize(self._vocab, answer)
        if has_secret(text):
            LOGGER.warning("the answer is not in the store: something in it looks like a secret")
            return
        before = detokenize(self._vocab, prompt)
        if any(map(has_secret, (before, before + text, message.rstrip() + text.lstrip()))):
            LOGGER.warning("the answer is not in the store: something in its prompt looks like a secret")
            return
        new = encode(answer)
        with locked(self._answers.with_name("lock")):
            known = StoreFile(self._answers).encoded() if self._answers.exists() else []
            kept = _newest([*(old for old in known if old != new), new])
            documents = tuple(Document(n_tokens=len(one) // TOKEN_BYTES - 1) for one in kept)
            write_store(self._answers, Head(tokenizer=self._tokenizer, model=self._model, documents=documents), kept)


def _newest(encoded: Sequence[bytes]) -> list[bytes]:
    kept: list[bytes] = []
    n_bytes = 0
    for one in reversed(encoded):
        n_bytes += len(one)
        if n_bytes > MAX_ANSWER_TOKENS * TOKEN_BYTES:
            break
        kept.insert(0, one)
    return kept


def open_store(name: str, vocab: Vocab, model: str) -> Store:
    """The store called `name` for a model with that vocabulary; `model` is its name for people.

    Raises ConfigError (no such store, or none of that tokenizer) and StorageError (damaged), each with the command that
    mends it.
    """
    return Store(existing_folder(name), vocab, model)


@dataclass(frozen=True, kw_only=True, slots=True)
class Part:
    """One file of a store, as `list` and `stats` show it."""

    kind: str  # files | answers
    tokenizer: str
    model: str
    n_documents: int
    n_tokens: int
    n_bytes: int  # on the disk
    roots: tuple[str, ...]
    problem: str | None = None  # why it cannot be used


@dataclass(frozen=True, kw_only=True, slots=True)
class StoreStats:
    name: str
    path: str
    parts: tuple[Part, ...]


def stats(name: str) -> StoreStats:
    """What a store holds; nothing is tokenized or sorted for it."""
    folder = existing_folder(name)
    return StoreStats(name=name, path=str(folder), parts=tuple(_part(file) for file in files_of(folder)))


def list_stores() -> list[StoreStats]:
    return [stats(name) for name in store_names()]


def _part(file: Path) -> Part:
    head, problem = Head(tokenizer=file.stem, model=""), None
    try:
        head = read_head(file)
    except StorageError as error:
        problem = error.message
    return Part(
        kind="files" if file.suffix == INDEX else "answers", tokenizer=head.tokenizer, model=head.model,
        n_documents=len(head.documents), n_tokens=head.n_tokens, n_bytes=file.stat().st_size, roots=head.roots,
        problem=problem,
    )  # fmt: skip


def remove(name: str) -> Path:
    """Nothing of the store is left; returns where it was. What others put into its folder stays."""
    folder = existing_folder(name)
    with locked(folder / "lock"):
        for file in files_of(folder):
            unlink(file)
    with contextlib.suppress(OSError):
        (folder / "lock").unlink()
        folder.rmdir()
    return folder


def unlink(file: Path) -> None:
    """Raises StorageError where it cannot be removed."""
    try:
        file.unlink(missing_ok=True)
    except OSError as error:
        raise StorageError(f"cannot remove {file}: {error.strerror}", "check its permissions") from error


@contextlib.contextmanager
def writing(folder: Path, on_wait: Callable[[], None]) -> Iterator[None]:
    """The folder is there, for this user's eyes only, and nobody else writes into it; `on_wait` is called where somebody does."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        folder.chmod(0o700)
    except OSError as error:
        hint = "set SPECLLM_STORES_DIR to a folder that you can write"
        raise StorageError(f"cannot write {folder}: {error.strerror}", hint) from error
    with locked(folder / "lock", on_wait):
        yield
