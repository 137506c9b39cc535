from __future__ import annotations

from pathlib import Path

import pytest

from specllm.kernels import build
from tests.kernels import native


@pytest.fixture(scope="session")
def library_path() -> Path:
    if not build.LIBRARY.is_file():
        pytest.skip("the kernels are not compiled: python -m specllm.kernels.build")
    return build.LIBRARY


@pytest.fixture(scope="session")
def sets(library_path: Path) -> list[native.Kernels]:
    """The instruction sets that run here, fastest first."""
    return native.load(library_path)
