"""One pool of computing threads for all contexts of this process, where llama.cpp was built without OpenMP.

Without a pool ggml starts its threads anew in every forward: 50 microseconds a thread (two cores, 2026-11-30), which a
draft model's token on eight cores would feel. One pool for all, because the threads of a pool look out for work for a while
before they sleep: those of a target and of its draft model would take the cores from each other.
"""

from __future__ import annotations

import ctypes
from functools import cache
from typing import Any

import llama_cpp

from specllm.runtime.backend import parse_features, read_system_info

_PARAMS_BYTES = 4096  # struct ggml_threadpool_params has 532 in 2026; ggml itself fills it


def attach(context: Any, n_threads: int) -> None:
    """Lets a llama_context compute on the pool of `n_threads`, if there is one.

    Contexts that share a pool must not compute at the same time.
    """
    pool = _pool(n_threads) if n_threads > 1 else None
    if pool is not None:
        llama_cpp.llama_cpp._lib.llama_attach_threadpool(context, pool, pool)


@cache
def _pool(n_threads: int) -> int | None:
    """A ggml_threadpool that lives as long as the process; None with OpenMP, or where the libraries give none."""
    library = llama_cpp.llama_cpp._lib
    if "OPENMP" in parse_features(read_system_info()):
        return None
    try:  # the binding does not export these: they are found as backend._devices finds its own
        fill, make = library.ggml_threadpool_params_init, library.ggml_threadpool_new
        attach_threadpool = library.llama_attach_threadpool
    except AttributeError:
        return None
    fill.argtypes, fill.restype = [ctypes.c_void_p, ctypes.c_int], None
    make.argtypes, make.restype = [ctypes.c_void_p], ctypes.c_void_p
    attach_threadpool.argtypes, attach_threadpool.restype = [ctypes.c_void_p] * 3, None
    params = ctypes.create_string_buffer(_PARAMS_BYTES)
    fill(params, n_threads)
    pool: int | None = make(params)
    return pool
