"""A child process of test_models.py: `python -m tests.kernels.run_model MODEL OUT SET INDEPENDENT`.

Forwards the same tokens in blocks of several widths, with each of SETTINGS, behind prefixes of several lengths, and writes the
logits: an array (prefixes, settings, widths, ROWS, n_vocab). SET is the expected instruction set, and INDEPENDENT
(0 or 1) whether the model must know that its rows are independent of the width.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

from specllm.config import ContextConfig, KvType
from specllm.runtime.kernels import put_in_place
from specllm.runtime.llama import LlamaModel, Weights

WIDTHS = (1, 2, 3, 4, 5, 7, 8, 11, 13, 16)
SETTINGS: tuple[tuple[int, KvType], ...] = (
    (1, "f16"),
    (2, "f16"),
    (1, "q8_0"),
    (2, "q8_0"),
)  # threads, type of the KV cache
PREFIXES = (1, 70, 300)  # 300: the rows see cells of two chunks
ROWS = 16


def main() -> None:
    model, out, expected = Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3]
    weights = Weights(model)
    assert put_in_place().instruction_set == expected, put_in_place()
    tokens = [5 + (7 * i * i) % 250 for i in range(max(PREFIXES) + ROWS)]
    readings = []
    for threads, kv_type in SETTINGS:
        language_model = LlamaModel(weights, ContextConfig(n_ctx=512, threads=threads, kv_type=kv_type))
        for prefix in PREFIXES:
            language_model.rollback(0)
            language_model.forward(tokens[:prefix], logits="none")
            for width in WIDTHS:
                rows = [
                    language_model.forward(tokens[prefix + i : prefix + min(i + width, ROWS)]).copy()
                    for i in range(0, ROWS, width)
                ]
                readings.append(np.concatenate(rows))
                language_model.rollback(prefix)
        assert language_model.is_width_independent == (sys.argv[4] == "1")
        language_model.close()
    shape = (len(SETTINGS), len(PREFIXES), len(WIDTHS), ROWS, -1)
    np.save(out, np.stack(readings).reshape(shape).swapaxes(0, 1))


if __name__ == "__main__":
    main()
