"""The loaded models of a chat: one session for all turns, whose sampling and drafter may change between them."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, fields, replace
from difflib import get_close_matches
from typing import Any

from specllm.app import learned
from specllm.app.chat.template import start_sandbox
from specllm.app.drafting import SOURCES, Drafting, new_acceptance
from specllm.app.generate import Answer, GenerateRequest, Plan, make_plan, remembered
from specllm.app.generation import Generation, Session
from specllm.app.loading import Loader
from specllm.app.models import LocatedModel, locate_pair
from specllm.app.opening import opening
from specllm.app.prompt import remarks
from specllm.app.store.keep import kept_in_store
from specllm.config import CHAT_DRAFTERS, CONTROLLED_DRAFT_LENGTH, SamplingConfig
from specllm.decoding.protocols import Token
from specllm.decoding.sampling import KeyedSampler
from specllm.errors import ConfigError
from specllm.runtime.grammar import GrammarConstraint
from specllm.runtime.interrupt import abort_on_interrupt
from specllm.runtime.llama import DEFAULT_CTX, Weights

LOGGER = logging.getLogger("specllm")
SETTINGS = (*(field.name for field in fields(SamplingConfig) if field.name != "logit_bias"), "max_tokens")
_ABBREVIATIONS = {"temp": "temperature", "t": "temperature", "n": "max_tokens"}


@dataclass(slots=True)
class ChatModels:
    """What answers are made with."""

    plan: Plan
    weights: Weights
    session: Session
    _drafting: Drafting
    _draft_model: LocatedModel | None  # also where it is not loaded
    _constraint: GrammarConstraint | None = None  # what every answer must look like
    _kind: str = ""  # of text, that the drafters' acceptance was learned on

    @contextlib.contextmanager
    def answer(
        self, prompt: Sequence[Token], message: str, *, n_earlier_tries: int
    ) -> Iterator[tuple[Answer, Generation]]:
        """An answer to `prompt`, to be iterated inside, whose last message is `message`.

        Randomness is keyed by seed and position, so every further try at the same place has a seed of its own.
        """
        sampling = replace(self.plan.sampling, seed=(self.plan.sampling.seed + n_earlier_tries) % 2**64)
        sampler = KeyedSampler(sampling, self._constraint)
        kind = learned.kind_of_text(message)
        if n_earlier_tries or kind != self._kind:  # a draft model samples as the target does
            self._renew_drafter(sampling, kind)
            self._kind = kind if not n_earlier_tries else ""
        with remembered(self.session, self._drafting, self.plan, kind):
            draft_length = self.plan.draft.most_drafted
            generation = self.session.generate(prompt, sampler, draft_length, self.plan.generate, self._constraint)
            chunks = iter(generation)
            try:
                with kept_in_store(self._drafting, generation, prompt, message):
                    yield Answer(self.plan, self.session, generation, chunks), generation
            finally:
                chunks.close()  # its watch over Ctrl-C ends here, not when it is collected
                generation.settle()

    @property
    def drafter(self) -> str:
        """Who drafts, how much, and what is off and why."""
        return self.session.strategy(self.plan.draft)

    def settings(self) -> dict[str, object]:
        """What `set` can change, with its present values."""
        values = asdict(self.plan.sampling) | {"max_tokens": self.plan.generate.max_tokens}
        return {name: values[name] for name in SETTINGS}

    def set(self, name: str, value: str) -> None:
        """Answers from now on are made with that; raises ConfigError where there is no such thing."""
        name = _ABBREVIATIONS.get(name, name).replace("-", "_")
        if name not in SETTINGS:
            close = get_close_matches(name, SETTINGS, n=1)
            hint = f"did you mean {close[0]}?" if close else f"use one of {', '.join(SETTINGS)}"
            raise ConfigError(f"there is nothing named {name!r} to set", hint)
        kind = type(self.settings()[name])
        try:
            number: Any = int(value) if kind is int else float(value)
        except ValueError:
            wanted = "whole number" if kind is int else "number"
            raise ConfigError(
                f"{name} is {value!r}", f"give a {wanted}, e.g. /set {name} {self.settings()[name]}"
            ) from None
        if name == "max_tokens":
            self.plan = replace(self.plan, generate=replace(self.plan.generate, max_tokens=number))
        else:
            self.plan = replace(self.plan, sampling=replace(self.plan.sampling, **{name: number}))
            self._kind = ""  # the drafter has to sample like that too

    def use_drafter(self, name: str, notice: Callable[[str], None]) -> None:
        """Answers from now on are drafted by that one; what it needs and is not there is loaded and measured now."""
        if name not in CHAT_DRAFTERS:
            raise ConfigError(f"no drafter {name!r} for a chat", f"use one of {', '.join(CHAT_DRAFTERS)}")
        if name == "model" and self._draft_model is None:
            raise ConfigError(
                f"{self.plan.target.name} has no draft model",
                "start the chat with --draft-model, or use /drafter lookup",
            )
        draft = replace(self.plan.draft, drafter=name, draft_length=self.plan.draft.draft_length or None)
        draft_model = self._draft_model if "model" in SOURCES[name] else None
        with abort_on_interrupt():
            if draft.is_controlled and self._drafting.target_cost is None:
                self.session.reuse([])  # measuring takes the cache
            self._drafting.forget_fed()  # measuring feeds the draft model
            loader = Loader(self.plan.context, draft, self.plan.draft_gpu_layers)
            try:
                loader.equip(self._drafting, self.session.target, draft_model, notice)
            except BaseException:
                self._renew_drafter(self.plan.sampling)  # measuring takes the draft model's cache, and may be over
                raise
        self.session.draft_model = self._drafting.draft_model
        self.plan = replace(self.plan, draft=draft, draft_model=draft_model)
        self._drafting.config = draft
        self._renew_drafter(self.plan.sampling)
        self._kind = ""

    def _renew_drafter(self, sampling: SamplingConfig, kind: learned.TextKind = "prose") -> None:
        """The drafter as it is before anything was learned on that kind of text, with the target's way to sample."""
        self._drafting.sampler = KeyedSampler(sampling, self._constraint)
        self._drafting.acceptance = new_acceptance(kind)
        self.session.drafter = self._drafting.chosen()


@contextlib.contextmanager
def open_models(request: GenerateRequest, notice: Callable[[str], None]) -> Iterator[ChatModels]:
    """Loads what a chat needs, and frees it afterwards; of the request all but its prompt counts."""
    plan = make_plan(request)
    _, draft_model, _ = locate_pair(request.target, request.draft_model)
    n_rows = max(plan.context.n_outputs_max, CONTROLLED_DRAFT_LENGTH + 1)  # /drafter may come to need them
    plan = replace(plan, context=replace(plan.context, n_outputs_max=n_rows))
    with contextlib.ExitStack() as stack:
        with abort_on_interrupt():
            start_sandbox()  # while the weights are loaded
            opened = stack.enter_context(opening(plan, notice))
            weights = opened.weights
            _require_template(weights)
            for remark in remarks(weights, plan.generate):
                LOGGER.warning(remark)
            n_ctx = plan.context.n_ctx or min(weights.n_ctx_train or DEFAULT_CTX, DEFAULT_CTX)
            session, drafting, context = opened.session(n_ctx)
            structure = plan.generate.structure
            drafting.constraint = constraint = GrammarConstraint(structure, weights.vocab) if structure else None
            drafting.sampler = KeyedSampler(plan.sampling, constraint)
            session.drafter = drafting.chosen()
        yield ChatModels(replace(plan, context=context), weights, session, drafting, draft_model, constraint)


def _require_template(weights: Weights) -> None:
    if weights.chat_template is None:
        raise ConfigError(
            f"{weights.path.name} has no chat template: it was not made for conversations",
            "use an instruct model (specllm models list), or `specllm generate --raw`",
        )
