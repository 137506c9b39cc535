"""The nouns that cross rooms: what a language model and a drafter are, and what one round leaves behind.

Token ids and numpy only. Whoever implements these knows about llama.cpp, text or files; nobody in `decoding` does.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

import numpy as np
import numpy.typing as npt

Token = int
Logits = npt.NDArray[np.float32]  # (rows, n_vocab)
StopReason = Literal["eog", "stop", "length"]


class LanguageModel(Protocol):
    """Something that turns tokens into logits and can take tokens back."""

    @property
    def n_vocab(self) -> int: ...

    @property
    def n_ctx(self) -> int: ...

    @property
    def n_past(self) -> int:
        """Tokens now in the KV cache."""
        ...

    @property
    def is_width_independent(self) -> bool:
        """Whether a token's logits are known to have the same bits whatever is fed with it, after at least one forward."""
        ...

    def forward(self, tokens: Sequence[Token], *, logits: Literal["all", "last", "none"] = "all") -> Logits:
        """Appends `tokens` to the KV cache; returns (rows, n_vocab) with one row per token, one, or none.

        It returns when the device has computed them, also where no rows are asked for: a clock read before and after tells
        what the forward took. The same holds for `rollback`. The rows may be a view that the next forward overwrites.
        """
        ...

    def rollback(self, n_past: int) -> None:
        """Leaves exactly the first `n_past` tokens in the KV cache, or raises RollbackUnsupported."""
        ...


FORCED = -1  # the evidence of a token that follows because the grammar allows no other, whoever drafted it
# From here on, that of a token at the end of text that has to follow or probably does, and may become part of a longer one: each
# is a class of its own, because how often ` "` stands alone says nothing of ` {`.
SPELLED = 1_000_000
GUESSED = 2_000_000  # that of the tokens before it, unless they are forced
FREE = (FORCED, GUESSED)  # what a draft model spends no forward on


@dataclass(frozen=True, slots=True)
class Draft:
    """Tokens proposed to follow the context."""

    tokens: tuple[Token, ...]
    source: str  # the drafter that proposed them
    evidence: tuple[
        int, ...
    ] = ()  # per token, the class of evidence it rests on; what a class means is the drafter's own

    @property
    def sources(self) -> tuple[str, ...]:
        """Per token, who proposed it: the drafter, or `grammar` where its text has to follow."""
        if not self.evidence:
            return (self.source,) * len(self.tokens)
        return tuple("grammar" if one == FORCED or one >= SPELLED else self.source for one in self.evidence)


EMPTY_DRAFT = Draft((), "none")


@dataclass(frozen=True, slots=True)
class Round:
    """One draft, one target forward, and what was committed of it.

    The last committed token is always the target's own: the correction of the first mismatch, the bonus after full
    acceptance, or the token the generation ended on. Whatever stands before it was accepted from the draft.
    """

    tokens: tuple[Token, ...]  # committed, at least one
    draft: Draft
    draft_s: float
    verify_s: float
    rest_s: float  # sampling, commit, rollback; from when it is yielded, what the drafter learns from it too
    reason: StopReason | None = None  # why generation ended here, if it did
    plain_s: float | None = None  # what plain decoding would have taken for these tokens; None where that is not known

    @property
    def width(self) -> int:
        """Tokens in the target's forward."""
        return len(self.draft.tokens) + 1

    @property
    def n_accepted(self) -> int:
        return len(self.tokens) - 1

    @property
    def is_rejected(self) -> bool:
        """Whether the target disagreed with the draft somewhere (a stop inside the draft is no disagreement)."""
        n = self.n_accepted
        return n < len(self.draft.tokens) and self.tokens[n] != self.draft.tokens[n]


class Drafter(Protocol):
    """Something cheap that guesses what the target will say."""

    @property
    def name(self) -> str: ...

    def begin(self, context: Sequence[Token]) -> None:
        """Forgets the last request; `context` is the whole prompt."""
        ...

    def propose(self, context: Sequence[Token], k: int) -> Draft:
        """At most `k` tokens to follow `context`; none is a fine answer."""
        ...

    def observe(self, round: Round) -> None:
        """Learns what became of a round, its own or another drafter's."""
        ...


class Sampler(Protocol):
    def pick(self, logits: npt.NDArray[np.float32], context: Sequence[Token]) -> Token:
        """The token that follows `context`, from one row of logits (n_vocab,); a pure function of its arguments."""
        ...
