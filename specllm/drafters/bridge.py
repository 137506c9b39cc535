"""Lets a draft model of any vocabulary draft for any target: text is the bridge.

The draft model continues the target's text in its own tokens, and what it says is tokenized again as the target would, behind
the end of its context. Proposed is what is known to begin and end where the target's tokens do: the rest of a draft could
still become part of a longer token.

Special tokens stay on their side: one of the target's reads as a line break, one of the draft model's ends the draft. (Leaving
them out, or giving the draft model its own of the same name, made no difference of more than 2 % to the tokens per forward of
a 1.5B with a 135M, 30 November 2026.) Penalties, logit biases and keyed noise are about the target's ids and cannot cross: the
draft model speaks greedily at any temperature. Drafting over text as in Timor et al. 2025 (arXiv:2502.05202, string-level exact
match); what is accepted is the target's sampler's to say, as for every drafter.
"""

from __future__ import annotations

import codecs
import math
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from itertools import accumulate, takewhile
from typing import Protocol

from specllm.config import SamplingConfig
from specllm.decoding.constraint import Constraint
from specllm.decoding.protocols import EMPTY_DRAFT, Draft, LanguageModel, Token
from specllm.decoding.sampling import KeyedSampler
from specllm.drafters.model import ModelDrafter, StopRule

# Tokens before a place that are tokenized again with what comes behind it. Between two boundaries of a tokenization, BPE and
# SPM make the same tokens of the text alone; what is appended moves boundaries a word or two back.
_LOOK_BACK = 16
_MOST_UNREAD = 64  # context tokens that `n_pending` reads to be exact; more are counted, one for one
_CONTINUATION = bytes(range(0x80, 0xC0))  # the bytes of a UTF-8 character but its first


class Vocabulary(Protocol):
    """What the bridge has to know about either side."""

    bos: Token
    adds_bos: bool

    @property
    def eog(self) -> frozenset[Token]: ...

    def piece(self, token: Token) -> bytes:
        """The bytes a token adds to the text; none for a special one."""
        ...

    def tokenize_inside(self, text: str) -> list[Token]:
        """`text` as it stands in the middle of a text, without special tokens."""
        ...


class BridgeDrafter(ModelDrafter):
    """A `ModelDrafter` whose context is the target's text in the draft model's tokens.

    Its stop rule is asked about the draft model's tokens and takes each for one of the target's; a proposed token has the
    lowest evidence of the draft tokens it covers. The context may only grow between two `begin`s.
    """

    def __init__(
        self,
        model: LanguageModel,
        target: Vocabulary,
        draft: Vocabulary,
        *,
        rule: StopRule,
        constraint: Constraint | None = None,
    ) -> None:
        sampler = KeyedSampler(SamplingConfig(temperature=0.0))
        super().__init__(model, sampler, rule=rule, can_draft=lambda token: _is_text(draft, token))
        self._target = target
        self._draft = draft
        self._target_constraint = constraint  # the base class would ask about the draft model's ids
        self._text = _DraftText(target, draft, 0)

    def begin(self, context: Sequence[Token]) -> None:
        super().begin(())  # the ids of `context` are the target's
        # Nothing is tokenized before it is needed, and nothing ever that no window will hold.
        self._text = _DraftText(self._target, self._draft, max(0, len(context) - self._model.n_ctx))

    def propose(self, context: Sequence[Token], k: int) -> Draft:
        self._read(context)
        draft = super().propose(self._text.tokens, math.ceil(k * self._text.tokens_per_read))
        self.dropped = self._translate(context, self.dropped, k)
        proposed = self._translate(context, draft, k)
        self.seen = proposed.evidence + self.seen[len(draft.tokens) :]
        return proposed

    def n_pending(self, context: Sequence[Token]) -> int:
        n_unread = len(context) - self._text.n_read
        if n_unread > _MOST_UNREAD:
            return n_unread
        self._read(context)
        return super().n_pending(self._text.tokens)

    def _read(self, context: Sequence[Token]) -> None:
        """Brings the draft model's context in step with the target's."""
        self._n_agreed = min(self._n_agreed, max(0, self._text.n_settled - self._start))  # later tokens may change
        self._text.read(context)

    def _translate(self, context: Sequence[Token], draft: Draft, k: int) -> Draft:
        """At most `k` tokens of the target that spell the beginning of what `draft` says."""
        pieces = [self._draft.piece(token) for token in draft.tokens]
        said, rest = b"".join(pieces), self._text.rest
        if len(said) <= len(rest) or not said.startswith(rest):  # first it has to say the begun character again
            return EMPTY_DRAFT
        ends = [end - len(rest) for end in accumulate(map(len, pieces))]
        found = self._continuation(context, said[len(rest) :])
        tokens: list[Token] = []
        evidence: list[int] = []
        start = 0
        for token in found[:k]:
            end = start + len(self._target.piece(token))
            first, last = bisect_right(ends, start), bisect_left(ends, end)  # of the draft tokens it covers
            is_same = first == last and (len(pieces[last]), ends[last]) == (end - start, end)
            if len(tokens) == len(found) - 1 and not is_same:  # it may become part of a longer one
                break
            tokens.append(token)
            evidence.append(min(draft.evidence[first : last + 1]))
            start = end
        n = self._target_constraint.n_allowed(context, tokens) if self._target_constraint else len(tokens)
        return Draft(tuple(tokens[:n]), self.name, tuple(evidence[:n])) if n else EMPTY_DRAFT

    def _continuation(self, context: Sequence[Token], said: bytes) -> list[Token]:
        """The target's tokens for `said` behind the context, but for a character at its end that is not whole.

        None where the target would make one token of what stands before and behind the end of the context.
        """
        pieces = list(takewhile(bool, map(self._target.piece, reversed(context[-_LOOK_BACK:]))))
        text, n_known = _valid(b"".join(reversed(pieces)), said)
        data, place = text.encode(), 0
        tokens: list[Token] = []
        for token in self._target.tokenize_inside(text):
            piece = self._target.piece(token)
            end = place + len(piece)
            if place < n_known < end or not data.startswith(piece, place) or not _is_text(self._target, token):
                break
            if place >= n_known:
                tokens.append(token)
            place = end
        return tokens


class _DraftText:
    """The target's context in the draft model's tokens, read from its token `n_read` on."""

    def __init__(self, target: Vocabulary, draft: Vocabulary, n_read: int) -> None:
        self._target, self._draft = target, draft
        self.tokens: list[Token] = [draft.bos] if draft.adds_bos else []
        self.n_settled = len(self.tokens)  # of them, those that what follows cannot change any more
        self.n_read = n_read
        self.rest = b""  # the bytes of a last character that is not whole yet
        self._first = n_read
        self._tail = b""  # the bytes of the tokens behind the settled ones, and the rest

    @property
    def tokens_per_read(self) -> float:
        """How many tokens of the draft model stand for one of the target's."""
        return len(self.tokens) / (self.n_read - self._first) if self.n_read > self._first else 1.0

    def read(self, context: Sequence[Token]) -> None:
        """Reads what was appended to `context`."""
        if len(context) == self.n_read:
            return
        tail = self._tail + b"".join(self._target.piece(token) or b"\n" for token in context[self.n_read :])
        text, n_whole = codecs.utf_8_decode(tail, "replace", False)
        self.tokens[self.n_settled :] = self._draft.tokenize_inside(text)
        self._tail, self.rest, self.n_read = tail, tail[n_whole:], len(context)
        if len(self.tokens) - self.n_settled > 4 * _LOOK_BACK:
            self._settle()

    def _settle(self) -> None:
        """Keeps a short tail, which begins with a whole character."""
        for n in range(len(self.tokens) - _LOOK_BACK, self.n_settled, -1):
            tail = b"".join(map(self._draft.piece, self.tokens[n:]))
            if tail and tail[0] not in _CONTINUATION:
                self.n_settled, self._tail = n, tail + self.rest
                return


def _valid(known: bytes, said: bytes) -> tuple[str, int]:
    """The longest piece of UTF-8 around the end of `known`, and how many of its bytes are of `known`."""
    data, n_known = known + said, len(known)
    while True:
        try:
            return data.decode(), n_known
        except UnicodeDecodeError as error:
            if error.end <= n_known:
                data, n_known = data[error.end :], n_known - error.end
            else:
                data, n_known = data[: error.start], min(n_known, error.start)


def _is_text(vocabulary: Vocabulary, token: Token) -> bool:
    return bool(vocabulary.piece(token)) and token not in vocabulary.eog
