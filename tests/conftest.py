"""Fixtures for every test: tiny real models, and a home folder that is not the user's."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from specllm.runtime.llama import Weights
from specllm.runtime.vocab import Vocab
from tests import synthetic

USER_FOLDERS = (
    "SPECLLM_CONFIG_DIR",
    "SPECLLM_MODELS_DIR",
    "HF_HOME",
    "XDG_CONFIG_HOME",
    "XDG_CACHE_HOME",
    "XDG_DATA_HOME",
    "XDG_STATE_HOME",
)


@pytest.fixture(autouse=True)
def _isolated_environment(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tests see no settings, models or caches of the user; tests of the real pair keep them."""
    if request.node.get_closest_marker("real"):
        return
    for name in list(os.environ):
        if name.startswith("SPECLLM_"):
            monkeypatch.delenv(name)
    for name in USER_FOLDERS:
        monkeypatch.setenv(name, str(tmp_path / "home" / name.lower()))
    for name in ("NO_COLOR", "FORCE_COLOR", "COLUMNS"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture(scope="session")
def synthetic_models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("synthetic")


@pytest.fixture(scope="session")
def llama_gguf(synthetic_models: Path) -> Path:
    """An attention model of two layers."""
    return synthetic.write_llama(synthetic_models / "llama.gguf")


@pytest.fixture(scope="session")
def mamba_gguf(synthetic_models: Path) -> Path:
    """A recurrent model: a part of a sequence cannot be dropped again."""
    return synthetic.write_mamba(synthetic_models / "mamba.gguf")


@pytest.fixture(scope="session")
def jamba_gguf(synthetic_models: Path) -> Path:
    """A hybrid model: a recurrent and an attention layer."""
    return synthetic.write_jamba(synthetic_models / "jamba.gguf")


@pytest.fixture(scope="session")
def lfm2_gguf(synthetic_models: Path) -> Path:
    """A hybrid model whose last states llama.cpp can keep (`n_rs_seq`)."""
    return synthetic.write_lfm2(synthetic_models / "lfm2.gguf")


@pytest.fixture(scope="session")
def gemma3_gguf(synthetic_models: Path) -> Path:
    """An attention model with a sliding window of 8 tokens in one of its two layers."""
    return synthetic.write_gemma3(synthetic_models / "gemma3.gguf")


@pytest.fixture(scope="session")
def draft_gguf(synthetic_models: Path) -> Path:
    """The vocabulary of `llama_gguf` with other weights: a draft that is nearly always wrong."""
    return synthetic.write_llama(synthetic_models / "draft.gguf", seed=1, n_layer=1)


@pytest.fixture(scope="session")
def close_draft_gguf(synthetic_models: Path) -> Path:
    """`llama_gguf` with a little noise in its weights: a draft that is right more often than not."""
    return synthetic.write_llama(synthetic_models / "close_draft.gguf", noise=0.05)


@pytest.fixture(scope="module")
def vocab(llama_gguf: Path) -> Iterator[Vocab]:
    """That of the attention model."""
    weights = Weights(llama_gguf, is_vocab_only=True)
    yield weights.vocab
    weights.close()
