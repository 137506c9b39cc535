"""Makes the target say a text that is known beforehand, at the full cost of every forward and every pick.

So drafters can be measured on an output that the model itself would not write. What comes out says nothing about the model.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from specllm.decoding.protocols import Sampler, Token


class ForcedSampler:
    """Implements `protocols.Sampler`: the known token of the position, whatever the logits say.

    `inner` picks all the same, so that the time is that of an honest pick. The answer must end with the known tokens.
    """

    def __init__(self, inner: Sampler, n_prompt: int, tokens: Sequence[Token]) -> None:
        self._inner = inner
        self._n_prompt = n_prompt
        self._tokens = tuple(tokens)

    def pick(self, logits: npt.NDArray[np.float32], context: Sequence[Token]) -> Token:
        self._inner.pick(logits, context)
        return self._tokens[len(context) - self._n_prompt]
