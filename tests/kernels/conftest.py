from __future__ import annotations

import sys
from pathlib import Path

import pytest

from specllm.kernels import build, loader
from specllm.models.disk import locked
from tests.kernels import native


@pytest.fixture(scope="session")
def library_path() -> Path:
    """The kernels of these sources: those that scripts/setup compiled, else compiled once into the environment."""
    if build.LIBRARY.is_file() and loader.load(build.LIBRARY).specllm_sources().decode() == build.sources_digest():
        return build.LIBRARY
    compiler = build.find_compiler()
    if not build.IS_SUPPORTED or compiler is None:
        pytest.skip("x86-64 Linux with a C++ compiler")
    library = Path(sys.prefix, "tested-kernels", f"{build.sources_digest()}.so")
    with locked(library.with_name("lock")):
        if not library.is_file():
            build.build(compiler, library)
    return library


@pytest.fixture(scope="session")
def sets(library_path: Path) -> list[native.Kernels]:
    """The instruction sets that run here, fastest first."""
    return native.load(library_path)
