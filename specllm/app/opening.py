"""From a plan to a session: the target's weights first, so that prompts can be tokenized and the context sized for them."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Protocol

from specllm.app.drafting import Drafting
from specllm.app.generation import Session
from specllm.app.loading import Loader
from specllm.app.memory.plan import Models
from specllm.app.offload import settled_gpu_layers
from specllm.app.store.stores import open_store
from specllm.config import ContextConfig, GenerateConfig, SamplingConfig
from specllm.drafters.none import NoDrafter
from specllm.errors import ConfigError
from specllm.models.gguf_header import read_header
from specllm.runtime.llama import Weights
from specllm.runtime.vocab import Vocab

Notice = Callable[[str], None]


class Planned(Models, Protocol):
    """The part of `app.generate.Plan` that loading depends on."""

    @property
    def sampling(self) -> SamplingConfig: ...


@dataclass(frozen=True, slots=True)
class Opening:
    """A target whose weights are loaded and whose context is not made yet."""

    weights: Weights
    _plan: Planned
    _loader: Loader
    _notice: Notice
    _stack: contextlib.ExitStack

    def context_size(self, n_prompt: int, config: GenerateConfig) -> int:
        """Tokens: what was asked for, else room for such a prompt and its answer."""
        return self._loader.context.n_ctx or self._loader.context_size(self.weights, n_prompt, config)

    def session(self, n_ctx: int) -> tuple[Session, Drafting, ContextConfig]:
        """A session in which nobody drafts yet, what its drafter can be made of, and the settled context.

        It is closed where the weights are freed.
        """
        plan, context = self._plan, replace(self._loader.context, n_ctx=n_ctx)
        target, drafting = self._loader.open(self.weights, context, plan.sampling, plan.draft_model, self._notice)
        if plan.draft.store is not None:
            drafting.store = open_store(plan.draft.store, self.weights.vocab, plan.target.name)
        session = Session(target, NoDrafter(), draft_model=drafting.draft_model, is_exact=plan.draft.is_exact)
        self._stack.callback(session.close)
        return session, drafting, replace(context, n_batch=target.n_batch)


@contextlib.contextmanager
def opening(plan: Planned, notice: Notice, *, loads_all: bool = False) -> Iterator[Opening]:
    """Loads the target's weights, and frees afterwards whatever was opened with them.

    `notice` is told what takes seconds. `loads_all`: also a draft model that cannot pay here.
    """
    notice(f"loading {plan.target.name}")
    layers = settled_gpu_layers(read_header(plan.target.path), plan.context.gpu_layers, plan.context)
    loader = Loader(replace(plan.context, gpu_layers=layers), plan.draft, plan.draft_gpu_layers, loads_all)
    with contextlib.ExitStack() as stack:
        weights = loader.weights(plan.target.path, layers)
        stack.callback(weights.close)
        _check_biases(plan.sampling, weights.vocab)
        yield Opening(weights, plan, loader, notice, stack)


def _check_biases(sampling: SamplingConfig, vocab: Vocab) -> None:
    """Raises ConfigError for a biased token that the model does not have."""
    for token, _ in sampling.logit_bias:
        if token >= vocab.n_tokens:
            raise ConfigError(f"logit bias for token {token}: the model has {vocab.n_tokens:,} tokens",
                              f"use a token from 0 to {vocab.n_tokens - 1}")  # fmt: skip
