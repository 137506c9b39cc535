"""A small project, and adding it to a store."""

from __future__ import annotations

from pathlib import Path

import pytest

from specllm.app.store.add import add_to_store
from specllm.models.progress import NoProgress
from tests.app.store.stores import TEXT, Add


@pytest.fixture
def project(tmp_path: Path) -> Path:
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "a.py").write_text(TEXT)
    (folder / "b.py").write_text("class Other:\n    value = 3\n")
    return folder


@pytest.fixture
def add(llama_gguf: Path) -> Add:
    def call(*paths: Path, name: str = "mine", model: Path = llama_gguf, progress: NoProgress | None = None):
        return add_to_store(name, paths, str(model), progress or NoProgress())

    return call
