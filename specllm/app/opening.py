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
from specllm.app.offload import depend_on_prompt, settled_gpu_layers
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
    """A target whose vocabulary is loaded and whose context is not made yet."""

    weights: Weights  # whole, or without tensors where how many of them a GPU gets depends on the context
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
        plan, context, weights = self._plan, replace(self._loader.context, n_ctx=n_ctx), self.weights
        if weights.is_vocab_only:
            layers = settled_gpu_layers(read_header(plan.target.path), context.gpu_layers, context)
            context = replace(context, gpu_layers=layers)
            weights = self._loader.weights(plan.target.path, layers)
            self._stack.callback(weights.close)
        target, drafting = self._loader.open(weights, context, plan.sampling, plan.draft_model, self._notice)
        if plan.draft.store is not None:
            drafting.store = open_store(plan.draft.store, self.weights.vocab, plan.target.name)
        session = Session(target, NoDrafter(), draft_model=drafting.draft_model, is_exact=plan.draft.is_exact)
        self._stack.callback(session.close)
        return session, drafting, replace(context, n_batch=target.n_batch)


@contextlib.contextmanager
def opening(plan: Planned, notice: Notice, *, loads_all: bool = False) -> Iterator[Opening]:
    """Loads the target, as far as its prompts need it, and frees afterwards whatever was opened with it.

    `notice` is told what takes seconds. `loads_all`: also a draft model that cannot pay here.
    """
    notice(f"loading {plan.target.name}")
    context, path = plan.context, plan.target.path
    header = read_header(path)  # checked before llama.cpp sees the file
    is_open = depend_on_prompt(context)
    if not is_open:
        context = replace(context, gpu_layers=settled_gpu_layers(header, context.gpu_layers, context))
    loader = Loader(context, plan.draft, plan.draft_gpu_layers, loads_all)
    with contextlib.ExitStack() as stack:
        weights = Weights(path, is_vocab_only=True) if is_open else loader.weights(path, context.gpu_layers)
        stack.callback(weights.close)
        _check_biases(plan.sampling, weights.vocab)
        yield Opening(weights, plan, loader, notice, stack)


def _check_biases(sampling: SamplingConfig, vocab: Vocab) -> None:
    """Raises ConfigError for a biased token that the model does not have."""
    for token, _ in sampling.logit_bias:
        if token >= vocab.n_tokens:
            raise ConfigError(f"logit bias for token {token}: the model has {vocab.n_tokens:,} tokens",
                              f"use a token from 0 to {vocab.n_tokens - 1}")  # fmt: skip
