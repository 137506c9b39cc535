"""Quantities as people read them, the same in every room."""

from __future__ import annotations


def sized(n_bytes: int) -> str:
    """A size for people, in powers of 1000 as disks and hubs count: 98.4 MB, 1.12 GB."""
    value = float(n_bytes)
    for unit in ("B", "kB", "MB", "GB"):
        if value < 999.5:
            return f"{n_bytes} B" if unit == "B" else f"{value:.3g} {unit}"
        value /= 1000
    return f"{value:.3g} TB"
