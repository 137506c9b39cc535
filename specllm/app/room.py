"""Whether a context fits in memory, asked before llama.cpp is: it would fill the memory with zeros until the system kills it."""

from __future__ import annotations

from specllm.config import ContextConfig
from specllm.errors import OutOfMemory
from specllm.models.gguf_header import GgufHeader
from specllm.runtime.machine import available_memory_bytes
from specllm.runtime.memory_estimate import CONTEXT_STEP, estimate


def require_room(header: GgufHeader, context: ContextConfig, *, option: str, available: int | None = None) -> None:
    """Raises OutOfMemory where the KV cache and buffers of a context on the CPU are more than the memory that is free.

    The weights are not counted: they are loaded already, and a mapped file takes memory only while there is some.
    """
    free = available_memory_bytes() if available is None else available
    needed = _bytes(header, context, context.n_ctx)
    if free is None or needed <= free:
        return
    least = _bytes(header, context, CONTEXT_STEP)
    per_token = (needed - least) / max(1, context.n_ctx - CONTEXT_STEP)
    fitting = int((free - least) / per_token) // CONTEXT_STEP * CONTEXT_STEP if per_token else 0
    smaller = f"use {option} {fitting}" if fitting > 0 else "free some memory, or use a smaller model"
    raise OutOfMemory(
        f"a context of {context.n_ctx:,} tokens for {header.path.name} needs {needed / 1e9:,.1f} GB, "
        f"{free / 1e9:,.1f} GB are free",
        f"{smaller}, or --kv-type q8_0 for half the size per token"
        if context.kv_type in ("f32", "f16", "bf16")
        else smaller,
    )


def _bytes(header: GgufHeader, context: ContextConfig, n_ctx: int) -> int:
    memory = estimate(
        header, n_ctx=n_ctx, kv_type=context.kv_type, n_ubatch=context.n_ubatch, n_outputs_max=context.n_outputs_max,
        has_flash_attention=context.flash_attention != "off",
    )  # fmt: skip
    return memory.kv_bytes + memory.compute_bytes + memory.logits_bytes
