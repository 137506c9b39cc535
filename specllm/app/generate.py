"""The use case behind `specllm generate`: names to loaded models, prompt to tokens, tokens to an answer."""

from __future__ import annotations

import contextlib
import logging
import secrets
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from specllm.app import learned
from specllm.app.calibration import forget_if_wrong
from specllm.app.chat.template import start_sandbox
from specllm.app.drafting import SOURCES, Drafting, new_acceptance
from specllm.app.generation import FinishReason, Generation, LogprobsOf, Session, traced
from specllm.app.host import describe_build
from specllm.app.logprobs import Piece, described
from specllm.app.memory.room import has_room_for_all
from specllm.app.models import LocatedModel, locate_pair
from specllm.app.opening import opening
from specllm.app.prompt import remarks, tokenize_prompt
from specllm.app.store.keep import kept_in_store
from specllm.app.text import Chunk
from specllm.app.trace.writer import TraceWriter
from specllm.config import (
    CONTROLLED_DRAFT_LENGTH,
    ContextConfig,
    DraftConfig,
    GenerateConfig,
    GpuLayers,
    SamplingConfig,
)
from specllm.decoding.logprobs import LogprobSampler
from specllm.decoding.metrics import Metrics
from specllm.decoding.protocols import Round, Token
from specllm.decoding.sampling import KeyedSampler
from specllm.errors import ConfigError, IncompleteAnswer
from specllm.models.store import recorded_digest, size_on_disk
from specllm.runtime.backend import physical_cores
from specllm.runtime.grammar import GrammarConstraint, check_structure
from specllm.runtime.interrupt import abort_on_interrupt, hold_interrupts
from specllm.runtime.vocab import Vocab

LOGGER = logging.getLogger("specllm")


@dataclass(frozen=True, kw_only=True, slots=True)
class GenerateRequest:
    """Everything a user asked for, before names are looked up and defaults filled in."""

    prompt: str
    target: str | None = None  # a name, path or hub reference; None: the default pair
    draft_model: str | None = None
    sources: Sequence[Path] = ()  # files whose text is in the prompt or the prediction
    prediction: str | None = None  # text that the answer is expected to resemble: drafts are taken from it
    sampling: Mapping[str, Any]  # what was set; the model's entry and llama.cpp's defaults give the rest
    context: ContextConfig = ContextConfig()
    draft_gpu_layers: GpuLayers = "auto"
    draft: DraftConfig = DraftConfig()
    generate: GenerateConfig = GenerateConfig()
    growth: int | None = None  # twice the prediction's tokens and so many more, in the place of `generate.max_tokens`

    def sized(self, n_prediction: int) -> GenerateConfig:
        """How to generate, once it is known how many tokens the prediction is."""
        return (
            self.generate if self.growth is None else replace(self.generate, max_tokens=2 * n_prediction + self.growth)
        )


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
        generate["template_vars"] = dict(self.generate.template_vars)
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
    _chunks: Generator[list[Chunk], None, None]
    _logprobs_of: LogprobsOf | None = None  # of the answer's tokens from one up to another; None where nobody asked
    control_token: str | None = None  # the first one in the answer, once that is closed: it has no text
    spelled: str = ""  # the answer with its control tokens spelled out, where it has any

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
    def text(self) -> str:
        """What was generated so far."""
        return self._generation.text

    @property
    def metrics(self) -> Metrics:
        return self._generation.metrics

    @property
    def finish_reason(self) -> FinishReason | None:
        return self._generation.finish_reason

    @property
    def shortfall(self) -> IncompleteAnswer | None:
        """What to raise where a structure was asked for and the answer ended before it was whole."""
        if self.plan.generate.structure is None or self._generation.is_complete or self.finish_reason == "interrupted":
            return None
        n, limit = self.metrics.n_committed, self.plan.generate.max_tokens
        if self.finish_reason == "length":
            ended, hint = f"was cut after {n:,} tokens", f"allow more with -n (it was {limit:,}) or a larger --ctx"
        else:
            ended, hint = f"ended after {n:,} tokens", "look at its stop strings and its grammar"
        return IncompleteAnswer(f"the answer {ended}, before it was complete", hint)

    @property
    def strategy(self) -> str:
        """Who drafted and how much, and what was left off and why."""
        return self._session.strategy(self.plan.draft)

    @property
    def last_round(self) -> Round | None:
        """The round behind the chunks that were yielded last."""
        return self._generation.last_round

    def host(self) -> dict[str, object]:
        """For the `host` part of a JSON document."""
        return describe_build()

    def result(self) -> dict[str, object]:
        """For the `result` part of a JSON document."""
        result: dict[str, object] = {
            "text": self.text,
            "finish_reason": self.finish_reason,
            "strategy": self.strategy,
            "stats": self.metrics.as_dict(),
        }
        if (exactness := self._session.exactness()) is not None:
            result["exact"] = exactness
        if self._logprobs_of is not None:
            result["logprobs"] = self._logprobs_of(0, len(self._generation.tokens))
        return result


def make_plan(request: GenerateRequest, *, needs_draft_model: bool = False) -> Plan:
    """The request filled in (`fill_in`), without a draft model that is not needed and does not fit in memory.

    Raises OutOfMemory, with a plan, where the models do not fit; nothing is loaded for it.
    """
    plan = fill_in(request)
    is_optional = plan.draft.drafter == "auto" and not needs_draft_model
    has_room = has_room_for_all(plan, n_tokens=plan.generate.max_tokens, is_draft_optional=is_optional)
    return plan if has_room else replace(plan, draft_model=None)


def fill_in(request: GenerateRequest) -> Plan:
    """Looks up the models and fills in defaults: flag > models.toml > ours and llama.cpp's."""
    if request.generate.structure:
        check_structure(request.generate.structure)
    target, draft_model, default = locate_pair(request.target, request.draft_model)
    if request.prediction is not None:  # it is given to be used, whatever models.toml says
        default = "auto"
    drafter = "none" if request.draft.draft_length == 0 else request.draft.drafter or default
    draft = replace(request.draft, drafter=drafter)
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
    """Loads what the request names; inside, iterate the answer. Everything is freed and the trace in place afterwards, also where
    Ctrl-C is raised at the end: what the answer says of itself holds then too.

    `notice` is told what takes seconds before the first token.
    """
    plan = make_plan(request)
    with contextlib.ExitStack() as stack:
        stack.enter_context(abort_on_interrupt())
        if not plan.generate.is_raw:
            start_sandbox()  # while the weights are loaded
        opened = stack.enter_context(opening(plan, notice))
        weights = opened.weights
        for remark in remarks(weights, plan.generate):
            LOGGER.warning(remark)
        prompt = tokenize_prompt(weights, request.prompt, plan.generate)
        reference: list[Token] = []
        if request.prediction is not None:
            reference = weights.vocab.tokenize(request.prediction, adds_special=False, parses_special=False)
            plan = replace(plan, generate=request.sized(len(reference)))
        n_ctx = opened.context_size(len(prompt), plan.generate)
        session, drafting, context = opened.session(n_ctx)
        plan = replace(plan, context=context)
        drafting.reference = reference
        structure = plan.generate.structure
        constraint = GrammarConstraint(structure, weights.vocab) if structure else None
        sampler = drafting.sampler = KeyedSampler(plan.sampling, constraint)
        drafting.constraint = constraint
        kind = learned.kind_of_text(request.prompt)
        drafting.acceptance = new_acceptance(kind)
        session.drafter = drafting.chosen()
        stack.enter_context(remembered(session, drafting, plan, kind))
        recorder = None if plan.generate.logprobs is None else LogprobSampler(sampler, plan.generate.logprobs)
        generation = session.generate(prompt, recorder or sampler, plan.draft.most_drafted, plan.generate, constraint)
        if request.prediction is not None:
            generation.metrics.n_prediction = len(reference)
        piece = partial(weights.vocab.piece, shows_special=True)
        made = Answer(plan, session, generation, iter(generation))
        if recorder is not None:
            made._logprobs_of = partial(_logprobs, recorder, len(prompt), piece)
            stack.callback(_keep_logprobs, made, made._logprobs_of)
        if plan.generate.trace:
            stack.enter_context(_written_down(made, plan.generate.trace, piece))
        stack.callback(_spell_control_tokens, made, weights.vocab)
        # After Ctrl-C between two rounds it is still suspended inside `abort_on_interrupt`; left to the garbage collector
        # it would end when Python does, and wait for a thread that is gone.
        stack.callback(lambda: made._chunks.close())
        stack.enter_context(kept_in_store(drafting, generation, prompt, request.prompt, request.sources))
        stack.callback(hold_interrupts)  # what follows keeps what is finished
        yield made


def _logprobs(recorder: LogprobSampler, n_prompt: int, piece: Piece, start: int, end: int) -> list[dict[str, object]]:
    return described(recorder.kept(n_prompt + start, n_prompt + end), piece)


def _keep_logprobs(answer: Answer, logprobs_of: LogprobsOf) -> None:
    """What a closed answer is asked for is ready: the texts of its tokens cannot be read without the model."""
    kept = logprobs_of(0, len(answer._generation.tokens))
    answer._logprobs_of = lambda start, end: kept[start:end]


def _spell_control_tokens(answer: Answer, vocab: Vocab) -> None:
    """Makes those visible in a closed answer that its text does not show. What ended it is none of them."""
    tokens = [token for token in answer._generation.tokens if token not in vocab.eog]
    answer.control_token = next(
        (text for token in tokens if not vocab.piece(token) and (text := vocab.text(token))), None
    )
    if answer.control_token is not None:
        answer.spelled = b"".join(vocab.piece(token, shows_special=True) for token in tokens).decode(errors="replace")


@contextlib.contextmanager
def _written_down(answer: Answer, trace: Path, piece: Piece) -> Iterator[None]:
    """Every round of the answer goes into `trace`, and how it ended."""
    with TraceWriter(trace, lambda token: piece(token).decode("utf-8", "replace")) as writer:
        answer._chunks = traced(answer._generation, writer, answer._logprobs_of)
        yield
        writer.end(finish_reason=answer.finish_reason, strategy=answer.strategy)


@contextlib.contextmanager
def remembered(session: Session, drafting: Drafting, plan: Plan, kind: learned.TextKind) -> Iterator[None]:
    """Starts from what earlier answers of this pair taught about that kind of text, and keeps what this one teaches."""
    controller = session.controller
    if controller is None:
        yield
        return
    file = learned.file_of(plan.target.name, plan.draft_model.name if plan.draft_model else None)
    learned.restore(file, kind, controller.acceptance)
    yield
    learned.save(file, kind, controller.acceptance)
    if drafting.target_identity:
        forget_if_wrong(controller.cost, drafting.target_identity)
