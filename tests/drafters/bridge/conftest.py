"""A draft model whose vocabulary is another one than the target's."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from specllm.runtime.llama import Weights
from specllm.runtime.vocab import Vocab
from tests import synthetic
from tests.drafters.bridge.bridges import (
    TEXTS,
)


@pytest.fixture(scope="module")
def other_gguf(synthetic_models: Path) -> Path:
    """`llama_gguf` with a little noise in its weights and another vocabulary."""
    return synthetic.write_llama(synthetic_models / "other.gguf", noise=0.02, token_texts=TEXTS, extra_tokens=200)


@pytest.fixture(scope="module")
def vocabularies(llama_gguf: Path, other_gguf: Path) -> Iterator[tuple[Vocab, Vocab]]:
    """The target's and the draft model's."""
    loaded = [Weights(path, is_vocab_only=True) for path in (llama_gguf, other_gguf)]
    yield loaded[0].vocab, loaded[1].vocab
    for weights in loaded:
        weights.close()
