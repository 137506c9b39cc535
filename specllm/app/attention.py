"""Which form of attention suits an answer that is mostly a copy."""

from __future__ import annotations

from dataclasses import replace

from specllm.config import ContextConfig
from specllm.models.gguf_header import GgufHeader

_LARGEST_SCORES = 256 * 2**20  # bytes of one layer's scores, which only flash attention does without


def settled_for_copying(context: ContextConfig, header: GgufHeader) -> ContextConfig:
    """`auto` flash attention settled for wide drafts deep in a context; size and GPU layers of `context` are settled.

    On a CPU llama.cpp's flash attention takes the rows of a block narrower than 64 one by one, and each reads all keys and
    values again. Without it a block of 16 took 0.91, 0.79 and 0.69 of the time at 1,024, 2,048 and 4,096 tokens of context, one
    of 48 0.83, 0.72 and 0.61, a single token the same or less; reading the prompt 1.06, 1.14 and 1.18 (1.5B in Q4_K_M, 2
    threads, 30 November 2026). Quantized keys and values need it.
    """
    scores = 4 * header.n_head * context.n_ctx * min(context.n_ubatch, context.n_batch)
    is_better_without = (
        context.gpu_layers == 0 and context.kv_type in ("f32", "f16", "bf16") and scores <= _LARGEST_SCORES
    )
    if context.flash_attention == "auto" and is_better_without:
        return replace(context, flash_attention="off")
    return context
