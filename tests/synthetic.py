"""Real llama.cpp models of less than half a megabyte, written in a blink: random weights, any text tokenizes.

Two architectures: `llama` (attention; the KV cache can drop tokens again) and `mamba` (recurrent;
dropping a part of a sequence fails there). The vocabulary is the same for both and depends on no seed:
`<unk>`, `<s>`, `</s>`, two chat markers, the 256 byte tokens, every printable ASCII character and some
merged pieces, tokenizer type SPM.

Weights depend on the seed and the tensor's name alone, so a model with more tokens or layers shares the rest.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from pathlib import Path

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


def write_llama(
    path: Path,
    *,
    seed: int = 0,
    noise: float = 0.0,
    n_ctx: int = 4096,
    n_layer: int = 2,
    n_embd: int = 64,
    n_head: int = 4,
    n_head_kv: int = 2,
    n_ff: int = 96,
    extra_tokens: int = 0,
    token_texts: Mapping[int, str] | None = None,
    chat_template: str | None = CHAT_TEMPLATE,
) -> Path:
    """Writes an attention model to `path` and returns it.

    `noise` adds that share of other random weights: against the same seed without noise, such a model
    picks the same greedy token in 0.86 of the positions for 0.02, 0.74 for 0.05, 0.5 for 0.1, 0.2 for
    0.2. `extra_tokens` appends padding tokens `[PAD123]` of type UNUSED, `token_texts` replaces the texts
    of single ids, `n_ctx` is the trained context length the file claims.
    """
    writer = _writer(path, "llama", n_ctx=n_ctx, n_layer=n_layer, n_embd=n_embd)
    head = n_embd // n_head
    writer.add_feed_forward_length(n_ff)
    writer.add_head_count(n_head)
    writer.add_head_count_kv(n_head_kv)
    writer.add_rope_dimension_count(head)
    writer.add_rope_freq_base(10000.0)
    n_vocab = _add_vocabulary(writer, extra_tokens, token_texts or {}, chat_template)
    weights = _Weights(writer, seed, noise)
    weights.add_ends(n_vocab, n_embd)
    for layer in range(n_layer):
        block = f"blk.{layer}."
        weights.add_ones(block + "attn_norm.weight", n_embd)
        weights.add(block + "attn_q.weight", n_head * head, n_embd, scale=1.5)
        weights.add(block + "attn_k.weight", n_head_kv * head, n_embd, scale=1.5)
        weights.add(block + "attn_v.weight", n_head_kv * head, n_embd, scale=1.5)
        weights.add(block + "attn_output.weight", n_embd, n_head * head, scale=1.5)
        weights.add_ones(block + "ffn_norm.weight", n_embd)
        weights.add(block + "ffn_gate.weight", n_ff, n_embd)
        weights.add(block + "ffn_up.weight", n_ff, n_embd)
        weights.add(block + "ffn_down.weight", n_embd, n_ff)
    return _close(writer, path)


def write_mamba(
    path: Path,
    *,
    seed: int = 0,
    noise: float = 0.0,
    n_ctx: int = 4096,
    n_layer: int = 2,
    n_embd: int = 64,
    extra_tokens: int = 0,
    token_texts: Mapping[int, str] | None = None,
    chat_template: str | None = CHAT_TEMPLATE,
) -> Path:
    """Writes a recurrent model to `path` and returns it; the options are those of `write_llama`."""
    writer = _writer(path, "mamba", n_ctx=n_ctx, n_layer=n_layer, n_embd=n_embd)
    d_conv, d_inner, d_state, dt_rank = 4, 2 * n_embd, 8, 4
    writer.add_feed_forward_length(0)
    writer.add_head_count(0)
    writer.add_ssm_conv_kernel(d_conv)
    writer.add_ssm_inner_size(d_inner)
    writer.add_ssm_state_size(d_state)
    writer.add_ssm_time_step_rank(dt_rank)
    n_vocab = _add_vocabulary(writer, extra_tokens, token_texts or {}, chat_template)
    weights = _Weights(writer, seed, noise)
    weights.add_ends(n_vocab, n_embd)
    decay = -np.tile(np.arange(1, d_state + 1, dtype=np.float32) / 4, (d_inner, 1))
    for layer in range(n_layer):
        block = f"blk.{layer}."
        weights.add_ones(block + "attn_norm.weight", n_embd)
        weights.add(block + "ssm_in.weight", 2 * d_inner, n_embd, scale=1.5)
        weights.add(block + "ssm_conv1d.weight", d_inner, d_conv)
        weights.add(block + "ssm_conv1d.bias", d_inner, scale=0.1)
        weights.add(block + "ssm_x.weight", dt_rank + 2 * d_state, d_inner, scale=1.5)
        weights.add(block + "ssm_dt.weight", d_inner, dt_rank)
        weights.add(block + "ssm_dt.bias", d_inner, scale=0.1)
        writer.add_tensor(block + "ssm_a", decay)
        weights.add_ones(block + "ssm_d", d_inner)
        weights.add(block + "ssm_out.weight", n_embd, d_inner, scale=1.5)
    return _close(writer, path)


class _Weights:
    """Adds seeded random tensors to a GGUF writer."""

    def __init__(self, writer: gguf.GGUFWriter, seed: int, noise: float) -> None:
        self.writer, self.seed, self.noise = writer, seed, noise

    def random(self, name: str, *shape: int) -> Weights:
        """Normal numbers of variance 1; a longer first dimension keeps the rows before."""
        key = zlib.crc32(name.encode())
        values = np.random.default_rng([self.seed, key]).standard_normal(shape, dtype=np.float32)
        if self.noise:
            other = np.random.default_rng([self.seed, key, 1]).standard_normal(shape, dtype=np.float32)
            values += np.float32(self.noise) * other
        return values

    def add(self, name: str, *shape: int, scale: float = 1.0) -> None:
        """A matrix that keeps the variance of its input at `scale` squared; a vector of that deviation."""
        fan_in = shape[1] if len(shape) == 2 else 1
        self.writer.add_tensor(name, np.float32(scale / np.sqrt(fan_in)) * self.random(name, *shape))

    def add_ones(self, name: str, size: int) -> None:
        self.writer.add_tensor(name, np.ones(size, np.float32))

    def add_ends(self, n_vocab: int, n_embd: int) -> None:
        """Embedding, final norm and output layer; logits have a deviation of 3, special tokens are rare."""
        self.writer.add_tensor("token_embd.weight", self.random("token_embd.weight", n_vocab, n_embd))
        self.add_ones("output_norm.weight", n_embd)
        output = np.float32(3 / np.sqrt(n_embd)) * self.random("output.weight", n_vocab, n_embd)
        output[: IM_END + 1] *= np.float32(0.5)
        output[N_VOCAB:] *= np.float32(0.1)
        self.writer.add_tensor("output.weight", output)


def _writer(path: Path, architecture: str, *, n_ctx: int, n_layer: int, n_embd: int) -> gguf.GGUFWriter:
    path.parent.mkdir(parents=True, exist_ok=True)
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_name(f"synthetic {architecture}")
    writer.add_context_length(n_ctx)
    writer.add_block_count(n_layer)
    writer.add_embedding_length(n_embd)
    writer.add_layer_norm_rms_eps(1e-5)
    return writer


def _add_vocabulary(
    writer: gguf.GGUFWriter, extra_tokens: int, token_texts: Mapping[int, str], chat_template: str | None
) -> int:
    """Writes the tokenizer and returns the number of tokens."""
    tokens = base_vocabulary()
    tokens += [(f"[PAD{N_VOCAB + place}]", gguf.TokenType.UNUSED, 0.0) for place in range(extra_tokens)]
    writer.add_vocab_size(len(tokens))
    writer.add_tokenizer_model("llama")
    writer.add_token_list([token_texts.get(token, text) for token, (text, _, _) in enumerate(tokens)])
    writer.add_token_scores([score for _, _, score in tokens])
    writer.add_token_types([kind for _, kind, _ in tokens])
    writer.add_unk_token_id(UNK)
    writer.add_bos_token_id(BOS)
    writer.add_eos_token_id(EOS)
    writer.add_eot_token_id(IM_END)
    writer.add_add_bos_token(True)
    writer.add_add_eos_token(False)
    writer.add_add_space_prefix(False)
    if chat_template is not None:
        writer.add_chat_template(chat_template)
    return len(tokens)


def _close(writer: gguf.GGUFWriter, path: Path) -> Path:
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
