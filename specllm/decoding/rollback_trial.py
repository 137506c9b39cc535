"""Tries out whether a model takes tokens back without a trace, and what that costs.

Only the `LanguageModel` protocol and a clock. Twelve tokens in five forwards: a prefix, a block of which one token is
kept, and a token behind it; then the same text without the detour.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from time import perf_counter

import numpy as np

from specllm.decoding.protocols import LanguageModel

N_TRIAL_TOKENS = 5  # in the cache at most

# Of the logits' own deviation. Other widths compute other sums (0.05 with real models, facts of llama.cpp's kernels);
# a token too many or too few, or a state of another text, moves the logits by about their deviation.
LARGEST_DEVIATION = 0.25


@dataclass(frozen=True, slots=True)
class RollbackTrial:
    deviation: float  # root mean square of what the logits are off, in deviations of the logits
    rejection_s: float  # what taking the rejected tokens of one block back took

    @property
    def is_exact(self) -> bool:
        return self.deviation <= LARGEST_DEVIATION


def try_rollback(model: LanguageModel, clock: Callable[[], float] = perf_counter) -> RollbackTrial:
    """Rejects two of three drafted tokens and compares what follows with a fresh prefill. Leaves the KV cache empty."""
    first, second, kept, wrong, worse, last = ((100 + 37 * i) % model.n_vocab for i in range(6))
    model.rollback(0)
    model.forward([first, second], logits="none")
    model.forward([kept, wrong, worse])
    started = clock()
    model.rollback(3)
    rejection_s = clock() - started
    rolled_back = model.forward([last])[0].astype(np.float64)
    model.rollback(0)
    model.forward([first, second, kept], logits="none")
    fresh = model.forward([last])[0].astype(np.float64)
    model.rollback(0)
    can_be_said = np.isfinite(fresh)  # a draft model's vocabulary may be trimmed
    if not can_be_said.any():  # a damaged model computes no numbers at all
        return RollbackTrial(np.inf, rejection_s)
    rolled_back, fresh = rolled_back[can_be_said], fresh[can_be_said]
    deviation = np.sqrt(np.mean((rolled_back - fresh) ** 2)) / max(float(fresh.std()), 1e-9)
    return RollbackTrial(float(deviation), rejection_s)
