"""Fixtures for the tests of llama.cpp: tiny real models, loaded once."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from specllm.runtime.llama import Weights


@pytest.fixture(scope="module")
def weights(request: pytest.FixtureRequest) -> Iterator[dict[str, Weights]]:
    names = ("llama", "mamba", "jamba", "lfm2", "gemma3")
    loaded = {name: Weights(request.getfixturevalue(f"{name}_gguf")) for name in names}
    yield loaded
    for one in loaded.values():
        one.close()
