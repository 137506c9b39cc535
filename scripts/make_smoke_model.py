#!/usr/bin/env python3
"""Writes specllm/runtime/smoke.gguf, the tiny quantized model of the smoke decode; the same bytes everywhere.

One layer, 256 wide: every row is one super-block of ggml's quantized kernels, and 288 tokens and 256 rows are
whole tiles of its AMX kernels. Needs the gguf package, which the development tools bring.
"""

from __future__ import annotations

import argparse
import random
from pathlib import Path

import gguf
import numpy as np
import numpy.typing as npt

SMOKE_MODEL = Path(__file__).parents[1] / "specllm" / "runtime" / "smoke.gguf"
WIDTH, N_HEAD, N_HEAD_KV, N_CTX = 256, 4, 2, 64
Q4_0, Q8_0 = gguf.GGMLQuantizationType.Q4_0, gguf.GGMLQuantizationType.Q8_0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("path", nargs="?", type=Path, default=SMOKE_MODEL, help="where to write it")
    print(write_smoke_model(parser.parse_args().path))


def write_smoke_model(path: Path) -> Path:
    """Writes the model to `path` and returns it."""
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_name("specllm smoke")
    writer.add_context_length(N_CTX)
    writer.add_block_count(1)
    writer.add_embedding_length(WIDTH)
    writer.add_feed_forward_length(WIDTH)
    writer.add_head_count(N_HEAD)
    writer.add_head_count_kv(N_HEAD_KV)
    writer.add_rope_dimension_count(WIDTH // N_HEAD)
    writer.add_layer_norm_rms_eps(1e-5)
    n_vocab = _add_vocabulary(writer)
    width_kv = WIDTH // N_HEAD * N_HEAD_KV
    shapes = {
        "token_embd": n_vocab,
        "output": n_vocab,
        "blk.0.attn_q": WIDTH,
        "blk.0.attn_k": width_kv,
        "blk.0.attn_v": width_kv,
        "blk.0.attn_output": WIDTH,
        "blk.0.ffn_gate": WIDTH,
        "blk.0.ffn_up": WIDTH,
        "blk.0.ffn_down": WIDTH,
    }
    for name, n_rows in shapes.items():
        kind = Q8_0 if name == "output" else Q4_0
        data = gguf.quants.quantize(_weights(name, n_rows), kind)
        writer.add_tensor(f"{name}.weight", data, raw_dtype=kind)
    for name in ("output_norm", "blk.0.attn_norm", "blk.0.ffn_norm"):
        writer.add_tensor(f"{name}.weight", np.ones(WIDTH, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _weights(name: str, n_rows: int) -> npt.NDArray[np.float32]:
    """Uniform numbers of variance 1/WIDTH, from `random`: its sequence is promised to stay."""
    source = random.Random(name)
    numbers = [source.random() for _ in range(n_rows * WIDTH)]
    scale = np.float32(np.sqrt(12 / WIDTH))
    return (np.array(numbers, np.float64).astype(np.float32).reshape(n_rows, WIDTH) - np.float32(0.5)) * scale


def _add_vocabulary(writer: gguf.GGUFWriter) -> int:
    """288 tokens of type SPM: three special ones, 256 bytes, and padding up to whole tiles."""
    kinds = gguf.TokenType
    tokens = [("<unk>", kinds.UNKNOWN), ("<s>", kinds.CONTROL), ("</s>", kinds.CONTROL)]
    tokens += [(f"<0x{byte:02X}>", kinds.BYTE) for byte in range(256)]
    tokens += [(f"[PAD{place}]", kinds.UNUSED) for place in range(288 - len(tokens))]
    writer.add_tokenizer_model("llama")
    writer.add_token_list([text for text, _ in tokens])
    writer.add_token_scores([0.0] * len(tokens))
    writer.add_token_types([kind for _, kind in tokens])
    writer.add_unk_token_id(0)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    return len(tokens)


if __name__ == "__main__":
    main()
