"""How many layers go to a GPU."""

from __future__ import annotations

from dataclasses import replace

from specllm.config import ContextConfig, GpuLayers
from specllm.models.gguf_header import GgufHeader
from specllm.runtime.backend import inspect_backend
from specllm.runtime.llama import DEFAULT_CTX
from specllm.runtime.memory_estimate import MemoryEstimate, estimate, split

ALL_LAYERS = -1  # llama.cpp's n_gpu_layers for "every one"
_HEADROOM = 0.9  # of the free device memory: the desktop and other contexts need the rest


def memory_of(header: GgufHeader, context: ContextConfig) -> MemoryEstimate:
    """What the model takes in such a context, whose size is settled."""
    return estimate(
        header, n_ctx=context.n_ctx, kv_type=context.kv_type, n_ubatch=min(context.n_ubatch, context.n_batch),
        n_outputs_max=context.n_outputs_max, has_flash_attention=context.flash_attention != "off", is_mapped=context.use_mmap,
    )  # fmt: skip


def plan_gpu_layers(header: GgufHeader, wanted: GpuLayers, context: ContextConfig) -> int:
    """The number for llama.cpp's n_gpu_layers.

    `auto` offloads as many layers as the largest GPU's free memory holds with the KV cache of such a context, and none where
    there is no GPU, or the library was built without one. A context whose size is not settled counts as one of a chat.
    """
    if isinstance(wanted, int):
        return wanted
    if wanted == "all":
        return ALL_LAYERS
    room_bytes = _HEADROOM * _free_bytes()
    if not room_bytes:
        return 0
    n_ctx = context.n_ctx or min(DEFAULT_CTX, header.n_ctx_train or DEFAULT_CTX)
    memory, n_layers = (
        memory_of(header, replace(context, n_ctx=n_ctx)),
        header.n_layer + 1,
    )  # the output layer counts as one
    most = max((n for n in range(1, n_layers + 1) if split(header, memory, n)[1] <= room_bytes), default=0)
    return ALL_LAYERS if most == n_layers else most


def settled_gpu_layers(header: GgufHeader, wanted: GpuLayers, context: ContextConfig) -> GpuLayers:
    """What `auto` comes to on this machine, as a user would write it."""
    layers = plan_gpu_layers(header, wanted, context)
    return "all" if layers == ALL_LAYERS else layers


def depend_on_prompt(context: ContextConfig) -> bool:
    """Whether the layers for a GPU cannot be settled before the prompt's length is known."""
    return context.gpu_layers == "auto" and not context.n_ctx and _free_bytes() > 0


def _free_bytes() -> int:
    """Of the GPU with the most; 0 where none can be used."""
    info = inspect_backend()
    return max((device.free_bytes for device in info.devices if device.is_gpu), default=0) if info.can_offload else 0
