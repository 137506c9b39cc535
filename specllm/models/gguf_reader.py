"""One GGUF file's bytes as keys, values and tensor descriptions, each length checked before it is believed.

Layout: `ggml/include/gguf.h` of llama.cpp. The limits below bound memory and time, whatever the file claims.
"""

from __future__ import annotations

import stat
import struct
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import BinaryIO

from specllm.errors import BadModelFile, ModelNotFound
from specllm.models.gguf_types import ARRAY, SCALARS, STRING, TENSOR_TYPES, UINT32

Scalar = str | int | float | bool

MAX_HEADER_BYTES = 256 << 20  # the largest seen is 20 MB, for a vocabulary of 262,144 tokens
MAX_STRING_BYTES = 16 << 20
MAX_KEYS = MAX_TENSORS = 1 << 16
MAX_STRINGS = 1 << 24  # in one array
MAX_TENSOR_NAME_BYTES = 63  # GGML_MAX_NAME with its NUL
MAX_DIMS = 4  # GGML_MAX_DIMS
MAX_KEPT_NUMBERS = 1024  # per-layer arrays are shorter and kept, vocabularies longer and only described
MAX_KEPT_STRINGS = 64
CHUNK_BYTES = 1 << 20

PULL_AGAIN = "the download is incomplete or damaged: pull it again with specllm models pull NAME"
NOT_GGUF = "give a .gguf file, or a name from specllm models list"

TOKENS = "tokenizer.ggml.tokens"  # the vocabulary's texts, by id


@dataclass(frozen=True, slots=True)
class ArrayInfo:
    """An array too long to keep: its gguf_type and how many elements it has."""

    element_type: int
    length: int

    def __len__(self) -> int:
        return self.length


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """Where a tensor lies: `offset` counts from the start of its file, `dims` begin with the fastest."""

    name: str
    dims: tuple[int, ...]
    type: str
    n_bytes: int
    offset: int


@dataclass(frozen=True, slots=True)
class Part:
    """What one file holds."""

    version: int
    metadata: dict[str, Scalar | tuple[Scalar, ...] | ArrayInfo]
    tensors: tuple[TensorInfo, ...]
    file_bytes: int


def read_part(path: Path) -> Part:
    """The header of the one file at `path`, and the certainty that its tensors lie inside it.

    Raises ModelNotFound where nothing is there, BadModelFile otherwise.
    """
    try:
        status = path.stat()
        if stat.S_ISDIR(status.st_mode):
            raise BadModelFile(f"{path} is a folder, not a model file", NOT_GGUF)
        if not stat.S_ISREG(status.st_mode):
            raise BadModelFile(f"{path} is not a regular file", NOT_GGUF)
        with path.open("rb") as file:
            return _PartReader(path, file, status.st_size).read()
    except (FileNotFoundError, NotADirectoryError) as error:
        raise ModelNotFound(f"no file {path}", "see the models there are with specllm models list") from error
    except (OSError, ValueError) as error:  # ValueError: a NUL in the path
        reason = getattr(error, "strerror", None) or error
        hint = "check its permissions and the disk"
        raise BadModelFile(f"{path} cannot be read: {reason}", hint) from error


class _PartReader:
    """A cursor over the file's header; its buffer grows as far as the header goes, never past the file."""

    def __init__(self, path: Path, file: BinaryIO, file_bytes: int) -> None:
        self.path, self.file, self.file_bytes = path, file, file_bytes
        self.buffer = bytearray()
        self.at = 0

    def read(self) -> Part:
        version, n_tensors, n_keys = self._counts()
        metadata: dict[str, Scalar | tuple[Scalar, ...] | ArrayInfo] = {}
        alignment = 32  # GGUF_DEFAULT_ALIGNMENT
        for _ in range(n_keys):
            key = self._name("key")
            if key in metadata:
                raise self._defect(f"has the key {key} twice")
            kind = self._number(UINT32)
            metadata[key] = self._array(key) if kind == ARRAY else self._scalar(kind, key)
            if key == "general.alignment":
                alignment = self._alignment(kind, metadata[key])
        tensors = self._tensors(n_tensors, alignment)
        return Part(version, metadata, tensors, self.file_bytes)

    def _counts(self) -> tuple[int, int, int]:
        """Version, number of tensors, number of keys, from the fixed start of the file."""
        start = bytes(self.file.read(512))
        if not start:
            raise BadModelFile(f"{self.path} is empty", PULL_AGAIN)
        if not start.startswith(b"GGUF"):
            raise BadModelFile(f"{self.path} is not a GGUF model: {_kind_of(start)}", _hint_for(start))
        self.buffer += start
        self.at = 4
        version = self._number(UINT32)
        if version and not version & 0xFFFF:
            raise BadModelFile(
                f"{self.path} is a big-endian GGUF",
                "get the little-endian file, or convert it: gguf-convert-endian FILE little",
            )
        if version not in (2, 3):
            raise BadModelFile(
                f"{self.path} is GGUF version {version}; versions 2 and 3 can be read",
                "get a file made by a llama.cpp of September 2023 or later"
                if version < 2
                else "update specllm, or pull the file again with specllm models pull NAME",
            )
        n_tensors, n_keys = self._number(10), self._number(10)
        for count, most, what in ((n_tensors, MAX_TENSORS, "tensors"), (n_keys, MAX_KEYS, "keys")):
            if count > most:
                raise self._defect(f"claims to have {count} {what}")
        return version, n_tensors, n_keys

    def _need(self, n_bytes: int) -> int:
        """Makes `n_bytes` from the cursor on readable, moves past them and returns where they start."""
        start, end = self.at, self.at + n_bytes
        if end > self.file_bytes:
            raise self._defect(f"is truncated in its header: {self.file_bytes} of at least {end} bytes")
        if end > MAX_HEADER_BYTES:
            raise self._defect(f"claims a header of more than {MAX_HEADER_BYTES >> 20} MiB")
        while len(self.buffer) < end:
            more = self.file.read(max(CHUNK_BYTES, end - len(self.buffer)))
            if not more:
                raise self._defect("became shorter while it was read")
            self.buffer += more
        self.at = end
        return start

    def _number(self, kind: int) -> int:
        layout = SCALARS[kind]
        return int(layout.unpack_from(self.buffer, self._need(layout.size))[0])

    def _bytes(self, most: int, what: str) -> bytes:
        length = self._number(10)
        if length > most:
            raise self._defect(f"claims {what} of {length} bytes")
        start = self._need(length)
        return bytes(self.buffer[start : self.at])

    def _name(self, what: str) -> str:
        raw = self._bytes(MAX_STRING_BYTES if what == "key" else MAX_TENSOR_NAME_BYTES, f"a {what}")
        try:
            name = raw.decode()
        except UnicodeDecodeError as error:
            raise self._defect(f"has a {what} that is not UTF-8") from error
        if not name or "\0" in name:
            raise self._defect(f"has a {what} that is {'empty' if not name else 'cut by a NUL'}")
        return name

    def _scalar(self, kind: int, key: str) -> Scalar:
        if kind == STRING:
            return self._bytes(MAX_STRING_BYTES, f"a text at {key[:80]}").decode(errors="replace")
        if kind not in SCALARS:
            raise self._defect(f"has a value of unknown type {kind} at {key[:80]}")
        layout = SCALARS[kind]
        value: Scalar = layout.unpack_from(self.buffer, self._need(layout.size))[0]
        return value

    def _array(self, key: str) -> tuple[Scalar, ...] | ArrayInfo:
        kind, length = self._number(UINT32), self._number(10)
        if kind == STRING:
            start = self.at
            if length <= MAX_KEPT_STRINGS:
                texts: tuple[Scalar, ...] | ArrayInfo = tuple(self._scalar(STRING, key) for _ in range(length))
            else:
                texts = self._skip_strings(length, key)
            if key == TOKENS:
                self._check_tokens(start, length)
            return texts
        if kind not in SCALARS:
            raise self._defect(f"has an array of type {kind} at {key[:80]}")
        layout = SCALARS[kind]
        start = self._need(length * layout.size)
        if length > MAX_KEPT_NUMBERS:
            return ArrayInfo(kind, length)
        return struct.unpack_from(f"<{length}{layout.format[-1]}", self.buffer, start)

    def _skip_strings(self, length: int, key: str) -> ArrayInfo:
        """Steps over a vocabulary; the loop is inlined because it runs 150,000 times and more."""
        if length > MAX_STRINGS or length * 8 > self.file_bytes - self.at:
            raise self._defect(f"claims {length} texts at {key[:80]}")
        unpack, buffer, at = SCALARS[10].unpack_from, self.buffer, self.at
        for _ in range(length):
            if at + 8 > len(buffer):
                self.at = at
                self._need(8)
            at += 8 + unpack(buffer, at)[0]
        self.at = at
        self._need(0)
        return ArrayInfo(STRING, length)

    def _check_tokens(self, start: int, length: int) -> None:
        """Raises BadModelFile where two tokens have the same text: llama.cpp aborts the whole process there.

        Empty texts may come again: llama.cpp gives each of them one of its own.
        """
        unpack, buffer, at, raw = SCALARS[10].unpack_from, bytes(self.buffer[start : self.at]), 0, []
        for _ in range(length):
            text_at = at + 8
            at = text_at + unpack(buffer, at)[0]
            raw.append(buffer[text_at:at])
        if len(set(raw)) == length:
            return
        ids: dict[bytes, int] = {}
        for token, text in enumerate(raw):
            if text and (other := ids.setdefault(text, token)) != token:
                shown = text[:80].decode(errors="replace")
                raise BadModelFile(
                    f"{self.path} has two tokens with the text {shown!r}: {other} and {token}",
                    "its tokenizer was converted wrongly and llama.cpp cannot load it: get the model from another source",
                )

    def _alignment(self, kind: int, value: object) -> int:
        if kind != UINT32 or not isinstance(value, int) or value < 1 or value & (value - 1):
            raise self._defect("has an alignment that is no power of two")
        return value

    def _tensors(self, n_tensors: int, alignment: int) -> tuple[TensorInfo, ...]:
        """Every tensor, with offsets from the start of the file, all of them inside it."""
        found: dict[str, tuple[tuple[int, ...], str, int]] = {}
        expected = 0
        for _ in range(n_tensors):
            name = self._name("tensor name")
            if name in found:
                raise self._defect(f"has the tensor {name} twice")
            dims, kind, n_bytes = self._shape(name)
            if self._number(10) != expected:
                raise self._defect(f"has the tensor {name} at the wrong place")
            found[name] = (dims, kind, n_bytes)
            expected += _aligned(n_bytes, alignment)
        place = _aligned(self.at, alignment)
        tensors, end = [], place if n_tensors else self.at
        for name, (dims, kind, n_bytes) in found.items():
            tensors.append(TensorInfo(name, dims, kind, n_bytes, place))
            end = place + n_bytes
            place += _aligned(n_bytes, alignment)
        if end > self.file_bytes:
            raise BadModelFile(f"{self.path} is truncated: {self.file_bytes} of {end} bytes", PULL_AGAIN)
        return tuple(tensors)

    def _shape(self, name: str) -> tuple[tuple[int, ...], str, int]:
        n_dims = self._number(UINT32)
        if n_dims > MAX_DIMS:
            raise self._defect(f"has the tensor {name} with {n_dims} dimensions")
        dims = tuple(self._number(10) for _ in range(n_dims))
        number = self._number(UINT32)
        if number not in TENSOR_TYPES:
            raise BadModelFile(
                f"{self.path} has the tensor {name} of the unknown type {number}",
                "get the model in another quantization, for example Q4_K_M, or update specllm",
            )
        kind, block, block_bytes = TENSOR_TYPES[number]
        if prod(dims) >= 2**63 or (dims[0] if dims else 1) % block:
            raise self._defect(f"has the tensor {name} of the impossible shape {dims} for type {kind}")
        return dims, kind, prod(dims) // block * block_bytes

    def _defect(self, what: str) -> BadModelFile:
        return BadModelFile(f"{self.path} {what}", PULL_AGAIN)


def _aligned(n_bytes: int, alignment: int) -> int:
    return -(-n_bytes // alignment) * alignment


def _kind_of(start: bytes) -> str:
    """What a file that is no GGUF seems to be, from its first bytes."""
    text = start.lstrip(b"\xef\xbb\xbf \t\r\n").lower()
    if start.startswith(b"version https://git-lfs"):
        return "it is a git-lfs pointer, the model itself was never fetched"
    if text.startswith((b"<!doctype html", b"<html", b"<?xml", b"<head")):
        return "it is a web page, saved in place of the model"
    if start.startswith((b"lmgg", b"fmgg", b"tjgg", b"algg")):
        return "it is a ggml file of before August 2023"
    if start.startswith(b"PK\x03\x04"):
        return "it is a zip archive or a PyTorch file"
    if start[8:10] == b'{"':
        return "it is a safetensors file"
    if not start.strip(b"\0"):
        return "it starts with zeros only, as a file does whose download never wrote them"
    if all(byte >= 32 or byte in b"\t\r\n\f" for byte in start):
        return "it is a text file"
    return f"it starts with {start[:4]!r}, not with b'GGUF'"


def _hint_for(start: bytes) -> str:
    if start.startswith(b"version https://git-lfs"):
        return "fetch it with git lfs pull, or pull the model with specllm models pull NAME"
    if b"html" in start.lower() or not start.strip(b"\0"):
        return PULL_AGAIN
    return NOT_GGUF
