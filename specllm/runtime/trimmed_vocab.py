"""A draft model whose output layer knows only the tokens that are said often (FR-Spec, arXiv:2502.14856).

The output layer is a third of a small draft model's time. Of it and of the embedding only the rows of the kept tokens are
left, so the file is a GGUF of a smaller vocabulary that llama.cpp loads as any other. Its inputs are fed as embeddings from
the whole table, and its logits are put back to where the whole vocabulary has them: to its users it is a model of that
vocabulary which never says the other tokens.

The whole table and the kept ids stand behind the GGUF's tensors, where llama.cpp does not look:

    GGUF | kept ids, int32 (n_kept,) | table, (n_vocab, row_bytes) | footer
"""

from __future__ import annotations

import os
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Literal

import numpy as np
import numpy.typing as npt

from specllm.config import ContextConfig
from specllm.decoding.protocols import Logits, Token
from specllm.errors import BadModelFile
from specllm.runtime.llama import LlamaModel, Weights

MAGIC = b"trimmed vocab 1\0"
FOOTER = struct.Struct("<QIIII16s")  # where the ids begin, n_kept, n_vocab, row_bytes, ggml_type, magic
MAKE_AGAIN = "make it again with specllm models make-draft"
# Where llama.cpp multiplies what it looks up in the table by the root of its length, and leaves alone what is fed instead.
_SCALED = ("gemma3",)


@dataclass(frozen=True, slots=True)
class TrimmedVocab:
    """What of the whole vocabulary a trimmed model can say, and the table of what it can be fed."""

    kept: npt.NDArray[np.int32]  # (n_kept,), ascending: row i of the output layer is this token
    table: npt.NDArray[np.uint8]  # (n_vocab, row_bytes), mapped from the file
    type: int  # ggml_type of its rows

    @property
    def n_vocab(self) -> int:
        return len(self.table)

    def embeddings(self, tokens: Sequence[Token]) -> npt.NDArray[np.float32]:
        """(n, n_embd), one row per token. Raises ValueError or NotImplementedError where the rows cannot be of that type."""
        from gguf import GGMLQuantizationType, dequantize

        rows = dequantize(self.table[list(tokens)], GGMLQuantizationType(self.type))
        return np.asarray(rows, dtype=np.float32)


def read_trimmed(path: Path) -> TrimmedVocab | None:
    """What stands behind the tensors of the file at `path`; None where it is an ordinary model. Raises BadModelFile."""
    n_bytes = os.path.getsize(path)
    with open(path, "rb") as file:
        file.seek(max(0, n_bytes - FOOTER.size))
        footer = file.read()
    if len(footer) != FOOTER.size or not footer.endswith(MAGIC):
        return None
    start, n_kept, n_vocab, row_bytes, kind, _ = FOOTER.unpack(footer)
    if start + 4 * n_kept + n_vocab * row_bytes + FOOTER.size != n_bytes or not 0 < n_kept <= n_vocab:
        raise BadModelFile(f"{path} is damaged behind its tensors", MAKE_AGAIN)
    kept = np.fromfile(path, dtype="<i4", count=n_kept, offset=start)
    if (np.diff(kept) <= 0).any() or kept[0] < 0 or kept[-1] >= n_vocab:
        raise BadModelFile(f"{path} keeps tokens that cannot be", MAKE_AGAIN)
    table = np.memmap(path, dtype=np.uint8, mode="r", offset=start + 4 * n_kept, shape=(n_vocab, row_bytes))
    return TrimmedVocab(kept, table, kind)


class TrimmedModel(LlamaModel):
    """Implements `protocols.LanguageModel` in the whole vocabulary: tokens that are not kept have logit -inf."""

    def __init__(self, weights: Weights, config: ContextConfig, trimmed: TrimmedVocab) -> None:
        """Raises BadModelFile where table and model do not belong together."""
        if len(trimmed.kept) != weights.vocab.n_tokens or _width(trimmed) != weights.n_embd:
            raise BadModelFile(f"{weights.path} is damaged behind its tensors", MAKE_AGAIN)
        self._trimmed = trimmed
        self._kept = trimmed.kept.astype(np.intp)  # what numpy indexes with
        self._whole = np.full((1, trimmed.n_vocab), -np.inf, dtype=np.float32)
        self._scale = np.float32(weights.n_embd**0.5 if weights.architecture in _SCALED else 1.0)
        self._embedding = lru_cache(1024)(lambda token: trimmed.embeddings([token]) * self._scale)
        super().__init__(weights, config)  # which tries out how to take tokens back, with forwards
        self.n_vocab = trimmed.n_vocab

    def forward(self, tokens: Sequence[Token], *, logits: Literal["all", "last", "none"] = "all") -> Logits:
        rows = super().forward(tokens, logits=logits)
        if len(rows) > len(self._whole):
            self._whole = np.full((len(rows), self._trimmed.n_vocab), -np.inf, dtype=np.float32)
        whole = self._whole[: len(rows)]
        whole[:, self._kept] = rows
        return whole

    def _write_inputs(self, tokens: Sequence[Token]) -> None:
        if len(tokens) == 1:  # a draft's next one: to dequantize a row takes 0.15 ms, and text repeats itself
            self._embeddings[:1] = self._embedding(tokens[0])
        else:
            self._embeddings[: len(tokens)] = self._trimmed.embeddings(tokens) * self._scale

    @property
    def _n_embd(self) -> int:
        return self.weights.n_embd


def _width(trimmed: TrimmedVocab) -> int:
    """Numbers in a row of the table; 0 where its type does not fit."""
    try:
        return int(trimmed.embeddings([0]).shape[1])
    except (ValueError, NotImplementedError):
        return 0


def open_context(weights: Weights, config: ContextConfig) -> LlamaModel:
    """The model in a context of its own, trimmed or not: in its users' eyes both have the whole vocabulary."""
    trimmed = read_trimmed(weights.path)
    return TrimmedModel(weights, config, trimmed) if trimmed else LlamaModel(weights, config)
