"""The kernels' C functions for tests, on numpy arrays."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float32]
Bytes = npt.NDArray[np.uint8]

F16, Q8_0 = 1, 8
# ggml's numbers; columns and bytes of a block; where its f16 scales lie (the only bytes that must not be random)
TYPES = {
    "f32": (0, 32, 128),
    "f16": (1, 32, 64),
    "q4_0": (2, 32, 18),
    "q5_0": (6, 32, 22),
    "q8_0": (8, 32, 34),
    "q4_k": (12, 256, 144),
    "q5_k": (13, 256, 176),
    "q6_k": (14, 256, 210),
    "iq4_nl": (20, 32, 18),
    "iq4_xs": (23, 256, 136),
}
SCALES_AT = {"q6_k": (208,), "q4_k": (0, 2), "q5_k": (0, 2), "f16": tuple(range(0, 64, 2)), "f32": ()}


def pointer(array: npt.NDArray[np.generic] | None) -> ctypes.c_void_p:
    return ctypes.c_void_p(None if array is None else array.ctypes.data)


@dataclass(frozen=True)
class Kernels:
    """One instruction set of the library."""

    library: ctypes.CDLL
    set: int
    name: str

    def pack(self, kind: str, blocks: Bytes, rows: int, columns: int) -> Bytes:
        number = TYPES[kind][0]
        size = self.library.specllm_packed_bytes(self.set, number, i64(rows), i64(columns))
        packed = np.full(size + 64, 0xAA, np.uint8)
        self.library.specllm_pack(self.set, number, pointer(blocks), i64(rows), i64(columns), pointer(packed))
        assert (packed[size:] == 0xAA).all(), "wrote beyond the packed matrix"
        return packed[:size]

    def multiply(self, kind: str, packed: Bytes, x: Floats, rows: int) -> Floats:
        n, columns = x.shape
        out = np.full((n, rows), -12345, np.float32)
        self.library.specllm_multiply(
            self.set, TYPES[kind][0], pointer(packed), i64(rows), i64(columns), pointer(x), i64(n), pointer(out)
        )
        return out

    def attend(self, cache: Cache, queries: Floats, masks: npt.NDArray[np.float16] | None, scale: float) -> Floats:
        return cache.attend(self.library.specllm_attend, (self.set,), queries, masks, scale)


@dataclass(frozen=True)
class Cache:
    """Keys and values of one head, (cells, bytes of a cell)."""

    kind: int
    keys: Bytes
    values: Bytes

    def attend(
        self,
        function: object,
        first: tuple[int, ...],
        queries: Floats,
        masks: npt.NDArray[np.float16] | None,
        scale: float,
    ) -> Floats:
        n_rows, size = queries.shape
        out = np.full_like(queries, -12345)
        function(*first, self.kind, n_rows, size, pointer(queries), pointer(masks), pointer(self.keys),
                 ctypes.c_size_t(self.keys.strides[0]), pointer(self.values), ctypes.c_size_t(self.values.strides[0]),
                 i64(len(self.keys)), ctypes.c_float(scale), pointer(out))  # fmt: skip
        return out


def i64(value: int) -> ctypes.c_int64:
    return ctypes.c_int64(value)


def load(path: Path) -> list[Kernels]:
    """The instruction sets that run here."""
    library = ctypes.CDLL(str(path))
    library.specllm_set_name.restype = ctypes.c_char_p
    library.specllm_packed_bytes.restype = ctypes.c_size_t
    for name in (
        "specllm_pack",
        "specllm_multiply",
        "specllm_attend",
        "specllm_reference_attend",
        "specllm_reference_multiply",
    ):
        getattr(library, name).restype = None
    sets = []
    while name := library.specllm_set_name(len(sets)):
        sets.append(Kernels(library, len(sets), name.decode()))
    return sets


def reference_multiply(library: ctypes.CDLL, kind: str, blocks: Bytes, x: Floats, rows: int) -> Floats:
    number, block_columns, block_bytes = TYPES[kind]
    n, columns = x.shape
    out = np.empty((n, rows), np.float32)
    library.specllm_reference_multiply(
        number, pointer(blocks), block_bytes, block_columns, i64(rows), i64(columns), pointer(x), i64(n), pointer(out)
    )
    return out


def random_blocks(kind: str, rows: int, columns: int, rng: np.random.Generator) -> Bytes:
    """Blocks of any bits with scales that are normal numbers."""
    _, block_columns, block_bytes = TYPES[kind]
    if kind == "f32":
        return rng.standard_normal((rows, columns), dtype=np.float32).view(np.uint8).reshape(-1, block_bytes)
    blocks = rng.integers(0, 256, (rows * columns // block_columns, block_bytes), dtype=np.uint8)
    for at in SCALES_AT.get(kind, (0,)):
        scales = rng.normal(0, 0.02, len(blocks)).astype(np.float16)
        blocks[:, at : at + 2] = scales.view(np.uint8).reshape(-1, 2)
    return blocks
