"""How many layers go to a GPU."""

from __future__ import annotations

from specllm.config import ContextConfig, GpuLayers
from specllm.models.gguf_header import GgufHeader
from specllm.runtime.backend import inspect_backend

ALL_LAYERS = -1  # llama.cpp's n_gpu_layers for "every one"
_HEADROOM = 0.9  # of the free device memory: compute buffers and the desktop need the rest


def plan_gpu_layers(header: GgufHeader, wanted: GpuLayers, context: ContextConfig) -> int:
    """The number for llama.cpp's n_gpu_layers.

    `auto` offloads as many layers as the largest GPU's free memory holds with their KV cache, and none where the library
    was built without one.
    """
    if isinstance(wanted, int):
        return wanted
    if wanted == "all":
        return ALL_LAYERS
    info = inspect_backend()
    free = max((device.free_bytes for device in info.devices if device.is_gpu), default=0)
    if not info.can_offload or not free:
        return 0
    n_layers = max(header.n_layer, 1) + 1  # the output layer counts as one
    per_layer = header.weight_bytes / n_layers + kv_bytes_per_token(header) * (context.n_ctx or 8192) / n_layers
    n = int(free * _HEADROOM / per_layer)
    return ALL_LAYERS if n >= n_layers else n


def settled_gpu_layers(header: GgufHeader, wanted: GpuLayers, context: ContextConfig) -> GpuLayers:
    """What `auto` comes to on this machine, as a user would write it."""
    layers = plan_gpu_layers(header, wanted, context)
    return "all" if layers == ALL_LAYERS else layers


def kv_bytes_per_token(header: GgufHeader) -> int:
    """Keys and values of one token over all layers, in f16."""
    return 2 * sum(header.n_head_kv) * (header.key_length + header.value_length)
