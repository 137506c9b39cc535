"""What models need in memory, as a table of 80 columns: data on stdout."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from specllm.ui.console import harmless
from specllm.units import sized

PIPE_COLUMNS = 200
PARTS = (
    ("weights", "weight_bytes"),
    ("KV cache", "kv_bytes"),
    ("compute", "compute_bytes"),
    ("logits", "logits_bytes"),
)


def print_fit(fit: Mapping[str, Any], verdict: str) -> None:
    """A row for every model, what is free, and what to change where it does not fit."""
    console = Console(highlight=False, markup=False, emoji=False)
    if not console.is_terminal:
        console = Console(width=PIPE_COLUMNS, highlight=False, markup=False, emoji=False)
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim", pad_edge=False)
    table.add_column("model", overflow="fold")
    for title in ("context", *(name for name, _ in PARTS), "memory"):
        table.add_column(title, justify="right", no_wrap=True)
    has_gpu = any(model["gpu_layers"] for model in fit["models"])
    if has_gpu:
        table.add_column("GPU", justify="right", no_wrap=True)
    for model in fit["models"]:
        cells = [sized(model[key]) for _, key in PARTS] + [sized(model["ram_bytes"])]
        if has_gpu:
            cells.append(sized(model["vram_bytes"]))
        table.add_row(Text(harmless(model["name"])), f"{model['n_ctx']:,}", *cells)
    console.print(table)
    word = Text("fits: " if fit["fits"] else "does not fit: ", style="green" if fit["fits"] else "red")
    console.print(Text.assemble(word, harmless(verdict)))
    for step in fit["steps"]:
        on_gpu = f" and {sized(step['vram_bytes'])} on the GPU" if step["vram_bytes"] else ""
        console.print(Text(f"  {step['flags']}: {sized(step['ram_bytes'])}{on_gpu}"))
