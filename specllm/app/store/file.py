"""The file of a store: documents as token ids, and their sorted suffixes, mapped into memory to draft from.

magic, version, bytes of the head, tokens, CRC-32 of what follows | head (JSON) | text | suffixes

Nothing in it is believed before its lengths and its checksum are right; what is not is built anew from the documents.
"""

from __future__ import annotations

import json
import mmap
import struct
import sys
import zlib
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from specllm.app.apply import replace_file
from specllm.drafters.store import TOKEN_BYTES, SuffixArray, join, sort_suffixes
from specllm.errors import StorageError

MAGIC = b"SPECSTOR"
VERSION = 1
FIXED = struct.Struct("<8sIIQI")


@dataclass(frozen=True, kw_only=True, slots=True)
class Document:
    """A source file as it was when it was read, or an answer (which has no path)."""

    path: str = ""
    n_bytes: int = 0
    modified_ns: int = 0
    n_tokens: int  # without the separator


@dataclass(frozen=True, kw_only=True, slots=True)
class Head:
    """What a store's file says of itself; cheap to read."""

    tokenizer: str  # `vocabulary_digest`
    model: str  # whose tokenizer was used, for people
    roots: tuple[str, ...] = ()  # what was added
    documents: tuple[Document, ...] = ()

    @property
    def n_tokens(self) -> int:
        return sum(document.n_tokens for document in self.documents)


def write_store(file: Path, head: Head, encoded: Sequence[bytes]) -> None:
    """`file` holds the documents, each `encoded` as `drafters.store.encode` does, or (on any error) what it held before."""
    text = join(encoded)
    content = json.dumps({"byteorder": sys.byteorder, **asdict(head)}).encode()
    content += b" " * (-(FIXED.size + len(content)) % TOKEN_BYTES)  # numbers are read where they are aligned
    suffixes = sort_suffixes(text)
    checksum = zlib.crc32(suffixes, zlib.crc32(text, zlib.crc32(content)))
    fixed = FIXED.pack(MAGIC, VERSION, len(content), len(text) // TOKEN_BYTES, checksum)
    replace_file(file, b"".join([fixed, content, text, suffixes]), expected=None, mode=0o600)


def read_head(file: Path) -> Head:
    """What the file says of itself, its size checked; raises StorageError."""
    return _head_of(file, _mapped(file))[0]


class StoreFile:
    """A whole and checked file of a store, mapped into memory; raises StorageError for anything else."""

    def __init__(self, file: Path) -> None:
        self._data = data = _mapped(file)
        self.head, self._start = _head_of(file, data)
        n_tokens, checksum = FIXED.unpack_from(data)[3:]
        if zlib.crc32(memoryview(data)[FIXED.size :]) != checksum:
            raise _damaged(file, "its checksum is wrong")
        if self.head.n_tokens + len(self.head.documents) + 1 != n_tokens:
            raise _damaged(file, "its lengths do not add up")
        self.array = SuffixArray(data, self._start, n_tokens)

    def encoded(self) -> list[bytes]:
        """The documents as they were given to `write_store`."""
        at, documents = self._start + TOKEN_BYTES, []
        for document in self.head.documents:
            end = at + (document.n_tokens + 1) * TOKEN_BYTES
            documents.append(self._data[at:end])
            at = end
        return documents


def _mapped(file: Path) -> mmap.mmap:
    try:
        with file.open("rb") as opened:
            return mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ)
    except ValueError:
        raise _damaged(file, "it is empty") from None
    except OSError as error:
        raise StorageError(f"cannot read {file}: {error.strerror}", "check its permissions") from error


def _head_of(file: Path, data: mmap.mmap) -> tuple[Head, int]:
    """The head and where the text begins."""
    if len(data) < FIXED.size or data[: len(MAGIC)] != MAGIC:
        raise _damaged(file, "it is no store")
    _, version, n_head, n_tokens, _ = FIXED.unpack_from(data)
    start = FIXED.size + n_head
    if version != VERSION:
        raise StorageError(f"{file} is of version {version} and this specllm reads {VERSION}", _hint(file))
    if len(data) != start + 2 * n_tokens * TOKEN_BYTES:
        raise _damaged(file, "it is cut short, or longer than it should be")
    try:
        values: dict[str, Any] = json.loads(data[FIXED.size : start])
        if values.pop("byteorder") != sys.byteorder:
            raise StorageError(f"{file} was made on another kind of machine", _hint(file))
        documents = tuple(Document(**document) for document in values.pop("documents"))
        if not all(isinstance(one.n_tokens, int) and one.n_tokens >= 0 for one in documents):
            raise ValueError("no number of tokens")
        return Head(**{**values, "roots": tuple(values["roots"]), "documents": documents}), start
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        raise _damaged(file, "its head cannot be read") from None


def _damaged(file: Path, why: str) -> StorageError:
    return StorageError(f"{file} is damaged: {why}", _hint(file))


def _hint(file: Path) -> str:
    return f"make it anew: specllm store add PATH.. --store {file.parent.name}"
