"""Every matrix kernel against the scalar reference, bit for bit, on every instruction set that runs here."""

from __future__ import annotations

import ctypes
from pathlib import Path

import llama_cpp
import numpy as np
import pytest

from tests.kernels import native
from tests.kernels.native import Bytes, Floats, Kernels

KINDS = sorted(native.TYPES)
GGML_BASE = ctypes.CDLL(str(Path(llama_cpp.llama_cpp._lib._name).parent / "libggml-base.so.0"))
ROWS = 52  # three strips and a part of one: a whole group and one that is not


def columns_of(kind: str) -> int:
    return 896 if native.TYPES[kind][1] == 32 else 1024  # 28 blocks of 32: three runs of 8 and one of 4


def same_bits(a: Floats, b: Floats) -> bool:
    """Equal bits; what is not a number only has to be so in both."""
    return bool(((a.view(np.uint32) == b.view(np.uint32)) | (np.isnan(a) & np.isnan(b))).all())


def check(sets: list[Kernels], kind: str, blocks: Bytes, x: Floats, rows: int = ROWS) -> Floats:
    expected = native.reference_multiply(sets[0].library, kind, blocks, x, rows)
    packed = None
    for kernels in sets:
        own = kernels.pack(kind, blocks, rows, x.shape[1])
        assert packed is None or (packed == own).all(), f"{kernels.name} packs otherwise"
        packed = own
        got = kernels.multiply(kind, packed, x, rows)
        assert same_bits(got, expected), f"{kernels.name}: {np.argwhere(got != expected)[:4]}"
    return expected


@pytest.mark.parametrize("kind", KINDS)
def test_kernels_give_the_bits_of_the_reference(sets: list[Kernels], kind: str) -> None:
    rng = np.random.default_rng(1)
    blocks = native.random_blocks(kind, ROWS, columns_of(kind), rng)
    x = rng.standard_normal((5, columns_of(kind)), dtype=np.float32)
    check(sets, kind, blocks, x)


@pytest.mark.parametrize("kind", sorted(set(KINDS) - {"f16", "f32"}))
def test_the_reference_reads_blocks_as_ggml_does(sets: list[Kernels], kind: str) -> None:
    """Times the unit matrix, the weights come back: 127 * (1 / 127) is 1 but for rounding."""
    blocks = native.random_blocks(kind, 8, 256, np.random.default_rng(3))
    expected = np.empty((8, 256), np.float32)
    name = kind[:-1] + kind[-1].upper() if kind.endswith("_k") else kind
    function = GGML_BASE[f"dequantize_row_{name}"]
    function.restype = None
    function(native.pointer(blocks), native.pointer(expected), native.i64(expected.size))
    got = native.reference_multiply(sets[0].library, kind, blocks, np.eye(256, dtype=np.float32), 8)
    assert np.allclose(got.T, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("kind", KINDS)
def test_a_column_has_the_same_bits_at_every_width_and_place(sets: list[Kernels], kind: str) -> None:
    rng = np.random.default_rng(2)
    blocks = native.random_blocks(kind, ROWS, columns_of(kind), rng)
    x = rng.standard_normal((37, columns_of(kind)), dtype=np.float32)
    for kernels in sets:
        packed = kernels.pack(kind, blocks, ROWS, columns_of(kind))
        expected = np.concatenate([kernels.multiply(kind, packed, x[i : i + 1], ROWS) for i in range(len(x))])
        for width in range(1, 38):
            assert same_bits(kernels.multiply(kind, packed, x[-width:], ROWS), expected[-width:]), (kernels.name, width)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("fill", [0x00, 0xFF, 0x7F, 0x80, 0x0F, 0xF0])
def test_extreme_weights_and_activations_do_not_overflow(sets: list[Kernels], kind: str, fill: int) -> None:
    rng = np.random.default_rng(fill)
    blocks = native.random_blocks(kind, ROWS, columns_of(kind), rng)
    keep = np.zeros(blocks.shape[1], bool)
    for at in native.SCALES_AT.get(kind, (0,)):
        keep[at : at + 2] = True
    blocks[:, ~keep] = fill
    signs = rng.choice(np.float32([-1, 1]), (2, columns_of(kind)))
    constant = np.ones((2, columns_of(kind)), np.float32)
    constant[1] = -1
    check(sets, kind, blocks, np.concatenate([signs, constant]))


@pytest.mark.parametrize("kind", KINDS)
def test_scales_of_every_kind_of_half_pass_through(sets: list[Kernels], kind: str) -> None:
    rng = np.random.default_rng(4)
    blocks = native.random_blocks(kind, ROWS, columns_of(kind), rng)
    halves = np.array([0x0000, 0x8000, 0x0001, 0x8001, 0x03FF, 0x0400, 0x7BFF, 0xFBFF], np.uint16)
    for at in native.SCALES_AT.get(kind, (0,)):
        chosen = rng.choice(halves, len(blocks))
        blocks[:, at : at + 2] = chosen.view(np.uint8).reshape(-1, 2)
    check(sets, kind, blocks, rng.standard_normal((3, columns_of(kind)), dtype=np.float32))


@pytest.mark.parametrize("kind", KINDS)
def test_activations_of_every_size_are_rounded_as_in_the_reference(sets: list[Kernels], kind: str) -> None:
    rng = np.random.default_rng(5)
    blocks = native.random_blocks(kind, ROWS, columns_of(kind), rng)
    x = rng.standard_normal((8, columns_of(kind)), dtype=np.float32)
    x *= np.float32(10.0) ** np.array([[-30], [-19], [-18], [-5], [5], [15], [20], [0]], np.float32)
    x[7] = np.round(x[7] * 127) / 2  # halves: ties
    check(sets, kind, blocks, x)


@pytest.mark.parametrize("kind", sorted(set(KINDS) - {"f16", "f32"}))
@pytest.mark.parametrize("bad", [np.inf, -np.inf, np.nan])
def test_what_is_not_finite_makes_its_own_column_not_a_number(sets: list[Kernels], kind: str, bad: float) -> None:
    rng = np.random.default_rng(6)
    blocks = native.random_blocks(kind, ROWS, columns_of(kind), rng)
    x = rng.standard_normal((3, columns_of(kind)), dtype=np.float32)
    x[1, 300] = bad
    out = check(sets, kind, blocks, x)
    assert np.isnan(out[1]).all()
    assert np.isfinite(out[[0, 2]]).all()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("rows", [1, 15, 16, 17, 32, 33, 48, 100])
def test_any_number_of_rows(sets: list[Kernels], kind: str, rows: int) -> None:
    rng = np.random.default_rng(rows)
    blocks = native.random_blocks(kind, rows, 256, rng)
    check(sets, kind, blocks, rng.standard_normal((2, 256), dtype=np.float32), rows)
