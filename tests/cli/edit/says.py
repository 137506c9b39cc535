"""A synthetic model that says a given text, then ends: for tests about what becomes of an answer.

Everything is real but the pick of each token. `python -m tests.cli.edit.says REPLY COMMAND ..` is the command with the model
saying the text of the file REPLY.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from specllm.decoding.sampling import KeyedSampler

EOS, FIRST_BYTE = 2, 5  # of tests.synthetic, whose import takes longer than a test


def pick_of(reply: bytes | Sequence[bytes | int]):
    """A stand-in for `KeyedSampler.pick`: the reply's bytes, a token each; whatever context comes first is the prompt.

    Numbers between bytes are tokens.
    """
    parts = [reply] if isinstance(reply, bytes) else reply
    tokens = [
        token for part in parts for token in ([part] if isinstance(part, int) else [FIRST_BYTE + b for b in part])
    ]
    tokens.append(EOS)
    start: list[int] = []

    def pick(self: KeyedSampler, logits: object, context: Sequence[int]) -> int:
        if not start:
            start.append(len(context))
        return tokens[len(context) - start[0]]

    return pick


if __name__ == "__main__":
    from specllm.__main__ import main

    KeyedSampler.pick = pick_of(Path(sys.argv.pop(1)).read_bytes())  # type: ignore[method-assign]
    main()
