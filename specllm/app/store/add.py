"""The use case behind `specllm store add`: from folders to token ids, and from those to a store that drafts come from."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

from specllm.app.models import locate
from specllm.app.store.file import Document, Head, StoreFile, read_head, write_store
from specllm.app.store.files import files_below
from specllm.app.store.secrets import has_secret, has_secret_name
from specllm.app.store.stores import ANSWERS, INDEX, MAX_TOKENS, files_of, store_folder, unlink, writing
from specllm.app.text_file import read_text_file
from specllm.drafters.store import encode
from specllm.errors import ConfigError, StorageError
from specllm.models.progress import Progress
from specllm.runtime.interrupt import abort_on_interrupt
from specllm.runtime.llama import Weights
from specllm.runtime.vocab import Vocab
from specllm.runtime.vocab_digest import vocabulary_digest

MAX_FILE_BYTES = 1 << 20  # what is larger was not written by hand

Reason = Literal["secret", "binary", "large", "unreadable"]


@dataclass(frozen=True, kw_only=True, slots=True)
class AddedToStore:
    """What became of the files."""

    store: str
    path: str  # of the index
    model: str
    tokenizer: str
    roots: tuple[str, ...]
    n_new: int
    n_changed: int
    n_unchanged: int
    n_dropped: int  # that were in the store and are gone, or no longer belong there
    n_tokens: int
    n_bytes: int  # on the disk
    skipped: dict[Reason, list[str]]

    def as_result(self) -> dict[str, object]:
        return asdict(self)


def add_to_store(name: str, paths: Sequence[Path], model: str | None, progress: Progress) -> AddedToStore:
    """The store called `name` holds the files of `paths` and of all that was added before, as they are now.

    Without paths it is only brought up to date. Interrupted or failed, it is what it was. Raises ConfigError (nothing to
    add, or too much of it) and StorageError.
    """
    folder, located = store_folder(name), locate(model)
    given = [_root(path) for path in paths]
    with abort_on_interrupt():  # else one that llama.cpp's log hears is lost
        weights = Weights(located.path, is_vocab_only=True)
    try:
        tokenizer = vocabulary_digest(weights.vocab)
        index, answers = folder / f"{tokenizer}{INDEX}", folder / f"{tokenizer}{ANSWERS}"
        with writing(folder, lambda: progress.message(f"waiting for another command that writes to {folder}")):
            if answers.exists() and _usable(answers, progress) is None:
                unlink(answers)
            old = _usable(index, progress)
            roots = _united([*(old.head.roots if old else _roots_of(folder)), *given])
            if not roots:
                raise ConfigError(
                    f"there is nothing in the store {name!r} yet", f"specllm store add PATH.. --store {name}"
                )
            reading = _Reading(weights.vocab, old, progress)
            reading.read(roots)
            progress.message(f"sorting {reading.n_tokens:,} tokens")
            head = Head(tokenizer=tokenizer, model=located.name, roots=roots, documents=tuple(reading.documents))
            write_store(index, head, reading.encoded)
    finally:
        weights.close()
    return AddedToStore(
        store=name, path=str(index), model=located.name, tokenizer=tokenizer, roots=roots, n_new=reading.n_new,
        n_changed=reading.n_changed, n_unchanged=reading.n_unchanged, n_dropped=reading.n_dropped,
        n_tokens=reading.n_tokens, n_bytes=index.stat().st_size, skipped=dict(reading.skipped),
    )  # fmt: skip


def _root(path: Path) -> str:
    if not path.exists():
        raise ConfigError(f"there is no {path}", "check the path")
    return os.path.realpath(path)


def _united(roots: Sequence[str]) -> tuple[str, ...]:
    """Each once, without those that lie inside another."""
    return tuple(sorted(root for root in set(roots) if not any(str(p) in roots for p in Path(root).parents)))


def _usable(file: Path, progress: Progress) -> StoreFile | None:
    """None where there is none, or it is damaged: then it is made anew."""
    if not file.exists():
        return None
    try:
        return StoreFile(file)
    except StorageError as error:
        if isinstance(error.__cause__, OSError):  # it is whole for whoever may read it
            raise
        progress.message(f"{error.message}; what it held is lost")
        return None


def _roots_of(folder: Path) -> list[str]:
    """What was added for other tokenizers."""
    roots: list[str] = []
    for file in files_of(folder):
        try:
            roots += read_head(file).roots
        except StorageError:
            continue
    return roots


class _Reading:
    """Goes through files and turns those into token ids that the store does not have as they are."""

    def __init__(self, vocab: Vocab, old: StoreFile | None, progress: Progress) -> None:
        self._vocab = vocab
        self._progress = progress
        self._old = {d.path: (d, e) for d, e in zip(old.head.documents, old.encoded(), strict=True)} if old else {}
        self.documents: list[Document] = []
        self.encoded: list[bytes] = []
        self.n_tokens = self.n_new = self.n_changed = self.n_unchanged = 0
        self.skipped: dict[Reason, list[str]] = defaultdict(list)

    @property
    def n_dropped(self) -> int:
        return len(self._old.keys() - {document.path for document in self.documents})

    def read(self, roots: Sequence[str]) -> None:
        files = {}
        for root in roots:
            for path in files_below(Path(root)):
                try:
                    files[str(path)] = path.stat()
                except FileNotFoundError:  # gone by now
                    continue
                except OSError:
                    self.skipped["unreadable"].append(str(path))
        self._progress.begin("reading", sum(stat.st_size for stat in files.values()))
        for name, stat in files.items():
            self._add(Path(name), stat)
            self._progress.advance(stat.st_size)

    def _add(self, path: Path, stat: os.stat_result) -> None:
        if has_secret_name(path):
            self.skipped["secret"].append(str(path))
            return
        if stat.st_size > MAX_FILE_BYTES:
            self.skipped["large"].append(str(path))
            return
        known, encoded = self._old.get(str(path), (None, b""))
        if known and (known.n_bytes, known.modified_ns) == (stat.st_size, stat.st_mtime_ns):
            self.n_unchanged += 1
            self._keep(known, encoded)
            return
        try:
            text = read_text_file(path).text
        except ConfigError:
            if os.path.exists(path):  # else gone by now
                self.skipped["binary" if os.access(path, os.R_OK) else "unreadable"].append(str(path))
            return
        if has_secret(text):
            self.skipped["secret"].append(str(path))
            return
        tokens = self._vocab.tokenize(text, adds_special=False, parses_special=False)
        self.n_new += known is None
        self.n_changed += known is not None
        self._keep(
            Document(path=str(path), n_bytes=stat.st_size, modified_ns=stat.st_mtime_ns, n_tokens=len(tokens)),
            encode(tokens),
        )

    def _keep(self, document: Document, encoded: bytes) -> None:
        self.documents.append(document)
        self.encoded.append(encoded)
        self.n_tokens += document.n_tokens
        if self.n_tokens > MAX_TOKENS:
            raise ConfigError(
                f"more than the {MAX_TOKENS:,} tokens that a store may hold; nothing was changed",
                "add smaller folders, or keep some of them in a store of another name",
            )
