"""The attention kernel against the scalar reference, bit for bit."""

from __future__ import annotations

import numpy as np
import pytest

from tests.kernels import native
from tests.kernels.native import Cache, Floats, Kernels
from tests.kernels.test_matrices import same_bits

SIZES = [16, 48, 64, 80, 96, 128, 256]


def make_cache(kind: int, cells: int, size: int, rng: np.random.Generator) -> Cache:
    def side() -> native.Bytes:
        numbers = rng.standard_normal((cells, size)).astype(np.float16)
        if kind == native.F16:
            return numbers.view(np.uint8)
        return native.random_blocks("q8_0", cells, size, rng).reshape(cells, -1)

    return Cache(kind, side(), side())


def causal(rows: int, cells: int, first: int) -> npt16:
    mask = np.zeros((rows, cells), np.float16)
    for row in range(rows):
        mask[row, first + row + 1 :] = -np.inf
    return mask


npt16 = np.ndarray[tuple[int, ...], np.dtype[np.float16]]


def reference(sets: list[Kernels], cache: Cache, queries: Floats, masks: npt16 | None, scale: float) -> Floats:
    return cache.attend(sets[0].library.specllm_reference_attend, (), queries, masks, scale)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("kind", [native.F16, native.Q8_0])
def test_kernels_give_the_bits_of_the_reference(sets: list[Kernels], kind: int, size: int) -> None:
    if kind == native.Q8_0 and size % 32:
        pytest.skip("q8_0 caches have heads of a multiple of 32")
    rng = np.random.default_rng(size)
    cache = make_cache(kind, 600, size, rng)
    queries = rng.standard_normal((7, size), dtype=np.float32)
    for masks in (None, causal(7, 600, 500), causal(7, 600, 0)):
        expected = reference(sets, cache, queries, masks, 1 / np.sqrt(size))
        for kernels in sets:
            assert same_bits(kernels.attend(cache, queries, masks, 1 / np.sqrt(size)), expected), kernels.name


def test_the_result_is_softmax_attention(sets: list[Kernels]) -> None:
    rng = np.random.default_rng(0)
    cache = make_cache(native.F16, 512, 64, rng)
    queries = rng.standard_normal((3, 64), dtype=np.float32)
    masks = causal(3, 512, 400)
    keys, values = (side.view(np.float16).astype(np.float64) for side in (cache.keys, cache.values))
    scores = queries @ keys.T / 8 + masks
    weights = np.exp(scores - scores.max(1, keepdims=True))
    expected = weights @ values / weights.sum(1, keepdims=True)
    assert np.abs(sets[0].attend(cache, queries, masks, 1 / 8) - expected).max() < 2e-6


def test_a_row_has_the_same_bits_with_any_other_rows(sets: list[Kernels]) -> None:
    rng = np.random.default_rng(1)
    cache = make_cache(native.F16, 700, 128, rng)
    queries = rng.standard_normal((32, 128), dtype=np.float32)
    masks = causal(32, 700, 600)
    for kernels in sets:
        alone = np.concatenate([kernels.attend(cache, queries[i : i + 1], masks[i : i + 1], 0.1) for i in range(32)])
        for width in range(1, 33):
            assert same_bits(kernels.attend(cache, queries[-width:], masks[-width:], 0.1), alone[-width:])


@pytest.mark.parametrize("bad", [0x7C00, 0xFC00, 0x7E00])  # f16: infinity, -infinity, not a number
def test_what_hidden_cells_hold_makes_no_difference(sets: list[Kernels], bad: int) -> None:
    rng = np.random.default_rng(2)
    cache = make_cache(native.F16, 300, 64, rng)
    queries = rng.standard_normal((4, 64), dtype=np.float32)
    masks = causal(4, 300, 270)
    expected = [kernels.attend(cache, queries, masks, 0.1) for kernels in sets]
    cache.keys.view(np.uint16)[280:] = bad
    cache.values.view(np.uint16)[280:] = bad
    for kernels, before in zip(sets, expected, strict=True):
        assert same_bits(kernels.attend(cache, queries, masks, 0.1), before)


def test_a_row_that_sees_nothing_is_zero(sets: list[Kernels]) -> None:
    rng = np.random.default_rng(3)
    cache = make_cache(native.F16, 64, 64, rng)
    masks = np.full((2, 64), -np.inf, np.float16)
    masks[1, 3] = 0
    for kernels in sets:
        out = kernels.attend(cache, rng.standard_normal((2, 64), dtype=np.float32), masks, 0.1)
        assert not out[0].any()
        assert np.array_equal(out[1], cache.values[3].view(np.float16).astype(np.float32))


def test_extreme_scores_are_finite(sets: list[Kernels]) -> None:
    rng = np.random.default_rng(4)
    cache = make_cache(native.F16, 300, 64, rng)
    queries = 1000 * rng.standard_normal((4, 64), dtype=np.float32)
    expected = reference(sets, cache, queries, None, 1.0)
    assert np.isfinite(expected).all()
    for kernels in sets:
        assert same_bits(kernels.attend(cache, queries, None, 1.0), expected)
