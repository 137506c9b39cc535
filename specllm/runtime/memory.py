"""How a context takes tokens back. Chosen at load by asking the context, tried out before it is relied on.

| kind     | for                               | how                                                         |
|----------|-----------------------------------|-------------------------------------------------------------|
| trim     | attention (sliding windows too)   | drop the cells behind the position                          |
| states   | some recurrent and hybrid models  | llama.cpp keeps the states of the last tokens (`n_rs_seq`)  |
| snapshot | the other ones                    | keep the state from before a block, restore it, feed again  |
| replay   | what fails the trial of its kind  | empty the cache and feed everything again                   |

Every kind is exact. What a rejection costs with it is part of the measured V(width), so a controller drafts less where
that is much, and nothing where it is a replay.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from typing import Literal, Protocol

import llama_cpp

from specllm.decoding.protocols import Token
from specllm.errors import BackendError, RollbackUnsupported

RollbackKind = Literal["trim", "states", "snapshot", "replay"]
SEQUENCE = 0  # the one sequence of a context

# A text this long that was fed again is not fed a second time: drafting token by token takes back more than one block.
LONGEST_REPEAT = 16  # tokens


class Rollback(Protocol):
    @property
    def kind(self) -> RollbackKind: ...

    def before_forward(self, tokens: Sequence[Token], n_past: int) -> None:
        """Told before `tokens` are fed at position `n_past`."""
        ...

    def after_decode(self, width: int) -> None:
        """Told after `width` tokens, all of a forward or a piece of it, went through one llama_decode."""
        ...

    def after_failure(self) -> None:
        """Makes the state right again where a forward ended halfway; fewer tokens than before it may be left."""
        ...

    def to(self, n_past: int) -> None:
        """Leaves exactly the first `n_past` tokens, fewer than there are now."""
        ...


class Trim:
    """Drops the cells behind a position (`llama_memory_seq_rm`): exact and free.

    A layer with a sliding window needs the cells in the window before the position. They are there as long as the cache
    keeps all cells (`swa_full`); the context is asked every time, because dropping succeeds without them too.
    """

    kind: RollbackKind = "trim"

    def __init__(self, memory: llama_cpp.llama_memory_t, window: int = 0) -> None:
        """`window`: tokens that layers with a sliding window look back; 0 where there are none."""
        self._memory = memory
        self._window = window

    def before_forward(self, tokens: Sequence[Token], n_past: int) -> None:
        pass

    def after_decode(self, width: int) -> None:
        pass

    def after_failure(self) -> None:
        pass  # llama.cpp itself drops the cells of the part that was not finished

    def to(self, n_past: int) -> None:
        if not self._has_window(n_past) or not llama_cpp.llama_memory_seq_rm(self._memory, SEQUENCE, n_past, -1):
            raise RollbackUnsupported(
                f"this context cannot drop the tokens behind position {n_past}",
                "use --drafter none for this model, and report its architecture",
            )

    def _has_window(self, n_past: int) -> bool:
        """Whether the cells before `n_past` that the next token sees are there."""
        oldest = llama_cpp.llama_memory_seq_pos_min(self._memory, SEQUENCE) if self._window else 0
        return bool(oldest <= max(0, n_past - self._window))


class Replay:
    """Empties the cache and feeds all tokens again: exact with everything, and slow."""

    kind: RollbackKind = "replay"

    def __init__(self, memory: llama_cpp.llama_memory_t, feed: Callable[[Sequence[Token]], None]) -> None:
        """`feed`: a forward without logits that is not recorded here."""
        self._memory = memory
        self._feed = feed
        self._tokens: list[Token] = []  # everything now in the state

    def before_forward(self, tokens: Sequence[Token], n_past: int) -> None:
        del self._tokens[n_past:]  # an aborted forward may have taken less than it was given
        self._tokens += tokens

    def after_decode(self, width: int) -> None:
        pass

    def after_failure(self) -> None:
        self._restore(len(self._tokens))  # a part of the failed forward is in the state, and counted whole

    def to(self, n_past: int) -> None:
        self._repeat(n_past)

    def _repeat(self, n_past: int) -> int:
        """Goes back to `n_past`; returns how many tokens had to be fed again."""
        start = self._restore(n_past)
        kept = self._tokens[:n_past]
        if kept[start:]:
            self._feed(kept[start:])
        self._tokens = kept
        return n_past - start

    def _restore(self, n_past: int) -> int:
        """The state after at most `n_past` tokens, as many as can be had without feeding; returns how many those are."""
        llama_cpp.llama_memory_clear(self._memory, True)
        return 0


class Snapshot(Replay):
    """Keeps one copy of the state from before each block; rolling back restores it and feeds the kept tokens again.

    A recurrent state sums up all tokens and cannot be trimmed (`llama_memory_seq_rm` of a part returns False). Only that
    part of the memory is copied; what attention layers of a hybrid model keep is trimmed. What is fed one token at a time
    is never taken back by the decode loop, so only blocks of two and more pay for a copy. A drafting model is fed token
    by token: it goes back to where the text stood that the target last agreed with.
    """

    kind: RollbackKind = "snapshot"
    _FLAGS = llama_cpp.LLAMA_STATE_SEQ_FLAGS_PARTIAL_ONLY

    def __init__(
        self,
        context: llama_cpp.llama_context_p,
        memory: llama_cpp.llama_memory_t,
        feed: Callable[[Sequence[Token]], None],
    ) -> None:
        super().__init__(memory, feed)
        self._context = context
        self._saved: ctypes.Array[ctypes.c_uint8] | None = None
        self._saved_at = 0

    def before_forward(self, tokens: Sequence[Token], n_past: int) -> None:
        if not n_past:
            self._saved = None
        elif self._is_worth_saving(len(tokens)):
            self._save(n_past)
        super().before_forward(tokens, n_past)

    def to(self, n_past: int) -> None:
        if self._repeat(n_past) >= LONGEST_REPEAT:
            self._save(n_past)

    def _is_worth_saving(self, width: int) -> bool:
        return width > 1 or self._saved is None

    def _restore(self, n_past: int) -> int:
        if self._saved is not None and self._saved_at <= n_past:
            size = len(self._saved)
            done = llama_cpp.llama_state_seq_set_data_ext(self._context, self._saved, size, SEQUENCE, self._FLAGS)
            if not done or not llama_cpp.llama_memory_seq_rm(self._memory, SEQUENCE, self._saved_at, -1):
                raise BackendError("llama.cpp could not restore a state snapshot", "use --drafter none for this model")
            return self._saved_at
        # Further back than the last snapshot, which is of another text from here on: from the beginning.
        self._saved = None
        return super()._restore(n_past)

    def _save(self, n_past: int) -> None:
        if self._saved is not None and self._saved_at == n_past:
            return
        size = llama_cpp.llama_state_seq_get_size_ext(self._context, SEQUENCE, self._FLAGS)
        # Ctrl-C may arrive while the state is copied: until position and content agree there is no snapshot.
        buffer, self._saved = self._saved, None
        if buffer is None or len(buffer) != size:
            buffer = (ctypes.c_uint8 * size)()
        written = llama_cpp.llama_state_seq_get_data_ext(self._context, buffer, size, SEQUENCE, self._FLAGS)
        if written != size:
            raise BackendError(
                f"llama.cpp saved {written} of {size} bytes of state", "use --drafter none for this model"
            )
        self._saved_at = n_past
        self._saved = buffer


class States(Snapshot):
    """Goes back by naming one of the last states, where llama.cpp keeps them; further back by a snapshot.

    A forward of w tokens leaves w states. `llama_memory_seq_rm` also agrees to older ones, which are of another text, and
    to one step only until the next forward: both are seen to here.
    """

    kind: RollbackKind = "states"
    _reach = 0  # tokens that can be taken back now

    def after_decode(self, width: int) -> None:
        self._reach = min(width - 1, int(llama_cpp.llama_n_rs_seq(self._context)))

    def after_failure(self) -> None:
        self._reach = 0
        super().after_failure()

    def to(self, n_past: int) -> None:
        is_near = len(self._tokens) - n_past <= self._reach
        self._reach = 0
        if is_near and llama_cpp.llama_memory_seq_rm(self._memory, SEQUENCE, n_past, -1):
            del self._tokens[n_past:]
            if self._saved_at > n_past:
                self._saved = None
        else:
            super().to(n_past)

    def _is_worth_saving(self, width: int) -> bool:
        return width - 1 > llama_cpp.llama_n_rs_seq(self._context) or self._saved is None
