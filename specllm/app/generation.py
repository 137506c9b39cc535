"""A loaded target with its drafter, and answers in the making."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import replace
from time import perf_counter
from typing import Literal

from specllm.app.text import Chunk, TextStream, sources
from specllm.app.trace.writer import TraceWriter
from specllm.config import DraftConfig, GenerateConfig
from specllm.decoding.certainty import CertaintySampler
from specllm.decoding.constraint import Constraint
from specllm.decoding.controller import Controller
from specllm.decoding.decode import Until, decode, prefill
from specllm.decoding.exact import ExactWidths
from specllm.decoding.metrics import Metrics
from specllm.decoding.protocols import Drafter, Round, Sampler, Token
from specllm.drafters.auto import AutoDrafter
from specllm.drafters.exact import ExactDrafter
from specllm.errors import ContextFull
from specllm.runtime.interrupt import abort_on_interrupt
from specllm.runtime.llama import LlamaModel

FinishReason = Literal["stop", "length", "interrupted"]
LogprobsOf = Callable[[int, int], Sequence[Mapping[str, object]]]


class Session:
    """The models of a conversation and the token ids whose keys and values the target has cached."""

    def __init__(
        self,
        target: LlamaModel,
        drafter: Drafter,
        *,
        draft_model: LlamaModel | None = None,
        is_exact: bool = False,
    ) -> None:
        self.target = target
        self.drafter = drafter
        self.draft_model = draft_model
        self.is_exact = is_exact  # only blocks that compute, bit for bit, what single tokens do
        self.exact_widths = ExactWidths(target)
        self.context: list[Token] = []

    def generate(
        self,
        prompt: Sequence[Token],
        sampler: Sampler,
        draft_length: int,
        config: GenerateConfig,
        constraint: Constraint | None = None,
    ) -> Generation:
        """An answer to `prompt`, computed as it is iterated. Tokens shared with the last context are not fed again.

        `constraint` is the sampler's, where it has one.
        """
        if not prompt:
            raise ContextFull("the prompt is empty", "give some text to continue")
        if len(prompt) >= self.target.n_ctx:
            trained = self.target.weights.n_ctx_train
            wanted = len(prompt) + config.max_tokens
            raise ContextFull(
                f"the prompt is {len(prompt):,} tokens and the context holds {self.target.n_ctx:,}",
                f"pass --ctx {min(wanted, trained) if len(prompt) < trained else wanted} "
                f"(the model was trained for {trained:,}) or shorten the prompt",
            )
        return Generation(self, prompt, sampler, draft_length, config, constraint)

    def reuse(self, prompt: Sequence[Token]) -> int:
        """Makes `prompt` the context, keeping the cached tokens they share; returns how many those are."""
        n_shared = 0
        # Not its last token: that is never fed, and after Ctrl-C a rejected draft may still lie in its place.
        for ours, theirs in zip(self.context[:-1][: self.target.n_past], prompt[:-1], strict=False):
            if ours != theirs:
                break
            n_shared += 1
        self.context = list(prompt[:n_shared])  # Ctrl-C in the rollback: no more is known to be cached than this
        self.target.rollback(n_shared)
        self.context = list(prompt)
        return n_shared

    @property
    def controller(self) -> Controller | None:
        """Who decides about drafts, where nobody fixed their length."""
        return self.drafter.controller if isinstance(self.drafter, AutoDrafter) else None

    def strategy(self, config: DraftConfig) -> str:
        """Who drafted and how much, and what was left off and why, in a few words."""
        if config.drafter == "none":
            return "plain decoding"
        length = f" k={config.draft_length}" if self.controller is None else f": {self.controller.summary()}"
        return f"{config.drafter}{length}{f', exact: {self.exact_widths.summary()}' if self.is_exact else ''}"

    def exactness(self) -> dict[str, object] | None:
        """What it costs to be exact, for a result: how wide blocks may be, by the cells of the KV cache up to which that
        holds, and the speed-up that perfect drafts could reach with and without that limit. None where nobody asked."""
        if not self.is_exact:
            return None
        widths, speedups = self.exact_widths.as_dict(), {}
        if self.controller is not None and widths:
            cost, limit = self.controller.cost, list(widths.values())[-1]
            speedups = {
                "largest_speedup": cost.largest_speedup(limit),
                "largest_speedup_otherwise": cost.largest_speedup(),
            }
        return {"width_by_cells": widths, "measuring_s": self.exact_widths.seconds, **speedups}

    def close(self) -> None:
        """Frees contexts and weights."""
        for model in (self.target, self.draft_model):
            if model is not None:
                model.close()
                model.weights.close()


class Generation:
    """One answer: iterate for the text as it comes; the figures are right at any time.

    Yields after every step of the prefill (nothing to show yet) and after every round. Ctrl-C ends it with the finish
    reason `interrupted` and everything up to there.
    """

    def __init__(
        self,
        session: Session,
        prompt: Sequence[Token],
        sampler: Sampler,
        draft_length: int,
        config: GenerateConfig,
        constraint: Constraint | None = None,
    ) -> None:
        self.metrics = Metrics(n_prompt=len(prompt))
        self.finish_reason: FinishReason | None = None
        self.is_complete = (
            False  # ended by itself and, where there is a grammar, as that allows; never at a token limit
        )
        self.last_round: Round | None = None
        self.draft_length = draft_length
        self._session = session
        self._prompt = prompt
        self._sampler = sampler
        self._config = config
        self._constraint = constraint
        vocab = session.target.vocab
        self._stream = TextStream(vocab, config.stop)
        self._stop_tokens = {vocab.control_token(stop.strip()) for stop in config.stop}
        self._text: list[str] = []

    @property
    def text(self) -> str:
        return "".join(self._text)

    @property
    def tokens(self) -> list[Token]:
        """The committed tokens so far."""
        return self._session.context[len(self._prompt) :]

    def interrupt(self) -> None:
        """Marks the answer as cut short by the user, unless it was complete."""
        self.finish_reason = self.finish_reason or "interrupted"

    def settle(self) -> None:
        """Ends an answer that is not iterated any further: the text that was held back joins it."""
        self._keep(self._stream.finish())

    def __iter__(self) -> Generator[list[Chunk], None, None]:
        try:
            with abort_on_interrupt():
                for _ in self._prefill():
                    yield []
                for round in self._rounds():
                    yield self._keep(self._stream.settle(sources(round)))
        except KeyboardInterrupt:
            self.interrupt()
        yield self._keep(self._stream.finish())

    def _keep(self, chunks: list[Chunk]) -> list[Chunk]:
        self._text += [chunk.text for chunk in chunks]
        return chunks

    def _prefill(self) -> Iterator[int]:
        session, metrics = self._session, self.metrics
        metrics.n_reused = session.reuse(self._prompt)
        started = perf_counter()
        for n_past in prefill(session.target, session.context):
            metrics.prefill_s = perf_counter() - started
            yield n_past
        if self._constraint is not None:
            self._constraint.begin(len(self._prompt))
        session.drafter.begin(session.context)
        metrics.prefill_s = perf_counter() - started

    def _ends_with(self, token: Token) -> bool:
        """Whether the text ends with this token: a stop string is complete, or the grammar allows nothing behind it.

        Control tokens are no text: one that is a stop string is looked for as a token.
        """
        has_stop = self._stream.push(token) or token in self._stop_tokens
        return has_stop or (self._constraint is not None and self._constraint.is_over(self._session.context))

    def _rounds(self) -> Iterator[Round]:
        session = self._session
        until = Until(
            min(self._config.max_tokens, session.target.n_ctx - len(self._prompt)),
            session.target.vocab.eog,
            self._ends_with,
        )
        drafter = ExactDrafter(session.drafter, session.exact_widths) if session.is_exact else session.drafter
        sampler, controller = self._sampler, session.controller
        if controller is not None and controller.asks_a_model:
            sampler = CertaintySampler(sampler, controller.certainty)
        for round in decode(session.target, drafter, sampler, session.context, self.draft_length, until):
            if controller is not None:
                round = replace(round, plain_s=controller.plain_s(round))
            self.metrics.add(round)
            self.last_round = round
            if round.reason:
                self.finish_reason = "length" if round.reason == "length" else "stop"
                self.is_complete = self.finish_reason == "stop" and (
                    self._constraint is None or self._constraint.is_complete(session.context)
                )
            yield round


def traced(
    generation: Generation, trace: TraceWriter, logprobs_of: LogprobsOf | None = None
) -> Generator[list[Chunk], None, None]:
    """The generation, with every round written down before its text is handed on.

    `logprobs_of`: what is to be written about the answer's tokens from `start` up to `end`.
    """
    n_rounds = 0
    for chunks in generation:
        if generation.metrics.n_rounds > n_rounds and generation.last_round is not None:
            n_rounds, n = generation.metrics.n_rounds, generation.metrics.n_committed
            logprobs = logprobs_of(n - len(generation.last_round.tokens), n) if logprobs_of else ()
            trace.write(generation.last_round, generation.metrics, logprobs)
        trace.show(chunks)
        yield chunks
