"""Stand-ins that need no model. They assert: a wrong rollback changes the output or trips a check."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np

from specllm.decoding.protocols import Draft, Logits, Round, Token


class BigramModel:
    """A language model whose KV cache is the list of tokens it was fed, and whose logits depend on all of them."""

    def __init__(self, n_vocab: int = 12, n_ctx: int = 4096, seed: int = 0, spread: float = 2.0) -> None:
        self.n_vocab = n_vocab
        self.n_ctx = n_ctx
        self.cache: list[Token] = []
        self.n_forwards = 0
        self._table = np.random.default_rng(seed).normal(0, spread, (n_vocab, n_vocab)).astype(np.float32)
        self._echo = np.random.default_rng(seed + 1).normal(0, spread / 4, (n_vocab, n_vocab)).astype(np.float32)

    @property
    def n_past(self) -> int:
        return len(self.cache)

    def row(self, tokens: Sequence[Token]) -> Logits:
        """The logits after `tokens`: the last one decides most, the sum of all the rest a little."""
        return self._table[tokens[-1]] + self._echo[sum(tokens[:-1]) % self.n_vocab]

    def forward(self, tokens: Sequence[Token], *, logits: Literal["all", "last", "none"] = "all") -> Logits:
        assert all(0 <= token < self.n_vocab for token in tokens)
        assert self.n_past + len(tokens) <= self.n_ctx
        self.n_forwards += bool(tokens)
        rows = []
        for token in tokens:
            self.cache.append(token)
            rows.append(self.row(self.cache))
        n = {"all": len(rows), "last": 1, "none": 0}[logits]
        return np.array(rows[len(rows) - n :], dtype=np.float32).reshape(n, self.n_vocab)

    @property
    def is_width_independent(self) -> bool:
        return False

    def rollback(self, n_past: int) -> None:
        assert 0 <= n_past <= self.n_past
        del self.cache[n_past:]


class CountingModel(BigramModel):
    """Says the next number: no token comes twice in n_vocab."""

    def row(self, tokens: Sequence[Token]) -> Logits:
        row = np.zeros(self.n_vocab, dtype=np.float32)
        row[(tokens[-1] + 1) % self.n_vocab] = 5.0
        return row


class ScriptedDrafter:
    """Proposes what it is given: `script(context, k)` returns the tokens."""

    name = "scripted"

    def __init__(self, script) -> None:
        self.script = script
        self.rounds: list[Round] = []

    def begin(self, context: Sequence[Token]) -> None:
        self.rounds = []

    def propose(self, context: Sequence[Token], k: int) -> Draft:
        return Draft(tuple(self.script(list(context), k)), self.name)

    def observe(self, round: Round) -> None:
        self.rounds.append(round)


def plain_continuation(model: BigramModel, sampler, context: Sequence[Token], n: int) -> list[Token]:
    """What `model` says after `context`, written without the loop that is tested."""
    tokens = list(context)
    for _ in range(n):
        tokens.append(sampler.pick(model.row(tokens), tokens))
    return tokens[len(context) :]
