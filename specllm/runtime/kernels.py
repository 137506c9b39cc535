"""Whether specllm's own kernels compute in this process; decided before the first model is loaded."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from specllm.kernels import loader
from specllm.kernels.loader import HINT as KERNELS_HINT
from specllm.kernels.loader import Kernels

__all__ = ["KERNELS_HINT", "put_in_place"]


@cache
def put_in_place() -> Kernels:
    """What computes from here on; later calls give the same answer. Raises as `loader.install` does."""
    import llama_cpp

    return loader.install(Path(llama_cpp.llama_cpp._lib._name).parent)
