#!/usr/bin/env python3
"""Whether specllm's kernels predict text as well as ggml's own: the negative log likelihood of the same tokens, paired.

    scripts/compare_nll.py MODEL FILE.. [--tokens 20000] [--window 512]

Every file is read in windows of so many tokens, each behind an empty cache; the first quarter of a window is not counted. Prints
the mean for each arm in nats a token, and the mean difference with its 95 % interval over windows (tokens of one window depend on
each other). Exit code 3 where the interval lies above zero: the kernels are worse.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import numpy.typing as npt

Z = 1.96  # of a 95 % interval


def score(path: Path, files: list[Path], n_tokens: int, window: int) -> npt.NDArray[np.float64]:
    """Nats by window and counted token."""
    from specllm.config import ContextConfig
    from specllm.runtime.llama import LlamaModel, Weights

    weights = Weights(path)
    model = LlamaModel(weights, ContextConfig(n_ctx=window, n_outputs_max=window))
    each = n_tokens // len(files) // window * window
    rows = []
    for file in files:
        text = file.read_text(encoding="utf-8")
        tokens = weights.vocab.tokenize(text, adds_special=False, parses_special=False)[:each]
        for begin in range(0, len(tokens) - window + 1, window):
            part = np.array(tokens[begin : begin + window])
            model.rollback(0)
            logits = model.forward(part.tolist()).astype(np.float64)[window // 4 : -1]
            highest = logits.max(axis=1)
            total = highest + np.log(np.exp(logits - highest[:, None]).sum(axis=1))
            rows.append(total - logits[np.arange(len(logits)), part[window // 4 + 1 :]])
    return np.array(rows)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path, help="a GGUF file")
    parser.add_argument("files", type=Path, nargs="+")
    parser.add_argument("--tokens", type=int, default=20_000, help="in all files together, in equal shares")
    parser.add_argument("--window", type=int, default=512)
    parser.add_argument("--child", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        np.save(options.child, score(options.model, options.files, options.tokens, options.window))
        return 0
    found = {}
    with tempfile.TemporaryDirectory() as folder:
        for arm in ("off", "on"):
            out = Path(folder, f"{arm}.npy")
            command = [sys.executable, __file__, *sys.argv[1:], "--child", str(out)]
            subprocess.run(command, env={**os.environ, "SPECLLM_KERNELS": arm}, check=True)
            found[arm] = np.load(out)
    off, on = found["off"], found["on"]
    differences = (on - off).mean(axis=1)
    middle, half = differences.mean(), Z * differences.std(ddof=1) / np.sqrt(len(differences))
    print(
        f"{off.size:,} tokens in {len(off)} windows: ggml's own {off.mean():.5f}, specllm's {on.mean():.5f} nats a token"
    )
    print(f"difference {middle:+.5f} ± {half:.5f}; a token's differs by {np.abs(on - off).mean():.4f} in the mean")
    return 3 if middle - half > 0 else 0


if __name__ == "__main__":
    sys.exit(main())
