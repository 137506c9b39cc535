"""The use case behind `specllm generate`: names to loaded models, prompt to tokens, tokens to an answer."""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from specllm.app import learned
from specllm.app.calibration import forget_if_wrong
from specllm.app.drafting import SOURCES, Drafting
from specllm.app.generation import FinishReason, Generation, Session, traced
from specllm.app.host import describe_build
from specllm.app.loading import Loader
from specllm.app.models import LocatedModel, locate_pair
from specllm.app.offload import settled_gpu_layers
from specllm.app.prompt import tokenize_prompt
from specllm.app.text import Chunk
from specllm.app.trace import TraceWriter
from specllm.config import (
    CONTROLLED_DRAFT_LENGTH,
    ContextConfig,
    DraftConfig,
    GenerateConfig,
    GpuLayers,
    SamplingConfig,
)
from specllm.decoding.metrics import Metrics
from specllm.decoding.protocols import Round
from specllm.decoding.sampling import KeyedSampler
from specllm.errors import ConfigError
from specllm.models.gguf_header import read_header
from specllm.models.store import recorded_digest, size_on_disk
from specllm.runtime.backend import physical_cores
from specllm.runtime.interrupt import abort_on_interrupt
from specllm.runtime.vocab import Vocab


@dataclass(frozen=True, kw_only=True, slots=True)
class GenerateRequest:
    """Everything a user asked for, before names are looked up and defaults filled in."""

    prompt: str
    target: str | None = None  # a name, path or hub reference; None: the default pair
    draft_model: str | None = None
    prediction: str | None = None  # text that the answer is expected to resemble: drafts are taken from it
    sampling: Mapping[str, Any]  # what was set; the model's entry and llama.cpp's defaults give the rest
    context: ContextConfig = ContextConfig()
    draft_gpu_layers: GpuLayers = "auto"
    draft: DraftConfig = DraftConfig()
    generate: GenerateConfig = GenerateConfig()


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    """The request with every default filled in: what a result records and what reproduces it."""

    target: LocatedModel
    draft_model: LocatedModel | None  # None where no draft model is loaded
    sampling: SamplingConfig
    context: ContextConfig
    draft_gpu_layers: GpuLayers
    draft: DraftConfig
    generate: GenerateConfig

    def models(self) -> dict[str, object]:
        """For the `models` part of a JSON document."""
        named = {"target": self.target, "draft_model": self.draft_model}
        return {role: model and _described(model) for role, model in named.items()}

    def params(self) -> dict[str, object]:
        """Every effective parameter, for the `params` part of a JSON document."""
        sampling = asdict(self.sampling)
        sampling["logit_bias"] = {str(token): bias for token, bias in self.sampling.logit_bias}
        generate = asdict(self.generate)
        trace = generate.pop("trace")
        return {
            **asdict(self.draft),
            "most_drafted": self.draft.most_drafted,
            **sampling,
            **asdict(self.context),
            "draft_gpu_layers": self.draft_gpu_layers,
            **generate,
            "trace": str(trace) if trace else None,
        }


def _described(located: LocatedModel) -> dict[str, object]:
    """A model for the record, with the digest that models.toml promises or that was recorded at its first pull."""
    sha256 = located.model.sha256 if located.model else None
    if located.model and sha256 is None and (recorded := recorded_digest(located.model)):
        sha256 = recorded.sha256
    return {
        "name": located.name,
        "file": located.path.name,
        "bytes": size_on_disk(located.path),
        "sha256": sha256,
    }


@dataclass(slots=True)
class Answer:
    """A generation together with what it was made from; iterate for the text."""

    plan: Plan
    _session: Session
    _generation: Generation
    _chunks: Iterator[list[Chunk]]

    def __iter__(self) -> Iterator[list[Chunk]]:
        return self._chunks

    def finish(self) -> None:
        """Generates to the end; Ctrl-C ends it early."""
        try:
            for _ in self._chunks:
                pass
        except KeyboardInterrupt:
            self.interrupt()

    def interrupt(self) -> None:
        self._generation.interrupt()

    @property
    def metrics(self) -> Metrics:
        return self._generation.metrics

    @property
    def finish_reason(self) -> FinishReason | None:
        return self._generation.finish_reason

    @property
    def strategy(self) -> str:
        """Who drafted and how much, and what was left off and why."""
        return self._session.strategy(self.plan.draft)

    @property
    def last_round(self) -> Round | None:
        """The round behind the chunks that were yielded last."""
        return self._generation.last_round

    @property
    def plain_tok_per_s(self) -> float | None:
        """What plain decoding makes on this machine, as measured for the controller; None where nothing was measured."""
        return self._session.plain_tok_per_s

    def host(self) -> dict[str, object]:
        """For the `host` part of a JSON document."""
        return describe_build()

    def result(self) -> dict[str, object]:
        """For the `result` part of a JSON document."""
        return {
            "text": self._generation.text,
            "finish_reason": self.finish_reason,
            "strategy": self.strategy,
            "stats": self.metrics.as_dict(),
        }


def make_plan(request: GenerateRequest) -> Plan:
    """Looks up the models and fills in defaults: flag > models.toml > llama.cpp's."""
    target, draft_model, _ = locate_pair(request.target, request.draft_model)
    draft = replace(request.draft, drafter="none") if request.draft.draft_length == 0 else request.draft
    if draft.drafter == "model" and draft_model is None:
        raise ConfigError(f"{target.name} has no draft model", "name one with --draft-model, or use --drafter lookup")
    if draft.drafter == "reference" and request.prediction is None:
        raise ConfigError("there is no text to draft from", "give one with --prediction, or use --drafter lookup")
    sampling: dict[str, Any] = {"seed": secrets.randbits(32), **target.sampling, **request.sampling}
    n_rows = CONTROLLED_DRAFT_LENGTH if draft.is_controlled else draft.most_drafted
    return Plan(
        target=target,
        draft_model=draft_model if "model" in SOURCES[draft.drafter] else None,
        sampling=SamplingConfig(**sampling),
        context=replace(request.context, n_outputs_max=n_rows + 1, threads=request.context.threads or physical_cores()),
        draft_gpu_layers=request.draft_gpu_layers,
        draft=draft,
        generate=request.generate,
    )


@contextlib.contextmanager
def answer(request: GenerateRequest, notice: Callable[[str], None] = lambda text: None) -> Iterator[Answer]:
    """Loads what the request names; inside, iterate the answer. Everything is freed and the trace in place afterwards.

    `notice` is told what takes seconds before the first token.
    """
    plan = make_plan(request)
    with contextlib.ExitStack() as stack:
        stack.enter_context(abort_on_interrupt())
        loader = Loader(plan.context, plan.draft, request.draft_gpu_layers)
        layers = settled_gpu_layers(read_header(plan.target.path), plan.context.gpu_layers, plan.context)
        weights = loader.weights(plan.target.path, layers)
        stack.callback(weights.close)
        check_biases(plan.sampling, weights.vocab)
        prompt = tokenize_prompt(weights, request.prompt, plan.generate)
        n_ctx = plan.context.n_ctx or loader.context_size(weights, len(prompt), plan.generate)
        context = replace(plan.context, n_ctx=n_ctx, gpu_layers=layers)
        target, drafting = loader.open(weights, context, plan.sampling, plan.draft_model, notice)
        if request.prediction is not None:
            drafting.reference = weights.vocab.tokenize(request.prediction, adds_special=False, parses_special=False)
        session = Session(target, drafting.chosen(), draft_model=drafting.draft_model)
        stack.callback(session.close)
        plan = replace(plan, context=replace(context, n_batch=session.target.n_batch))
        stack.enter_context(remembered(session, drafting, plan, request.prompt))
        generation = session.generate(prompt, KeyedSampler(plan.sampling), plan.draft.most_drafted, plan.generate)
        chunks = iter(generation)
        if plan.generate.trace:
            vocab = weights.vocab
            writer = stack.enter_context(
                TraceWriter(
                    plan.generate.trace,
                    lambda token: vocab.piece(token, shows_special=True).decode("utf-8", "replace"),
                )
            )
            chunks = traced(generation, writer)
        yield Answer(plan, session, generation, chunks)


@contextlib.contextmanager
def remembered(session: Session, drafting: Drafting, plan: Plan, prompt: str) -> Iterator[None]:
    """Starts from what earlier answers of this pair taught about that kind of text, and keeps what this one teaches."""
    controller = session.controller
    if controller is None:
        yield
        return
    file = learned.file_of(plan.target.name, plan.draft_model.name if plan.draft_model else None)
    kind = learned.kind_of_text(prompt)
    learned.restore(file, kind, controller.acceptance)
    yield
    learned.save(file, kind, controller.acceptance)
    if drafting.target_identity:
        forget_if_wrong(controller.cost, drafting.target_identity)


def check_biases(sampling: SamplingConfig, vocab: Vocab) -> None:
    """Raises ConfigError for a biased token that the model does not have."""
    for token, _ in sampling.logit_bias:
        if token >= vocab.n_tokens:
            raise ConfigError(f"logit bias for token {token}: the model has {vocab.n_tokens:,} tokens",
                              f"use a token from 0 to {vocab.n_tokens - 1}")  # fmt: skip
