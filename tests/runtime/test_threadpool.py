"""One pool of computing threads for every context, in builds without OpenMP."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

from specllm.config import ContextConfig
from specllm.runtime import threadpool
from specllm.runtime.backend import parse_features, read_system_info
from specllm.runtime.llama import LlamaModel, Weights

has_pool = pytest.mark.skipif("OPENMP" in parse_features(read_system_info()), reason="OpenMP keeps its own threads")


def n_threads() -> int:
    return len(list(Path("/proc/self/task").iterdir()))


@has_pool
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="counts threads in /proc")
def test_contexts_share_their_threads_and_start_none_later(llama_gguf: Path) -> None:
    weights = Weights(llama_gguf)
    config = ContextConfig(n_ctx=64, threads=3)
    first = LlamaModel(weights, config)
    first.forward([3, 4, 5])
    before = n_threads()
    others = [LlamaModel(weights, config) for _ in range(3)]
    for model in (first, *others):
        model.forward([6, 7])
        assert n_threads() == before


@has_pool
def test_logits_are_the_same_with_and_without_a_pool(llama_gguf: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    weights = Weights(llama_gguf)
    config = ContextConfig(n_ctx=64, threads=2, n_outputs_max=8)
    tokens = [3, 9, 27, 81, 5, 25]
    pooled = LlamaModel(weights, config).forward(tokens).copy()
    monkeypatch.setattr(threadpool, "_pool", lambda n_threads: None)
    assert np.array_equal(LlamaModel(weights, config).forward(tokens), pooled)
