"""How a context takes tokens back. Chosen at load by what the model's memory can do; none of them pretends.

| kind     | for                                   | how                                                            |
|----------|---------------------------------------|----------------------------------------------------------------|
| trim     | attention KV (also sliding window)    | drop the cells behind the position                             |
| snapshot | recurrent and hybrid states           | keep the state from before a draft, restore it, feed again     |
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from typing import Literal, Protocol

import llama_cpp

from specllm.decoding.protocols import Token
from specllm.errors import BackendError, RollbackUnsupported

RollbackKind = Literal["trim", "snapshot"]
SEQUENCE = 0  # the one sequence of a context


class Rollback(Protocol):
    @property
    def kind(self) -> RollbackKind: ...

    def before_forward(self, tokens: Sequence[Token], n_past: int) -> None:
        """Told before `tokens` are fed at position `n_past`."""
        ...

    def after_failure(self) -> None:
        """Makes the state right again where a forward ended halfway; fewer tokens than before it may be left."""
        ...

    def to(self, n_past: int) -> None:
        """Leaves exactly the first `n_past` tokens, fewer than there are now."""
        ...


class Trim:
    """Drops the cells behind a position (`llama_memory_seq_rm`): exact and free."""

    kind: RollbackKind = "trim"

    def __init__(self, memory: llama_cpp.llama_memory_t) -> None:
        self._memory = memory

    def before_forward(self, tokens: Sequence[Token], n_past: int) -> None:
        pass

    def after_failure(self) -> None:
        pass  # llama.cpp itself drops the cells of the part that was not finished

    def to(self, n_past: int) -> None:
        if not llama_cpp.llama_memory_seq_rm(self._memory, SEQUENCE, n_past, -1):
            raise RollbackUnsupported(
                f"this context cannot drop the tokens behind position {n_past}",
                "use --drafter none for this model, and report its architecture",
            )


class Snapshot:
    """Keeps one copy of the whole state from before each block; rolling back restores it and feeds the kept tokens again.

    A recurrent state sums up all tokens and cannot be trimmed (`llama_memory_seq_rm` of a part returns False). What is
    fed one token at a time is never taken back by the decode loop, so only blocks of two and more pay for a copy.
    """

    kind: RollbackKind = "snapshot"

    def __init__(
        self,
        context: llama_cpp.llama_context_p,
        memory: llama_cpp.llama_memory_t,
        feed: Callable[[Sequence[Token]], None],
    ) -> None:
        self._context = context
        self._memory = memory
        self._feed = feed  # a forward without logits, not recorded here
        self._tokens: list[Token] = []  # everything now in the state
        self._saved: ctypes.Array[ctypes.c_uint8] | None = None
        self._saved_at = 0

    def before_forward(self, tokens: Sequence[Token], n_past: int) -> None:
        del self._tokens[n_past:]  # an aborted forward may have taken less than it was given
        if len(tokens) > 1 and n_past:
            self._save(n_past)
        elif not n_past:
            self._saved = None
        self._tokens += tokens

    def after_failure(self) -> None:
        self._restore(len(self._tokens))  # a part of the failed forward is in the state, and counted whole

    def to(self, n_past: int) -> None:
        start = self._restore(n_past)
        kept = self._tokens[:n_past]
        if kept[start:]:
            self._feed(kept[start:])
        self._tokens = kept

    def _restore(self, n_past: int) -> int:
        """The state after at most `n_past` tokens, as many as can be had without feeding; returns how many those are."""
        if self._saved is not None and self._saved_at <= n_past:
            done = llama_cpp.llama_state_seq_set_data_ext(self._context, self._saved, len(self._saved), SEQUENCE, 0)
            if not done:
                raise BackendError("llama.cpp could not restore a state snapshot", "use --drafter none for this model")
            return self._saved_at
        # Further back than the last snapshot, which is of another text from here on: from the beginning.
        self._saved = None
        llama_cpp.llama_memory_clear(self._memory, True)
        return 0

    def _save(self, n_past: int) -> None:
        size = llama_cpp.llama_state_seq_get_size_ext(self._context, SEQUENCE, 0)
        # Ctrl-C may arrive while the state is copied: until position and content agree there is no snapshot.
        buffer, self._saved = self._saved, None
        if buffer is None or len(buffer) != size:
            buffer = (ctypes.c_uint8 * size)()
        written = llama_cpp.llama_state_seq_get_data_ext(self._context, buffer, size, SEQUENCE, 0)
        if written != size:
            raise BackendError(
                f"llama.cpp saved {written} of {size} bytes of state", "use --drafter none for this model"
            )
        self._saved_at = n_past
        self._saved = buffer
