"""Runs the kernels through ggml, as a model would: `python -m specllm.kernels.selftest LIBRARY_FOLDER KERNELS SET`.

For every weight type a matrix is quantized by ggml and multiplied twice: by ggml's own kernels and by ours; the same for
attention. The numbers must be close, and ours must have the same bits at every width and number of threads. A crash ends
this process only.
"""

from __future__ import annotations

import ctypes
import sys
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from specllm.kernels import loader

Floats = npt.NDArray[np.float32]

F32, F16, I32, Q4_K = 0, 1, 26, 12
TYPES = {
    "F32": 0,
    "F16": 1,
    "Q4_0": 2,
    "Q5_0": 6,
    "Q8_0": 8,
    "Q4_K": 12,
    "Q5_K": 13,
    "Q6_K": 14,
    "IQ4_NL": 20,
    "IQ4_XS": 23,
}
ROWS, COLUMNS, WIDTH = 80, 512, 21  # a group of strips that is not whole; a tile of 16 columns and one of 5
EXPERTS, EXPERT_ROWS, SLOTS = 6, 64, 2
CLOSE = 0.02  # of the result's deviation: activations are rounded to 8 bits by both, in blocks of other sizes


class Failed(Exception):
    pass


class InitParams(ctypes.Structure):
    _fields_ = (("mem_size", ctypes.c_size_t), ("mem_buffer", ctypes.c_void_p), ("no_alloc", ctypes.c_bool))


class Ggml:
    """The functions of ggml's libraries that are needed to compute one operation."""

    def __init__(self, folder: Path) -> None:
        self._base = ctypes.CDLL(str(folder / "libggml-base.so.0"), mode=ctypes.RTLD_GLOBAL)
        self._cpu = ctypes.CDLL(str(folder / "libggml-cpu.so.0"), mode=ctypes.RTLD_GLOBAL)
        self._base.ggml_init.argtypes = [InitParams]
        self.backend = self.pointer(self._cpu.ggml_backend_cpu_init)
        self.stock = self.pointer(self._base.ggml_backend_cpu_buffer_type)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._base, name)

    def pointer(self, function: Any, *arguments: Any) -> int:
        function.restype = ctypes.c_void_p
        result: int | None = function(*arguments)
        if not result:
            raise Failed(f"{function.__name__} gives nothing")
        return result

    def context(self) -> ctypes.c_void_p:
        return ctypes.c_void_p(self.pointer(self.ggml_init, InitParams(1 << 20, None, True)))

    def tensor(self, context: ctypes.c_void_p, kind: int, *sizes: int) -> ctypes.c_void_p:
        make = self._base[f"ggml_new_tensor_{len(sizes)}d"]
        return ctypes.c_void_p(self.pointer(make, context, kind, *(ctypes.c_int64(size) for size in sizes)))

    def allocate(self, context: ctypes.c_void_p, buffer_type: int) -> None:
        self.pointer(self.ggml_backend_alloc_ctx_tensors_from_buft, context, ctypes.c_void_p(buffer_type))

    def set(self, tensor: ctypes.c_void_p, data: npt.NDArray[Any]) -> None:
        data = np.ascontiguousarray(data)
        self.ggml_backend_tensor_set(
            tensor, ctypes.c_void_p(data.ctypes.data), ctypes.c_size_t(0), ctypes.c_size_t(data.nbytes)
        )

    def compute(
        self, context: ctypes.c_void_p, result: ctypes.c_void_p, shape: tuple[int, ...], n_threads: int
    ) -> Floats:
        self._cpu.ggml_backend_cpu_set_n_threads(ctypes.c_void_p(self.backend), n_threads)
        graph = ctypes.c_void_p(self.pointer(self.ggml_new_graph, context))
        self.ggml_build_forward_expand(graph, result)
        if status := self.ggml_backend_graph_compute(ctypes.c_void_p(self.backend), graph):
            raise Failed(f"ggml_backend_graph_compute gives {status}")
        out = np.empty(shape, np.float32)
        self.ggml_backend_tensor_get(
            result, ctypes.c_void_p(out.ctypes.data), ctypes.c_size_t(0), ctypes.c_size_t(out.nbytes)
        )
        return out


def quantize(ggml: Ggml, kind: int, weights: Floats) -> npt.NDArray[np.uint8]:
    rows, columns = weights.shape
    ggml.ggml_row_size.restype = ctypes.c_size_t
    out = np.empty(rows * ggml.ggml_row_size(kind, ctypes.c_int64(columns)), np.uint8)
    ggml.ggml_quantize_chunk.restype = ctypes.c_size_t
    ggml.ggml_quantize_chunk(
        kind, ctypes.c_void_p(weights.ctypes.data), ctypes.c_void_p(out.ctypes.data), ctypes.c_int64(0), ctypes.c_int64(rows),
        ctypes.c_int64(columns), None,
    )  # fmt: skip
    return out


def multiply(
    ggml: Ggml, buffer_type: int, kind: int, blocks: npt.NDArray[np.uint8], x: Floats, n_threads: int = 1
) -> Floats:
    """x (n, COLUMNS) times the matrix (ROWS, COLUMNS) whose data lies in such a buffer."""
    held, work = ggml.context(), ggml.context()
    matrix = ggml.tensor(held, kind, COLUMNS, ROWS)
    ggml.allocate(held, buffer_type)
    ggml.set(matrix, blocks)
    columns = ggml.tensor(work, F32, COLUMNS, len(x))
    result = ctypes.c_void_p(ggml.pointer(ggml.ggml_mul_mat, work, matrix, columns))
    ggml.allocate(work, ggml.stock)
    ggml.set(columns, x)
    return ggml.compute(work, result, (len(x), ROWS), n_threads)


def multiply_experts(
    ggml: Ggml, buffer_type: int, kind: int, blocks: npt.NDArray[np.uint8], x: Floats, ids: npt.NDArray[np.int32],
    n_threads: int = 1,
) -> Floats:  # fmt: skip
    """x (n, COLUMNS) times EXPERTS matrices (EXPERT_ROWS, COLUMNS) in such a buffer, those of ids (n, slots)."""
    held, work = ggml.context(), ggml.context()
    matrices = ggml.tensor(held, kind, COLUMNS, EXPERT_ROWS, EXPERTS)
    ggml.allocate(held, buffer_type)
    ggml.set(matrices, blocks)
    n, slots = ids.shape
    columns, chosen = ggml.tensor(work, F32, COLUMNS, 1, n), ggml.tensor(work, I32, slots, n)
    result = ctypes.c_void_p(ggml.pointer(ggml.ggml_mul_mat_id, work, matrices, columns, chosen))
    ggml.allocate(work, ggml.stock)
    ggml.set(columns, x)
    ggml.set(chosen, ids)
    return ggml.compute(work, result, (n, slots, EXPERT_ROWS), n_threads)


def attend(ggml: Ggml, x: Floats, keys: npt.NDArray[np.float16], n_threads: int = 1) -> Floats:
    """Queries x (heads, n, size) over keys (KV heads, cells, size), which are the values too; the last query sees all."""
    heads, n, size = x.shape
    kv_heads, cells, _ = keys.shape
    work = ggml.context()
    q = ggml.tensor(work, F32, size, n, heads)
    k = ggml.tensor(work, F16, size, cells, kv_heads)
    mask = ggml.tensor(work, F16, cells, n)
    floats = [ctypes.c_float(value) for value in (size**-0.5, 0.0, 0.0)]
    result = ctypes.c_void_p(ggml.pointer(ggml.ggml_flash_attn_ext, work, q, k, k, mask, *floats))
    ggml.allocate(work, ggml.stock)
    ggml.set(q, x)
    ggml.set(k, keys)
    seen = np.where(np.arange(cells) <= np.arange(cells - n, cells)[:, None], 0, -np.inf).astype(np.float16)
    ggml.set(mask, seen)
    return ggml.compute(work, result, (n, heads, size), n_threads)


def require_close(what: str, ours: Floats, stock: Floats) -> None:
    if not np.isfinite(ours).all():
        raise Failed(f"{what}: not numbers")
    if (off := float(np.abs(ours - stock).std() / stock.std())) > CLOSE:
        raise Failed(f"{what}: other than ggml's own by {off:.3f} of the deviation")


def require_same(what: str, parts: list[Floats], whole: Floats) -> None:
    if not all(np.array_equal(part, row) for part, row in zip(parts, whole, strict=True)):
        raise Failed(f"{what}: a row depends on what is computed with it")


def run(folder: Path, library: Path, instruction_set: str) -> None:
    """Raises Failed where something is wrong."""
    ggml, native = Ggml(folder), loader.load(library)
    rng = np.random.default_rng(1)
    weights = rng.standard_normal((ROWS, COLUMNS), dtype=np.float32)
    x = rng.standard_normal((WIDTH, COLUMNS), dtype=np.float32)
    queries = rng.standard_normal((6, WIDTH, 64), dtype=np.float32)
    keys = rng.standard_normal((2, 600, 64)).astype(np.float16)
    blocks = {name: quantize(ggml, kind, weights) for name, kind in TYPES.items()}
    stock = {name: multiply(ggml, ggml.stock, kind, blocks[name], x) for name, kind in TYPES.items()}
    ids = np.stack([rng.permutation(EXPERTS)[:SLOTS] for _ in range(WIDTH)]).astype(np.int32)
    experts = quantize(ggml, Q4_K, rng.standard_normal((EXPERTS * EXPERT_ROWS, COLUMNS), dtype=np.float32))
    stock_experts = multiply_experts(ggml, ggml.stock, Q4_K, experts, x, ids)
    stock_attention = attend(ggml, queries, keys)

    libraries = loader.Libraries.find(folder)
    assert libraries is not None
    if complaint := loader.put_in_place(native, libraries, instruction_set):
        raise Failed(complaint)
    buffer_type = native.specllm_buffer_type()
    for name, kind in TYPES.items():
        ours = multiply(ggml, buffer_type, kind, blocks[name], x, n_threads=2)
        require_close(name, ours, stock[name])
        alone = [multiply(ggml, buffer_type, kind, blocks[name], x[i : i + 1])[0] for i in range(WIDTH)]
        require_same(name, alone, ours)
    ours = multiply_experts(ggml, buffer_type, Q4_K, experts, x, ids, n_threads=2)
    require_close("experts", ours, stock_experts)
    alone = [multiply_experts(ggml, buffer_type, Q4_K, experts, x[i : i + 1], ids[i : i + 1])[0] for i in range(WIDTH)]
    require_same("experts", alone, ours)
    ours = attend(ggml, queries, keys, n_threads=2)
    require_close("attention", ours, stock_attention)
    last = [attend(ggml, queries[:, -n:], keys)[-1] for n in (1, 2, 5)]
    require_same("attention", last, np.stack([ours[-1]] * 3))


def main() -> int:
    folder, library, instruction_set = sys.argv[1:4]
    try:
        run(Path(folder), Path(library), instruction_set)
    except Failed as error:
        print(error, file=sys.stderr)
        return 1
    except (OSError, AttributeError) as error:
        print(f"they do not load: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
