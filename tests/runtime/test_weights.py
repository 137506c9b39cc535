"""Weights of real files, and files that are no model."""

from __future__ import annotations

from pathlib import Path

import pytest

from specllm.errors import (
    BadModelFile,
    ModelError,
)
from specllm.models.gguf_header import read_header
from specllm.runtime.llama import Weights
from tests.synthetic import N_VOCAB, write_llama

ARCHITECTURES = ["llama", "mamba"]


def test_weights_know_what_their_file_says(weights):
    assert weights["llama"].n_ctx_train == 4096
    assert [weights[name].is_recurrent for name in ARCHITECTURES] == [False, True]
    assert "<|im_start|>" in weights["llama"].chat_template
    assert 300_000 < weights["llama"].n_bytes < 1_000_000


def broken(kind: str, good: Path, path: Path) -> Path:
    data = good.read_bytes()
    content = {
        "missing": None,
        "empty": b"",
        "garbage": b"\x00\x01 not a model" * 1000,
        "magic only": data[:4],
        "truncated header": data[:2000],
        "truncated tensors": data[: len(data) - 5000],
        "unknown architecture": data.replace(b"llama", b"xlama", 1),
        "folder": None,
    }[kind]
    if content is not None:
        path.write_bytes(content)
    elif kind == "folder":
        path.mkdir()
    return path


@pytest.mark.parametrize(
    "kind",
    ["missing", "empty", "garbage", "magic only", "truncated header", "truncated tensors", "unknown architecture", "folder"],
)  # fmt: skip
@pytest.mark.parametrize("is_vocab_only", [False, True])
def test_a_file_that_is_no_model_is_a_typed_error_that_names_it(llama_gguf, tmp_path, kind, is_vocab_only):
    path = broken(kind, llama_gguf, tmp_path / "bad.gguf")
    if kind == "truncated tensors" and is_vocab_only:
        return  # the vocabulary is all there
    with pytest.raises(ModelError, match=r"bad\.gguf") as error:
        Weights(path, is_vocab_only=is_vocab_only)
    assert isinstance(error.value, BadModelFile)
    assert error.value.hint
    if kind == "unknown architecture":
        assert "xlama" in error.value.message


def test_tokens_without_a_text_are_loaded_and_only_equal_texts_are_refused(tmp_path):
    """The one defect that llama.cpp answers with the end of the process must be found before it."""
    empty = write_llama(tmp_path / "empty.gguf", token_texts={300: "", 301: ""})
    assert read_header(empty).n_vocab == N_VOCAB
    Weights(empty, is_vocab_only=True).close()
    with pytest.raises(BadModelFile, match="two tokens"):
        read_header(write_llama(tmp_path / "twice.gguf", token_texts={300: "a"}))


def test_a_vocabulary_alone_can_be_loaded(llama_gguf):
    weights = Weights(llama_gguf, is_vocab_only=True)
    try:
        assert weights.vocab.n_tokens == N_VOCAB
        assert weights.vocab.tokenize("the end", adds_special=False, parses_special=False)
        assert weights.chat_template
    finally:
        weights.close()
        weights.close()  # closing again does nothing
