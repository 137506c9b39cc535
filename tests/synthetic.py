"""Real llama.cpp models of less than half a megabyte, written in a blink: random weights, any text tokenizes.

One architecture for every kind of memory. The KV cache of `llama` drops tokens again, and so does that of
`gemma3`, half of whose layers look back through a sliding window only. The state of `mamba` (recurrent) and
of `jamba` (hybrid: recurrent and attention layers) drops nothing; `lfm2` (hybrid too) keeps its last few
states where it is told to (`n_rs_seq`). The vocabulary is the same for all and depends on no seed:
`<unk>`, `<s>`, `</s>`, two chat markers, the 256 byte tokens, every printable ASCII character and some
merged pieces, tokenizer type SPM.

Weights depend on the seed and the tensor's name alone, so a model with more tokens or layers shares the rest.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TypedDict, Unpack

import gguf
import numpy as np
import numpy.typing as npt

UNK, BOS, EOS, IM_START, IM_END = range(5)
FIRST_BYTE = 5  # the token of byte b is FIRST_BYTE + b
SPACE = "\u2581"
MERGED = (
    "th",
    "he",
    "in",
    "er",
    "re",
    "on",
    "an",
    "at",
    "or",
    "en",
    "is",
    "it",
    "ou",
    "st",
    "nd",
    "to",
    "ing",
    "the",
    "and",
    "ion",
    "def",
    "ret",
    "urn",
    "self",
    SPACE + "t",
    SPACE + "a",
    SPACE + "th",
    SPACE + "the",
    SPACE + "in",
    SPACE + "s",
    SPACE * 2,
    SPACE * 4,
    "==",
    "!=",
    "->",
    "()",
)
CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n"
    "{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)

Weights = npt.NDArray[np.float32]


def base_vocabulary() -> list[tuple[str, gguf.TokenType, float]]:
    """(text, type, score) of every token, by id; longer pieces have better scores, so SPM merges them."""
    control, normal = gguf.TokenType.CONTROL, gguf.TokenType.NORMAL
    tokens = [("<unk>", gguf.TokenType.UNKNOWN, 0.0)]
    tokens += [(text, control, 0.0) for text in ("<s>", "</s>", "<|im_start|>", "<|im_end|>")]
    tokens += [(f"<0x{byte:02X}>", gguf.TokenType.BYTE, 0.0) for byte in range(256)]
    tokens += [(SPACE if code == 32 else chr(code), normal, -1000.0) for code in range(32, 127)]
    tokens += [(text, normal, 10.0 * len(text) - 100 - place) for place, text in enumerate(MERGED)]
    return tokens


N_VOCAB = len(base_vocabulary())
D_CONV, D_STATE, DT_RANK = 4, 8, 4  # of recurrent layers


class Head(TypedDict, total=False):
    """What every architecture can be given.

    `noise` adds that share of other random weights: against the same seed without noise, such a model
    picks the same greedy token in 0.86 of the positions for 0.02, 0.74 for 0.05, 0.5 for 0.1, 0.2 for
    0.2. `extra_tokens` appends padding tokens `[PAD123]` of type UNUSED, `token_texts` replaces the texts
    of single ids, `user_defined` makes text tokens of that type, `space_prefix` puts a blank before every text,
    `n_ctx` is the trained context length the file claims.
    """

    seed: int
    noise: float
    n_ctx: int
    n_layer: int
    n_embd: int
    extra_tokens: int
    token_texts: Mapping[int, str]
    user_defined: Sequence[int]
    space_prefix: bool
    chat_template: str | None


def write_llama(path: Path, *, n_head: int = 4, n_head_kv: int = 2, n_ff: int = 96, **head: Unpack[Head]) -> Path:
    """Writes an attention model to `path` and returns it."""
    weights = _begin(path, "llama", **head)
    writer, n_embd = weights.writer, weights.n_embd
    n_rot = n_embd // n_head
    writer.add_feed_forward_length(n_ff)
    writer.add_head_count(n_head)
    writer.add_head_count_kv(n_head_kv)
    writer.add_rope_dimension_count(n_rot)
    writer.add_rope_freq_base(10000.0)
    for layer in range(weights.n_layer):
        weights.add_attention(layer, n_head=n_head, n_head_kv=n_head_kv)
        weights.add_feed_forward(layer, n_ff)
    return _close(writer, path)


def write_mixture(path: Path, *, n_experts: int = 8, n_used: int = 2, n_ff: int = 96, **head: Unpack[Head]) -> Path:
    """Writes an attention model whose feed-forward layers are mixtures of experts, and returns `path`."""
    weights = _begin(path, "llama", **head)
    writer, n_embd = weights.writer, weights.n_embd
    writer.add_feed_forward_length(n_ff)
    writer.add_head_count(4)
    writer.add_head_count_kv(2)
    writer.add_rope_dimension_count(n_embd // 4)
    writer.add_rope_freq_base(10000.0)
    writer.add_expert_count(n_experts)
    writer.add_expert_used_count(n_used)
    for layer in range(weights.n_layer):
        block = f"blk.{layer}."
        weights.add_attention(layer, n_head=4, n_head_kv=2)
        weights.add_ones(block + "ffn_norm.weight", n_embd)
        weights.add(block + "ffn_gate_inp.weight", n_experts, n_embd, scale=2.0)
        weights.add(block + "ffn_gate_exps.weight", n_experts, n_ff, n_embd)
        weights.add(block + "ffn_up_exps.weight", n_experts, n_ff, n_embd)
        weights.add(block + "ffn_down_exps.weight", n_experts, n_embd, n_ff)
    return _close(writer, path)


def write_gemma3(path: Path, *, window: int = 8, **head: Unpack[Head]) -> Path:
    """Writes a model whose every other layer sees the last `window` tokens only, and returns `path`."""
    weights = _begin(path, "gemma3", **head)
    writer, n_embd, n_head, n_ff = weights.writer, weights.n_embd, 4, 96
    n_rot = n_embd // n_head
    writer.add_feed_forward_length(n_ff)
    writer.add_head_count(n_head)
    writer.add_head_count_kv(2)
    writer.add_key_length(n_rot)
    writer.add_value_length(n_rot)
    writer.add_rope_freq_base(10000.0)
    writer.add_sliding_window(window)
    writer.add_sliding_window_pattern(2)
    for layer in range(weights.n_layer):
        block = f"blk.{layer}."
        weights.add_attention(layer, n_head=n_head, n_head_kv=2, has_head_norms=True)
        weights.add_feed_forward(layer, n_ff)
        for branch in ("post_attention_norm", "post_ffw_norm"):  # embeddings are that much larger there
            weights.add_ones(f"{block}{branch}.weight", n_embd, scale=np.sqrt(n_embd))
    return _close(writer, path)


def write_mamba(path: Path, **head: Unpack[Head]) -> Path:
    """Writes a recurrent model to `path` and returns it."""
    weights = _begin(path, "mamba", **head)
    weights.writer.add_feed_forward_length(0)
    weights.writer.add_head_count(0)
    weights.add_state_sizes()
    for layer in range(weights.n_layer):
        weights.add_recurrent(layer)
    return _close(weights.writer, path)


def write_jamba(path: Path, **head: Unpack[Head]) -> Path:
    """Writes a model of recurrent and attention layers in turn to `path` and returns it."""
    weights = _begin(path, "jamba", **head)
    writer, n_ff = weights.writer, 96
    heads = [2 * (layer % 2) for layer in range(weights.n_layer)]
    writer.add_feed_forward_length(n_ff)
    writer.add_head_count(4)
    writer.add_head_count_kv(heads)
    weights.add_state_sizes()
    for layer, n_head_kv in enumerate(heads):
        if n_head_kv:
            weights.add_attention(layer, n_head=4, n_head_kv=n_head_kv)
        else:
            weights.add_recurrent(layer)
            for name, size in (("dt", DT_RANK), ("b", D_STATE), ("c", D_STATE)):
                weights.add_ones(f"blk.{layer}.ssm_{name}_norm.weight", size)
        weights.add_feed_forward(layer, n_ff)
    return _close(writer, path)


def write_lfm2(path: Path, **head: Unpack[Head]) -> Path:
    """Writes a model of short convolutions and attention layers in turn to `path` and returns it."""
    weights = _begin(path, "lfm2", output_norm="token_embd_norm.weight", **head)
    writer, n_embd, n_ff, n_conv = weights.writer, weights.n_embd, 96, 3
    heads = [2 * (layer % 2) for layer in range(weights.n_layer)]
    writer.add_feed_forward_length(n_ff)
    writer.add_head_count(4)
    writer.add_head_count_kv(heads)
    writer.add_rope_freq_base(10000.0)
    writer.add_shortconv_l_cache(n_conv)
    for layer, n_head_kv in enumerate(heads):
        block = f"blk.{layer}."
        if n_head_kv:
            weights.add_attention(layer, n_head=4, n_head_kv=n_head_kv, has_head_norms=True)
        else:
            weights.add_ones(block + "attn_norm.weight", n_embd)
            weights.add(block + "shortconv.in_proj.weight", 3 * n_embd, n_embd, scale=1.5)
            weights.add(block + "shortconv.conv.weight", n_embd, n_conv)
            weights.add(block + "shortconv.out_proj.weight", n_embd, n_embd, scale=1.5)
        weights.add_feed_forward(layer, n_ff)
    return _close(writer, path)


class _Weights:
    """Adds seeded random tensors to a GGUF writer."""

    def __init__(self, writer: gguf.GGUFWriter, seed: int, noise: float, *, n_layer: int, n_embd: int) -> None:
        self.writer, self.seed, self.noise = writer, seed, noise
        self.n_layer, self.n_embd = n_layer, n_embd

    def random(self, name: str, *shape: int) -> Weights:
        """Normal numbers of variance 1; a longer first dimension keeps the rows before."""
        key = zlib.crc32(name.encode())
        values = np.random.default_rng([self.seed, key]).standard_normal(shape, dtype=np.float32)
        if self.noise:
            other = np.random.default_rng([self.seed, key, 1]).standard_normal(shape, dtype=np.float32)
            values += np.float32(self.noise) * other
        return values

    def add(self, name: str, *shape: int, scale: float = 1.0) -> None:
        """A matrix (or several) that keeps the variance of its input at `scale` squared; a vector of that deviation."""
        fan_in = shape[-1] if len(shape) > 1 else 1
        self.writer.add_tensor(name, np.float32(scale / np.sqrt(fan_in)) * self.random(name, *shape))

    def add_ones(self, name: str, size: int, *, scale: float = 1.0) -> None:
        self.writer.add_tensor(name, np.full(size, scale, np.float32))

    def add_attention(self, layer: int, *, n_head: int, n_head_kv: int, has_head_norms: bool = False) -> None:
        block, n_embd = f"blk.{layer}.", self.n_embd
        n_rot = n_embd // n_head
        self.add_ones(block + "attn_norm.weight", n_embd)
        self.add(block + "attn_q.weight", n_head * n_rot, n_embd, scale=1.5)
        self.add(block + "attn_k.weight", n_head_kv * n_rot, n_embd, scale=1.5)
        self.add(block + "attn_v.weight", n_head_kv * n_rot, n_embd, scale=1.5)
        self.add(block + "attn_output.weight", n_embd, n_head * n_rot, scale=1.5)
        if has_head_norms:
            self.add_ones(block + "attn_q_norm.weight", n_rot, scale=1.5)
            self.add_ones(block + "attn_k_norm.weight", n_rot, scale=1.5)

    def add_feed_forward(self, layer: int, n_ff: int) -> None:
        block, n_embd = f"blk.{layer}.", self.n_embd
        self.add_ones(block + "ffn_norm.weight", n_embd)
        self.add(block + "ffn_gate.weight", n_ff, n_embd)
        self.add(block + "ffn_up.weight", n_ff, n_embd)
        self.add(block + "ffn_down.weight", n_embd, n_ff)

    def add_state_sizes(self) -> None:
        self.writer.add_ssm_conv_kernel(D_CONV)
        self.writer.add_ssm_inner_size(2 * self.n_embd)
        self.writer.add_ssm_state_size(D_STATE)
        self.writer.add_ssm_time_step_rank(DT_RANK)

    def add_recurrent(self, layer: int) -> None:
        block, n_embd, d_inner = f"blk.{layer}.", self.n_embd, 2 * self.n_embd
        self.add_ones(block + "attn_norm.weight", n_embd)
        self.add(block + "ssm_in.weight", 2 * d_inner, n_embd, scale=1.5)
        self.add(block + "ssm_conv1d.weight", d_inner, D_CONV)
        self.add(block + "ssm_conv1d.bias", d_inner, scale=0.1)
        self.add(block + "ssm_x.weight", DT_RANK + 2 * D_STATE, d_inner, scale=1.5)
        self.add(block + "ssm_dt.weight", d_inner, DT_RANK)
        self.add(block + "ssm_dt.bias", d_inner, scale=0.1)
        decay = -np.tile(np.arange(1, D_STATE + 1, dtype=np.float32) / 4, (d_inner, 1))
        self.writer.add_tensor(block + "ssm_a", decay)
        self.add_ones(block + "ssm_d", d_inner)
        self.add(block + "ssm_out.weight", n_embd, d_inner, scale=1.5)

    def add_ends(self, n_vocab: int, output_norm: str) -> None:
        """Embedding, final norm and output layer; logits have a deviation of 3, special tokens are rare."""
        self.writer.add_tensor("token_embd.weight", self.random("token_embd.weight", n_vocab, self.n_embd))
        self.add_ones(output_norm, self.n_embd)
        output = np.float32(3 / np.sqrt(self.n_embd)) * self.random("output.weight", n_vocab, self.n_embd)
        output[: IM_END + 1] *= np.float32(0.5)
        output[N_VOCAB:] *= np.float32(0.1)
        self.writer.add_tensor("output.weight", output)


def _begin(
    path: Path,
    architecture: str,
    *,
    output_norm: str = "output_norm.weight",
    seed: int = 0,
    noise: float = 0.0,
    n_ctx: int = 4096,
    n_layer: int = 2,
    n_embd: int = 64,
    extra_tokens: int = 0,
    token_texts: Mapping[int, str] | None = None,
    user_defined: Sequence[int] = (),
    space_prefix: bool = False,
    chat_template: str | None = CHAT_TEMPLATE,
) -> _Weights:
    """A file with all that does not depend on the architecture: sizes, tokenizer, embedding and output layer."""
    path.parent.mkdir(parents=True, exist_ok=True)
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_name(f"synthetic {architecture}")
    writer.add_context_length(n_ctx)
    writer.add_block_count(n_layer)
    writer.add_embedding_length(n_embd)
    writer.add_layer_norm_rms_eps(1e-5)
    weights = _Weights(writer, seed, noise, n_layer=n_layer, n_embd=n_embd)
    n_vocab = _add_vocabulary(writer, extra_tokens, token_texts or {}, user_defined)
    writer.add_add_space_prefix(space_prefix)
    if chat_template is not None:
        writer.add_chat_template(chat_template)
    weights.add_ends(n_vocab, output_norm)
    return weights


def _add_vocabulary(
    writer: gguf.GGUFWriter, extra_tokens: int, token_texts: Mapping[int, str], user_defined: Sequence[int]
) -> int:
    """Writes the tokenizer and returns the number of tokens."""
    tokens = base_vocabulary()
    tokens += [(f"[PAD{N_VOCAB + place}]", gguf.TokenType.UNUSED, 0.0) for place in range(extra_tokens)]
    writer.add_vocab_size(len(tokens))
    writer.add_tokenizer_model("llama")
    writer.add_token_list([token_texts.get(token, text) for token, (text, _, _) in enumerate(tokens)])
    writer.add_token_scores([score for _, _, score in tokens])
    user = gguf.TokenType.USER_DEFINED
    writer.add_token_types([user if token in user_defined else kind for token, (_, kind, _) in enumerate(tokens)])
    writer.add_unk_token_id(UNK)
    writer.add_bos_token_id(BOS)
    writer.add_eos_token_id(EOS)
    writer.add_eot_token_id(IM_END)
    writer.add_add_bos_token(True)
    writer.add_add_eos_token(False)
    return len(tokens)


def _close(writer: gguf.GGUFWriter, path: Path) -> Path:
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
