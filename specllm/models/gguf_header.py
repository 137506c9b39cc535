"""What a GGUF file says about itself, read without llama.cpp and without trusting it.

Every count, length and offset is compared with the real file size before it is used, so a damaged,
truncated or hostile file costs no more memory or time than its header is worth and always ends in
BadModelFile. The rules are those of llama.cpp's own reader (`gguf.cpp`): what passes here is not refused
there for its layout. Token lists are looked through for duplicates and not kept.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from specllm.errors import BadModelFile
from specllm.models.gguf_reader import ArrayInfo, Part, Scalar, TensorInfo, read_part

__all__ = ["ArrayInfo", "GgufHeader", "Scalar", "TensorInfo", "read_header"]

MAX_LAYERS = 1024  # llama.cpp's LLAMA_MAX_LAYERS is 512
SPLIT_NAME = re.compile(r"(?P<stem>.+)-(?P<number>\d{5})-of-(?P<count>\d{5})\.gguf")  # llama_split_path


@dataclass(frozen=True, kw_only=True, slots=True)
class GgufHeader:
    """One model, of one file or of several parts. Counts are 0 where the file does not say."""

    path: Path  # the first part
    paths: tuple[Path, ...]  # all parts, in order
    version: int
    metadata: Mapping[str, Scalar | tuple[Scalar, ...] | ArrayInfo]
    tensors: tuple[TensorInfo, ...]  # of all parts
    file_bytes: int  # of all parts
    weight_bytes: int  # sum of the tensors
    architecture: str
    name: str
    n_ctx_train: int  # tokens
    n_layer: int
    n_embd: int
    n_ff: int
    n_head: int  # most of any layer; 0 where nothing attends
    n_head_kv: tuple[int, ...]  # one per layer; 0 in a layer without attention
    key_length: int  # numbers per head and token
    value_length: int
    n_vocab: int
    sliding_window: int  # tokens; 0 is none
    has_chat_template: bool

    @property
    def n_parts(self) -> int:
        return len(self.paths)

    def number(self, key: str, default: int = 0) -> int:
        """The number at `ARCHITECTURE.key`, or `default` where the file has none; raises BadModelFile."""
        return _Reader(self.path, self.metadata, self.architecture).number(key, default)


def read_header(path: Path) -> GgufHeader:
    """The header of the model at `path`, checked against the file's size; of a split model, all its parts.

    Raises ModelNotFound where nothing is there, BadModelFile for all that cannot be a whole language model.
    """
    try:
        status = path.stat()
    except (OSError, ValueError):
        return _read(path)  # which says what is wrong
    if SPLIT_NAME.fullmatch(path.name):  # the other parts may have changed
        return _read(path)
    return _read_once(path, status.st_size, status.st_mtime_ns)


@functools.lru_cache(maxsize=8)
def _read_once(path: Path, n_bytes: int, modified_ns: int) -> GgufHeader:
    """A run asks several times for the header of a file, and one with 151,936 tokens takes 50 ms (29 November 2026)."""
    return _read(path)


def _read(path: Path) -> GgufHeader:
    first = read_part(path)
    parts = [(path, first), *_other_parts(path, first)]
    architecture = first.metadata.get("general.architecture")
    if not isinstance(architecture, str) or not architecture:
        raise BadModelFile(
            f"{path} does not name its architecture (general.architecture)",
            "it is no language model; give the model's own .gguf file",
        )
    reader = _Reader(path, first.metadata, architecture)
    tensors = tuple(tensor for _, part in parts for tensor in part.tensors)
    n_layer = reader.number("block_count", least=1, most=MAX_LAYERS)
    n_embd = reader.number("embedding_length", least=1)
    n_heads = reader.per_layer("attention.head_count", n_layer, (0,) * n_layer)
    n_head = max(n_heads)
    return GgufHeader(
        path=path,
        paths=tuple(place for place, _ in parts),
        version=first.version,
        metadata=MappingProxyType(first.metadata),
        tensors=tensors,
        file_bytes=sum(part.file_bytes for _, part in parts),
        weight_bytes=sum(tensor.n_bytes for tensor in tensors),
        architecture=architecture,
        name=reader.text("general.name"),
        n_ctx_train=reader.number("context_length", 0),
        n_layer=n_layer,
        n_embd=n_embd,
        n_ff=max(reader.per_layer("feed_forward_length", n_layer, (0,) * n_layer)),
        n_head=n_head,
        n_head_kv=reader.per_layer("attention.head_count_kv", n_layer, n_heads),
        key_length=reader.number("attention.key_length", n_embd // n_head if n_head else 0),
        value_length=reader.number("attention.value_length", n_embd // n_head if n_head else 0),
        n_vocab=reader.n_vocab(tensors),
        sliding_window=reader.number("attention.sliding_window", 0),
        has_chat_template=bool(reader.text("tokenizer.chat_template")),
    )


def _other_parts(path: Path, first: Part) -> list[tuple[Path, Part]]:
    """The parts after the first of a split model, none of a model in one file."""
    count, number = first.metadata.get("split.count", 0), first.metadata.get("split.no", 0)
    if not isinstance(count, int) or not isinstance(number, int):
        raise BadModelFile(
            f"{path} numbers its parts with something else than numbers",
            "the file is damaged: pull it again with specllm models pull NAME",
        )
    if count <= 1:
        return []
    name = SPLIT_NAME.fullmatch(path.name)
    if not name or int(name["count"]) != count:
        ending = f"-{number + 1:05}-of-{count:05}.gguf"
        raise BadModelFile(
            f"{path} is part {number + 1} of {count}, but its name does not end in {ending}",
            "give the file its own name back: llama.cpp finds the other parts by name",
        )
    stem = name["stem"]
    siblings = [path.with_name(f"{stem}-{place:05}-of-{count:05}.gguf") for place in range(1, count + 1)]
    if number != 0:
        raise BadModelFile(
            f"{path} is part {number + 1} of {count}, not the first", f"give the first part: {siblings[0]}"
        )
    parts = []
    for sibling in siblings[1:]:
        if not sibling.exists():
            raise BadModelFile(
                f"{path} is the first of {count} parts, and {sibling.name} is missing",
                "pull the model again with specllm models pull NAME",
            )
        parts.append((sibling, read_part(sibling)))
    return parts


class _Reader:
    """Typed values out of one file's metadata."""

    def __init__(
        self, path: Path, metadata: Mapping[str, Scalar | tuple[Scalar, ...] | ArrayInfo], architecture: str
    ) -> None:
        self.path, self.metadata, self.architecture = path, metadata, architecture

    def number(self, key: str, default: int | None = None, *, least: int = 0, most: int = 2**40) -> int:
        """The number at `ARCHITECTURE.key`; of an array its largest."""
        value = self.metadata.get(f"{self.architecture}.{key}", default)
        if isinstance(value, tuple) and value and all(isinstance(item, int) for item in value):
            value = max(item for item in value if isinstance(item, int))
        if value is None:
            raise self._defect(f"does not say its {self.architecture}.{key}")
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
            shown = str(value) if isinstance(value, int | float) else f"a {type(value).__name__}"
            raise self._defect(f"says its {self.architecture}.{key} is {shown}, which cannot be")
        return value

    def per_layer(self, key: str, n_layer: int, default: tuple[int, ...]) -> tuple[int, ...]:
        """The number at `ARCHITECTURE.key` for every layer; one number counts for all of them."""
        value = self.metadata.get(f"{self.architecture}.{key}")
        if value is None:
            return default
        if isinstance(value, tuple) and len(value) >= n_layer:
            numbers = tuple(item for item in value[:n_layer] if isinstance(item, int) and 0 <= item <= 2**40)
            if len(numbers) == n_layer:
                return numbers
        return (self.number(key),) * n_layer

    def text(self, key: str) -> str:
        value = self.metadata.get(key, "")
        return value if isinstance(value, str) else ""

    def n_vocab(self, tensors: tuple[TensorInfo, ...]) -> int:
        """Rows of logits: the length of the token list as in llama.cpp, else what the embedding has."""
        tokens = self.metadata.get("tokenizer.ggml.tokens")
        if isinstance(tokens, ArrayInfo | tuple):
            return len(tokens)
        for tensor in tensors:
            if tensor.name == "token_embd.weight" and len(tensor.dims) == 2:
                return tensor.dims[1]
        return self.number("vocab_size", 0)

    def _defect(self, what: str) -> BadModelFile:
        return BadModelFile(
            f"{self.path} {what}",
            "it is damaged or no language model; pull it again with specllm models pull NAME",
        )
