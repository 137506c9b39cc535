"""How wide a block may be and still compute, bit for bit, what single tokens do.

The same text to the last near tie needs the same logits. Where a block's differ from a single token's, decoding the doubtful
position again alone does not mend it: keys and values of the tokens accepted before came from blocks too, and over them the
single token's logits are off by as much (Qwen2.5-Coder-1.5B Q4_K_M, 48 positions: the gap between the two best moves by 0.06 in
the middle and 0.26 at most, against 0.08 and 0.36 in the block itself). There is no little error to stay below: activations
are rounded to 8 bits between layers, and one rounding that falls the other way changes everything behind it. But blocks that
the same kernels compute are equal in every bit, so those are found out. With that model on two AVX-512 cores they have up to
three tokens: up to 256 cells of an f16 KV cache, whose attention kernel for single tokens is another one beyond, and with bf16
or q8_0 there too (tried at depth 520).
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from time import perf_counter

from specllm.decoding.protocols import LanguageModel, Token

# Widths that are tried, each behind the one before: kernels change at such numbers.
STEPS = (1, 2, 3, 4, 8, 16, 32, 64, 128)
# Attention is computed over so many cells of the KV cache at a time, and its kernels change at powers of two of it.
CELLS = 256


def exact_width(target: LanguageModel, token: Token, widths: Sequence[int], known: int = 1) -> int:
    """The last of the ascending `widths` whose block, behind what is cached now, gives the logits of single tokens in every bit.

    `known` is such a width; none of `widths` behind the first one that fails is tried. A block is `token` again and again: then
    a mixture of experts sends all of its rows to the same ones, where their number chooses the kernel. Equal rows one behind
    the other prove equal keys and values. Leaves the KV cache as it was.
    """
    n_past = target.n_past
    for width in widths:
        expected = _digests(target, token, width, by=known)
        target.rollback(n_past)
        found = _digests(target, token, width, by=width)
        target.rollback(n_past)
        if found != expected:
            break
        known = width
    return known


def _digests(target: LanguageModel, token: Token, n: int, *, by: int) -> list[bytes]:
    """Of every row of logits of `n` tokens that are fed in blocks of `by`."""
    digests: list[bytes] = []
    while len(digests) < n:
        rows = target.forward([token] * min(by, n - len(digests)))
        digests += [hashlib.blake2b(row.tobytes(), digest_size=16).digest() for row in rows]
    return digests


@dataclass(slots=True)
class _Depth:
    width: int = 1  # exact, as far as was tried
    is_final: bool = False  # the next step is not


class ExactWidths:
    """What was found out about a target, by depth. A width between two exact steps is taken to be exact too."""

    def __init__(self, target: LanguageModel) -> None:
        self._target = target
        self._by_depth: dict[int, _Depth] = {}  # up to so many cells
        self.seconds = 0.0  # that finding out has taken

    def known(self, wanted: int) -> int | None:
        """How many of `wanted` tokens a block may have now; None where that was not measured yet at this depth.

        No block reaches over the end of a depth. A target that is independent of widths has no limit and needs no measuring.
        """
        if self._target.is_width_independent:
            return wanted
        end, steps = self._steps(wanted)
        depth = self._by_depth.get(end, _Depth())
        if depth.width < steps[-1] and not depth.is_final:
            return None
        return min(wanted, depth.width, end - self._target.n_past)

    def of(self, wanted: int, token: Token) -> int:
        """The same, measured now with `token` where it is not known: a few forwards."""
        known = self.known(wanted)
        if known is not None:
            return known
        end, steps = self._steps(wanted)
        depth = self._by_depth.setdefault(end, _Depth())
        untried = [width for width in steps if width > depth.width]
        started = perf_counter()
        depth.width = exact_width(self._target, token, untried, depth.width)
        self.seconds += perf_counter() - started
        depth.is_final = depth.width < steps[-1]
        return min(wanted, depth.width)

    def summary(self) -> str:
        """`blocks of at most 3 tokens`, or what else is known."""
        if self._target.is_width_independent:
            return "blocks of any length"
        widths = {depth.width for depth in self._by_depth.values() if depth.width > 1 or depth.is_final}
        if not widths:
            return "nothing measured"
        least, most = min(widths), max(widths)
        if most == 1:
            return "no blocks: none computes what single tokens do here"
        return f"blocks of at most {least} to {most} tokens" if least < most else f"blocks of at most {most} tokens"

    def as_dict(self) -> dict[str, int]:
        """Tokens that a block may have, by the cells up to which that holds."""
        return {str(end): depth.width for end, depth in sorted(self._by_depth.items())}

    def _steps(self, wanted: int) -> tuple[int, list[int]]:
        """The cells at which this depth ends, and the steps that have to be tried for `wanted` tokens and have room."""
        end = CELLS
        while end < self._target.n_past + 1:
            end *= 2
        room = min(end, self._target.n_ctx) - self._target.n_past
        enough = next((step for step in STEPS if step >= wanted), STEPS[-1])
        return end, [step for step in STEPS if step <= min(enough, max(room, 1))]
