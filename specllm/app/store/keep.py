"""Keeps an answer in the store that it was drafted from."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator, Sequence
from pathlib import Path

from specllm.app.drafting import Drafting
from specllm.app.generation import Generation
from specllm.decoding.protocols import Token
from specllm.errors import StorageError

LOGGER = logging.getLogger("specllm")


@contextlib.contextmanager
def kept_in_store(
    drafting: Drafting, generation: Generation, prompt: Sequence[Token], message: str, sources: Sequence[Path] = ()
) -> Iterator[None]:
    """The answer is in the store afterwards, where there is one; a store that cannot be written costs no answer.

    Unless it is about something private: see `why_private` and `Store.remember`.
    """
    if drafting.store is None:
        yield
        return
    from specllm.app.store.private import why_private  # 20 ms that only whoever has a store should wait for

    reason = next(filter(None, map(why_private, sources)), None)  # before an edit replaces them
    yield
    try:
        if reason is None:
            drafting.store.remember(generation.tokens, prompt=prompt, message=message)
    except StorageError as error:
        reason = error.message
    if reason is not None:
        LOGGER.warning("the answer is not in the store: %s", reason)
