"""Refuses what does not fit in memory before llama.cpp tries: it would fill the memory with zeros until the system kills it."""

from __future__ import annotations

import logging

from specllm.app.memory.plan import Fit, Free, Load, Models, fit_of
from specllm.config import ContextConfig
from specllm.errors import OutOfMemory
from specllm.models.gguf_header import GgufHeader
from specllm.runtime.machine import available_memory_bytes
from specllm.runtime.memory_estimate import CONTEXT_STEP

LOGGER = logging.getLogger("specllm")


def has_room_for_all(models: Models, *, n_tokens: int, is_draft_optional: bool) -> bool:
    """Whether target and draft model fit; False where only the target does and the draft model is optional.

    `n_tokens` are those that the context will hold at least. Raises OutOfMemory with a plan. Nothing is loaded for it.
    """
    fit = fit_of(models, -(-n_tokens // CONTEXT_STEP) * CONTEXT_STEP)
    if fit.is_ok:
        return True
    if is_draft_optional and len(fit.loads) > 1 and fit.free.holds(fit.loads[:1]):
        LOGGER.warning("the draft model is left out: %s", fit.verdict())
        return False
    fit.require()
    return False


def require_room(header: GgufHeader, context: ContextConfig, *, option: str, available: int | None = None) -> None:
    """Raises OutOfMemory where the KV cache and buffers of a context on the CPU are more than the memory that is free.

    The weights are not counted: they are loaded already. `option` is what sets the size of that context.
    """
    free = available_memory_bytes() if available is None else available
    is_draft = option == "--draft-ctx"
    load = Load(
        role="draft model" if is_draft else "target",
        name=header.path.name,
        header=header,
        context=context,
        gpu_layers=0,
    )
    memory = load.memory
    needed = memory.kv_bytes + memory.compute_bytes + memory.logits_bytes
    fit = Fit((load,), Free(free, None), taken_bytes=memory.total_bytes - needed)
    if not fit.is_ok:
        raise OutOfMemory(fit.verdict(), fit.hint() + (", or --drafter lookup" if is_draft else ""))
