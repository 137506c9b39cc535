"""Makes a draft model's file with a trimmed vocabulary (see `trimmed_vocab`)."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from gguf import GGUFReader, GGUFValueType, GGUFWriter

from specllm.decoding.protocols import LanguageModel, Token
from specllm.decoding.rollback_trial import LARGEST_DEVIATION
from specllm.errors import BadModelFile
from specllm.runtime.trimmed_vocab import FOOTER, MAGIC

_N_COMPARED = 64  # tokens of the text after which two models are compared
_PER_TOKEN = ("tokenizer.ggml.tokens", "tokenizer.ggml.token_type", "tokenizer.ggml.scores")
_MERGES = "tokenizer.ggml.merges"
_ROWS = ("token_embd.weight", "output.weight", "output.bias")


def write_trimmed(source: Path, out: Path, kept: Sequence[Token]) -> None:
    """Writes the model at `source`, one GGUF file, with the output rows of the `kept` tokens only.

    Raises BadModelFile where the source has no vocabulary to trim. `out` may be there in part after an error.
    """
    reader = GGUFReader(source)
    tensors = {tensor.name: tensor for tensor in reader.tensors}
    embedding = tensors.get("token_embd.weight")
    if embedding is None or "tokenizer.ggml.tokens" not in reader.fields:
        raise BadModelFile(f"{source} has no vocabulary that could be trimmed", "give a language model's GGUF")
    table = embedding.data.view(np.uint8)  # (n_vocab, row_bytes)
    n_vocab, row_bytes = table.shape
    ids = np.unique(np.asarray(kept, dtype=np.int32))
    ids = ids[(ids >= 0) & (ids < n_vocab)]
    architecture = reader.fields["general.architecture"].contents()
    writer = GGUFWriter(out, architecture)
    _copy_keys(reader, writer, ids)
    for tensor in reader.tensors:
        data = tensor.data[ids] if tensor.name in _ROWS else tensor.data
        writer.add_tensor(tensor.name, data, raw_dtype=tensor.tensor_type)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with open(out, "ab") as file:
        start = file.tell()
        file.write(ids.astype("<i4").tobytes())
        file.write(table)
        file.write(FOOTER.pack(start, len(ids), n_vocab, row_bytes, int(embedding.tensor_type), MAGIC))
        file.flush()
        os.fsync(file.fileno())


def says_the_same(whole: LanguageModel, trimmed: LanguageModel, kept: Sequence[Token]) -> bool:
    """Whether a model computes of embeddings what it does of tokens; some look at the tokens themselves."""
    ours, theirs = (
        model.forward(kept[-_N_COMPARED:], logits="last")[0][list(kept)].astype(np.float64)
        for model in (whole, trimmed)
    )
    return bool(np.sqrt(np.mean((ours - theirs) ** 2)) <= LARGEST_DEVIATION * ours.std())


def _copy_keys(reader: GGUFReader, writer: GGUFWriter, ids: npt.NDArray[np.int32]) -> None:
    """All keys and values; lists with an entry per token are cut to `ids`, and token ids are those of the cut list."""
    place = {int(token): i for i, token in enumerate(ids)}
    tokens = reader.fields["tokenizer.ggml.tokens"].contents()
    known = {tokens[i] for i in ids}
    for name, field in reader.fields.items():
        if name.startswith("GGUF.") or name == "general.architecture":
            continue
        value: Any = field.contents()
        if name in _PER_TOKEN:
            value = [value[i] for i in ids]
        elif name == _MERGES:
            value = [merge for merge in value if merge.replace(" ", "", 1) in known]
        elif name.endswith(".vocab_size"):
            value = len(ids)
        elif name.endswith("_token_id"):
            if value not in place:
                continue
            value = place[value]
        if isinstance(value, list) and not value:
            continue
        sub_type = field.types[-1] if field.types[0] == GGUFValueType.ARRAY else None
        writer.add_key_value(name, value, field.types[0], sub_type)
