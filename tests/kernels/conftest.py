from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.kernels import native


@pytest.fixture(scope="session")
def library_path() -> Path:
    return Path(os.environ["SPECLLM_KERNELS_LIBRARY"])


@pytest.fixture(scope="session")
def sets(library_path: Path) -> list[native.Kernels]:
    return native.load(library_path)
