"""The loop: draft, verify, commit. Plain decoding is the same loop with k = 0.

The committed tokens are always the target's own picks. A draft only decides how many positions one forward can read, so
it changes speed and never text. The last committed token stays out of the KV cache until the next forward feeds it:
`target.n_past == len(context) - 1` before and after every round.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from time import perf_counter

from specllm.decoding.protocols import EMPTY_DRAFT, Draft, Drafter, LanguageModel, Round, Sampler, StopReason, Token


def _never(token: Token) -> bool:
    return False


@dataclass(frozen=True, slots=True)
class Until:
    """When a generation ends."""

    max_tokens: int
    eog: frozenset[Token] = frozenset()  # tokens that end the generation
    is_stop: Callable[[Token], bool] = _never  # told every committed token in order; True ends the generation

    def reason(self, token: Token, n_committed: int) -> StopReason | None:
        """Why the generation ends with `token`, its `n_committed`-th, if it does."""
        if token in self.eog:
            return "eog"
        if self.is_stop(token):
            return "stop"
        return "length" if n_committed >= self.max_tokens else None


def prefill(target: LanguageModel, context: list[Token], step: int = 512) -> Iterator[int]:
    """Feeds all of `context` but its last token, keeping what is cached already; yields `n_past` after every `step`."""
    while target.n_past < len(context) - 1:
        n_past = target.n_past
        target.forward(context[n_past : min(n_past + step, len(context) - 1)], logits="none")
        yield target.n_past


def decode(
    target: LanguageModel, drafter: Drafter, sampler: Sampler, context: list[Token], k: int, until: Until
) -> Iterator[Round]:
    """Appends the target's picks to `context` until `until` says stop; yields every round.

    Needs a prefilled target (`n_past == len(context) - 1`) and a drafter that has begun. Whatever interrupts a round
    (Ctrl-C included), the next `rollback(len(context) - 1)` makes target and context agree again.
    """
    n_committed = 0
    reason: StopReason | None = None
    while reason is None:
        started = perf_counter()
        draft = _draft(drafter, context, min(k, until.max_tokens - n_committed - 1), until.eog)
        drafted = perf_counter()
        logits = target.forward([context[-1], *draft.tokens])  # (k + 1, n_vocab)
        verified = perf_counter()
        committed: list[Token] = []
        for i in range(len(draft.tokens) + 1):
            token = sampler.pick(logits[i], context)
            context.append(token)
            committed.append(token)
            n_committed += 1
            reason = until.reason(token, n_committed)
            if reason or i == len(draft.tokens) or token != draft.tokens[i]:
                break
        if target.n_past != len(context) - 1:
            target.rollback(len(context) - 1)
        done = perf_counter()
        round = Round(tuple(committed), draft, drafted - started, verified - drafted, done - verified, reason)
        drafter.observe(round)
        yield replace(round, rest_s=perf_counter() - verified)  # what learning from it takes is part of it


def _draft(drafter: Drafter, context: list[Token], k: int, eog: frozenset[Token]) -> Draft:
    """What the drafter proposes, cut before a token that would end the generation: nothing after it can be used, and the
    row before it already shows whether the target agrees."""
    if k <= 0:
        return EMPTY_DRAFT
    draft = drafter.propose(context, k)
    for i, token in enumerate(draft.tokens):
        if i == k or token in eog:
            return Draft(draft.tokens[:i], draft.source, draft.evidence[:i])
    return draft
