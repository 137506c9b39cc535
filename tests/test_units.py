"""Quantities as people read them."""

from __future__ import annotations

from specllm.units import sized


def test_sizes_are_written_with_three_figures() -> None:
    sizes = [0, 999, 1000, 98_362_432, 999_499_999, 999_600_000, 1_117_320_768, 19_851_335_840, 5 * 10**12]
    assert [sized(size) for size in sizes] == [
        "0 B", "999 B", "1 kB", "98.4 MB", "999 MB", "1 GB", "1.12 GB", "19.9 GB", "5 TB",
    ]  # fmt: skip
