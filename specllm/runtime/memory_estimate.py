"""What a model will take of the memory, from its header alone, before anything is loaded.

Weights, KV cache and logits follow from llama.cpp's code. The compute buffer is the peak of its graph
allocator; the formulas below are fits to what llama.cpp of llama-cpp-python 0.3.36 logs on a CPU for
Qwen2.5 1.5B and 0.5B, SmolLM2 135M and Gemma 3 270M, contexts of 512 to 32768 and 32 to 2048 tokens at
once: within 10 %, mostly 3 % (measured 2026-11-29).
"""

from __future__ import annotations

import platform
import re
from collections.abc import Mapping, Sequence, Sized
from dataclasses import dataclass, replace
from typing import Protocol

from specllm.config import KvType
from specllm.runtime import kernels
from specllm.runtime.build_flags import built_extensions
from specllm.runtime.pages import CAN_DROP_PAGES

KV_BYTES = {  # per number: bytes of a block / numbers in it (ggml's type traits)
    "f32": 4.0,
    "f16": 2.0,
    "bf16": 2.0,
    "q8_0": 34 / 32,
    "q5_1": 24 / 32,
    "q5_0": 22 / 32,
    "q4_1": 20 / 32,
    "q4_0": 18 / 32,
}

# States that llama.cpp keeps beside the newest where the architecture allows (`llm_arch_supports_rs_rollback`): for the
# rejections in blocks of up to 8 tokens, a good step of V on most processors. Each takes the memory of a whole state
# (50 MB for 9B models of 2026); what is further back is had from a snapshot.
N_KEPT_STATES = 7
KEEPS_STATES = frozenset(
    {"bailingmoe3", "deepseek4", "glm5-next", "kimi-k3", "lfm2", "lfm2moe", "nemotron_h", "nemotron_h_moe", "qwen35",
     "qwen35moe", "qwen4exp"}
)  # fmt: skip
CONTEXT_STEP = 256  # tokens: llama.cpp pads contexts to it
FLOAT = 4  # bytes

# Types whose matrices ggml copies into another order for the processor's wide instructions, beside the mapped
# file (ggml_repack_get_optimal_repack_type in ggml-cpu/repack.cpp).
REPACKED_AVX2 = frozenset({"Q4_0", "Q4_K", "IQ4_NL", "MXFP4"})
REPACKED_AVX512 = REPACKED_AVX2 | {"Q2_K"}
# By specllm's kernels, and what a byte of the file becomes (strip and block bytes in kernels/native/*.h).
PACKED_BY_KERNELS = {
    "F32": 1.0, "F16": 1.0, "Q4_0": 1.0, "Q5_0": 1.0, "Q8_0": 1.0, "IQ4_NL": 1.0, "Q6_K": 1.0,
    "Q4_K": 2368 / (16 * 144), "Q5_K": 2880 / (16 * 176), "IQ4_XS": 2208 / (16 * 136),
}  # fmt: skip
REPACKED_OWN = frozenset(PACKED_BY_KERNELS)
# Floats only where every architecture multiplies with the whole matrix (is_used_whole in kernels/native/plugin.cpp).
_WHOLE = re.compile(
    r"(blk\.\d+\.(attn_(q|k|v|qkv|output)|ffn_(gate|up|down|gate_inp|(gate|up|down)_exps))|output|token_embd)\.weight"
)
REPACKED_ARM = frozenset({"Q4_0", "Q4_K", "Q5_K", "Q6_K", "IQ4_NL", "MXFP4", "Q8_0"})


class Tensor(Protocol):
    @property
    def name(self) -> str: ...
    @property
    def dims(self) -> tuple[int, ...]: ...
    @property
    def type(self) -> str: ...
    @property
    def n_bytes(self) -> int: ...


class Header(Protocol):
    """The part of `models.gguf_header.GgufHeader` that memory depends on."""

    @property
    def architecture(self) -> str: ...
    @property
    def metadata(self) -> Mapping[str, object]: ...
    @property
    def tensors(self) -> Sequence[Tensor]: ...
    @property
    def weight_bytes(self) -> int: ...
    @property
    def n_layer(self) -> int: ...
    @property
    def n_embd(self) -> int: ...
    @property
    def n_ff(self) -> int: ...
    @property
    def n_head(self) -> int: ...
    @property
    def n_head_kv(self) -> tuple[int, ...]: ...
    @property
    def key_length(self) -> int: ...
    @property
    def value_length(self) -> int: ...
    @property
    def n_vocab(self) -> int: ...
    @property
    def sliding_window(self) -> int: ...
    def number(self, key: str, default: int = 0) -> int: ...


@dataclass(frozen=True, kw_only=True, slots=True)
class MemoryEstimate:
    """Bytes by purpose."""

    weight_bytes: int  # the file's tensors, mapped or read
    repacked_bytes: int  # the second copy of some of them that ggml makes for the processor
    kv_bytes: int  # KV cache and recurrent states of one sequence
    compute_bytes: int  # intermediate results of one forward
    logits_bytes: int  # the output buffer, once the widest forward ran
    vocabulary_bytes: int = 0  # tables of texts and merges
    looked_up_bytes: int = 0  # of the weights, a mapped table of which only the rows of tokens that occur are read

    @property
    def total_bytes(self) -> int:
        """Resident while generating; where mapped originals of repacked tensors are dropped, the copies take their place."""
        weights = self.weight_bytes - self.looked_up_bytes + (0 if CAN_DROP_PAGES else self.repacked_bytes)
        return weights + self.kv_bytes + self.compute_bytes + self.logits_bytes + self.vocabulary_bytes


def estimate(
    header: Header,
    *,
    n_ctx: int,
    kv_type: KvType = "f16",
    n_ubatch: int = 512,
    n_outputs_max: int = 1,
    has_flash_attention: bool = True,
    is_mapped: bool = True,
    repacked_types: frozenset[str] | None = None,
) -> MemoryEstimate:
    """The memory of a model on the CPU with one context of `n_ctx` tokens.

    `n_ubatch` is the tokens computed at once, `n_outputs_max` the rows of logits one forward may ask for.
    `repacked_types` are those of this processor unless given; give none for a model that a GPU holds.
    """
    n_cells = -(-n_ctx // CONTEXT_STEP) * CONTEXT_STEP
    width = min(n_ubatch, n_cells)
    types = repacked_types_here() if repacked_types is None else repacked_types
    return MemoryEstimate(
        weight_bytes=header.weight_bytes,
        repacked_bytes=_repacked_bytes(header, types),
        kv_bytes=_kv_bytes(header, n_cells, KV_BYTES[kv_type])
        + _recurrent_bytes(header, n_kept_states(n_outputs_max, width)),
        compute_bytes=_compute_bytes(header, n_cells, width, min(n_outputs_max, width), has_flash_attention)
        + (_rotation_bytes(header) if kv_type not in ("f32", "f16", "bf16") else 0),
        logits_bytes=n_outputs_max * header.n_vocab * FLOAT,
        vocabulary_bytes=_vocabulary_bytes(header),
        looked_up_bytes=_embedding_bytes(header) if is_mapped and not _is_tied(header) else 0,
    )


def n_kept_states(n_outputs_max: int, n_ubatch: int) -> int:
    """States to keep (`n_rs_seq`) where blocks have so many tokens; llama.cpp aborts where an ubatch holds no two more."""
    return max(0, min(N_KEPT_STATES, n_outputs_max - 1, n_ubatch - 2))


def split(header: Header, memory: MemoryEstimate, gpu_layers: int) -> tuple[int, int]:
    """(bytes in main memory, bytes on a GPU) with so many layers there; negative is all of them.

    The output layer counts as one. Embeddings and logits stay in main memory.
    """
    n_layers = header.n_layer + 1
    share = 1.0 if gpu_layers < 0 else min(1.0, gpu_layers / n_layers)
    if not share:
        return memory.total_bytes, 0
    embedding = _embedding_bytes(header)
    moved = int(share * (memory.weight_bytes - embedding))
    copied = embedding if share == 1 and _is_tied(header) else 0
    on_gpu = moved + copied + int(share * memory.kv_bytes) + memory.compute_bytes
    here = replace(
        memory,
        weight_bytes=memory.weight_bytes - moved,
        repacked_bytes=int((1 - share) * memory.repacked_bytes),
        kv_bytes=int((1 - share) * memory.kv_bytes),
        compute_bytes=memory.compute_bytes if share < 1 else 0,
    )
    return here.total_bytes, on_gpu


def repacked_types_here() -> frozenset[str]:
    """The tensor types that are repacked in this process."""
    return REPACKED_OWN if kernels.put_in_place().instruction_set else stock_repacked_types()


def stock_repacked_types() -> frozenset[str]:
    """The tensor types that the llama.cpp at hand repacks by itself."""
    if platform.machine().lower() in ("arm64", "aarch64"):
        return REPACKED_ARM
    extensions = built_extensions()
    if not extensions or "avx2" in extensions:  # not known: ggml's portable default is AVX2
        return REPACKED_AVX512 if "avx512f" in extensions else REPACKED_AVX2
    return frozenset()


def matrices(header: Header) -> list[Tensor]:
    """Those that are multiplied with: not the embedding, unless it is the output layer as well."""
    looked_up = set() if _is_tied(header) else {"token_embd.weight"}
    return [tensor for tensor in header.tensors if len(tensor.dims) > 1 and tensor.name not in looked_up]


def is_packed_by_kernels(tensor: Tensor) -> bool:
    """Whether specllm's kernels take this matrix."""
    return tensor.type in REPACKED_OWN and (tensor.type not in ("F32", "F16") or bool(_WHOLE.fullmatch(tensor.name)))


def _repacked_bytes(header: Header, types: frozenset[str]) -> int:
    if types == REPACKED_OWN:
        taken = filter(is_packed_by_kernels, matrices(header))
        return sum(int(tensor.n_bytes * PACKED_BY_KERNELS[tensor.type]) for tensor in taken)
    return sum(tensor.n_bytes for tensor in matrices(header) if tensor.type in types and tensor.dims[1] % 8 == 0)


def _is_tied(header: Header) -> bool:
    """Whether the embedding is the output layer as well."""
    return all(tensor.name != "output.weight" for tensor in header.tensors)


def _embedding_bytes(header: Header) -> int:
    return next((tensor.n_bytes for tensor in header.tensors if tensor.name == "token_embd.weight"), 0)


def _vocabulary_bytes(header: Header) -> int:
    """150 bytes for a text and as much for a merge: within 20 % of what the four models take (measured 2026-11-29)."""
    merges = header.metadata.get("tokenizer.ggml.merges", ())
    return 150 * (header.n_vocab + (len(merges) if isinstance(merges, Sized) else 0))


def _heads(header: Header) -> list[int]:
    """Key-value heads of every layer; 0 in a recurrent one."""
    interval = header.number("full_attention_interval", 1) or 1  # Qwen3-Next: the others are recurrent
    return [n if (layer + 1) % interval == 0 else 0 for layer, n in enumerate(header.n_head_kv)]


def _kv_bytes(header: Header, n_cells: int, number_bytes: float) -> int:
    return int(n_cells * sum(_heads(header)) * (header.key_length + header.value_length) * number_bytes)


def _rotation_bytes(header: Header) -> int:
    """Two square matrices that spread outliers before a quantized cache stores them (llama-kv-cache.cpp)."""
    return FLOAT * (header.key_length**2 + header.value_length**2)


def _recurrent_bytes(header: Header, n_kept: int) -> int:
    """States of the layers without attention (n_embd_r and n_embd_s in llama-hparams.cpp)."""
    n_layers = header.n_layer if header.architecture == "falcon-h1" else _heads(header).count(0)  # it has both in each
    n_states = 1 + (n_kept if header.architecture in KEEPS_STATES else 0)
    inner, state = header.number("ssm.inner_size"), header.number("ssm.state_size")
    groups, kernel = header.number("ssm.group_count"), header.number("ssm.conv_kernel")
    if rwkv := header.number("wkv.head_size"):
        numbers = header.n_embd * (header.number("token_shift_count", 2) + rwkv)
    elif short := header.number("shortconv.l_cache"):
        numbers = header.n_embd * (short - 1)
    elif delta := header.number("kda.head_dim"):
        numbers = header.n_head * delta * (3 * max(0, kernel - 1) + delta)
    else:
        numbers = max(0, kernel - 1) * (inner + 2 * groups * state) + inner * state
    return n_layers * n_states * numbers * FLOAT


def _compute_bytes(header: Header, n_cells: int, width: int, n_outputs: int, has_flash_attention: bool) -> int:
    """The largest of three moments: attention (without its flash form), feed-forward, output layer."""
    n_masks = 0 if not header.n_head else 2 if header.sliding_window else 1
    mask = n_masks * n_cells * (2 if has_flash_attention else FLOAT)
    n_ff = max(header.n_ff, header.number("expert_feed_forward_length") * header.number("expert_used_count"))
    n_wide = max(header.n_embd, header.n_head * header.key_length)
    feed_forward = mask + FLOAT * (3 * n_ff + 4 * header.n_embd)
    recurrent = FLOAT * 13 * header.number("ssm.inner_size") // 2
    attention = mask + FLOAT * (header.n_head * n_cells + 11 * n_wide // 2) if not has_flash_attention else 0
    per_output = FLOAT * (header.n_vocab + 2 * header.n_embd)
    return max(width * max(feed_forward, recurrent, attention), n_outputs * per_output)
