"""A conversation: turns with their token ids, so that every answer reads only what is new.

The KV cache holds a beginning of the conversation as it is shown, never more: after a stop, Ctrl-C, /undo or a dropped turn
what does not belong to it is rolled back, and the next prompt keeps all that it shares with it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from specllm.app.chat.models import ChatModels
from specllm.app.chat.template import Message
from specllm.app.chat.tokens import ChatTokenizer, shown_tokens
from specllm.app.generate import Answer
from specllm.app.generation import FinishReason, Generation
from specllm.config import Overflow
from specllm.decoding.metrics import Metrics
from specllm.decoding.protocols import Token
from specllm.errors import ConfigError, ContextFull
from specllm.runtime.interrupt import abort_on_interrupt, hold_interrupts

_KEPT_FIGURES = ("n_prompt", "n_reused", "n_prefilled", "ttft_s", "decode_tok_per_s", "n_drafted", "n_accepted")


@dataclass(frozen=True, kw_only=True, slots=True)
class Turn:
    """A message and its answer."""

    message: str
    text: str
    tokens: tuple[Token, ...] | None = None  # of the text, as generated; None: only the text is known
    n_message: int  # tokens of the message by itself
    n_answer: int
    finish_reason: FinishReason = "stop"
    stats: Mapping[str, object] = field(default_factory=dict)
    n_earlier_tries: int = 0  # answers to this message that were thrown away


@dataclass(frozen=True, kw_only=True, slots=True)
class Figures:
    """What is known about an answer that is over."""

    metrics: Metrics
    strategy: str
    finish_reason: FinishReason | None


class Chat:
    """Messages in, answers out. Whatever fails, the conversation is as it was before."""

    def __init__(self, models: ChatModels, *, system: str | None = None, overflow: Overflow = "drop") -> None:
        self.models = models
        self.turns: list[Turn] = []
        self.n_dropped = 0  # of the turns, the oldest, which the model no longer reads
        self.unanswered: str | None = None  # the last message, if it got no answer; no part of the conversation
        self.last_figures: Figures | None = None
        self.is_saved = True  # nothing would be lost
        self._system = system
        self.overflow = overflow
        self._tokenizer = ChatTokenizer(models.weights, models.plan.generate.template_vars)

    # ---- what it is ------------------------------------------------------------------------------------------------

    @property
    def system(self) -> str | None:
        return self._system

    @system.setter
    def system(self, text: str | None) -> None:
        self._system = text
        self._forget_what_is_not_shown()

    @property
    def n_ctx(self) -> int:
        return self.models.session.target.n_ctx

    @property
    def n_context(self) -> int:
        """Tokens of the conversation that the context holds."""
        return len(self.models.session.context)

    @property
    def last_message(self) -> str | None:
        """What /retry answers again."""
        return self.unanswered or (self.turns[-1].message if self.turns else None)

    def count(self, text: str) -> int:
        """Tokens of a text by itself."""
        return len(self.models.weights.vocab.tokenize(text, adds_special=False, parses_special=False))

    # ---- turns -----------------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def ask(self, message: str, say: Callable[[str], None], *, is_again: bool = False) -> Iterator[Answer]:
        """An answer to iterate inside; afterwards it is part of the conversation, also where Ctrl-C cut it short.

        `is_again`: it takes the place of the last answer, or of the message that got none. `say` is told what a user
        should know. Raises ContextFull where the message has no room.
        """
        replaced = self.turns[-1] if is_again and self.turns and self.unanswered is None else None
        turns = self.turns[:-1] if replaced else self.turns
        n_tries = replaced.n_earlier_tries + 1 if replaced and replaced.message == message else 0
        if replaced is None:
            self.unanswered = message  # until it is answered: whatever fails, it can be sent again
        with abort_on_interrupt():
            prompt, n_dropped = self._prompt(turns, message, say)
            with self.models.answer(prompt, message, n_earlier_tries=n_tries) as (answer, generation):
                try:
                    yield answer
                except KeyboardInterrupt:
                    answer.interrupt()
                hold_interrupts()  # what there is becomes part of the conversation first
            self.last_figures = Figures(
                metrics=answer.metrics, strategy=answer.strategy, finish_reason=answer.finish_reason
            )
            turn = self._turn(message, prompt, generation, n_tries)
            if turn is not None:
                self.turns, self.n_dropped, self.unanswered, self.is_saved = [*turns, turn], n_dropped, None, False

    def undo(self) -> str:
        """Takes back the last message with its answer; returns it. Raises ConfigError where there is none."""
        if self.unanswered is None and not self.turns:
            raise ConfigError("there is nothing to undo", "send a message first")
        if self.unanswered is not None:
            message, self.unanswered = self.unanswered, None
        else:
            message, self.is_saved = self.turns.pop().message, not self.turns
        if self.n_dropped >= len(self.turns):
            self.n_dropped = 0  # nothing else is left to read
        self._forget_what_is_not_shown()
        return message

    def replace(self, system: str | None, turns: Sequence[Turn], unanswered: str | None = None) -> None:
        """Another conversation takes the place of this one."""
        self._system, self.turns, self.unanswered, self.n_dropped = system, list(turns), unanswered, 0
        self.is_saved = True
        self._forget_what_is_not_shown()

    # ---- tokens ----------------------------------------------------------------------------------------------------

    def _prompt(self, turns: Sequence[Turn], message: str, say: Callable[[str], None]) -> tuple[list[Token], int]:
        """The tokens to continue, and how many of the oldest turns they leave out."""
        alone = self._tokens((), message)
        if len(alone) >= self.n_ctx:
            raise ContextFull(
                f"the message is {self.count(message):,} tokens, {len(alone):,} with what stands around it, and the "
                f"context holds {self.n_ctx:,}",
                self._hint_for(message, len(alone) + self.models.plan.generate.max_tokens),
            )
        n_dropped = min(self.n_dropped, len(turns))
        prompt = self._tokens(turns[n_dropped:], message)
        if self.overflow == "error":
            if len(prompt) >= self.n_ctx:
                raise ContextFull(
                    f"conversation and message are {len(prompt):,} tokens and the context holds {self.n_ctx:,}",
                    f"make it shorter{self._with_edit(message)}, /clear the conversation and send it again, or start the chat "
                    "with --overflow drop or a larger --ctx",
                )
            return prompt, n_dropped
        reserve = min(self.models.plan.generate.max_tokens, self.n_ctx // 4)  # for the answer
        limit = self.n_ctx - reserve
        if len(prompt) <= limit or n_dropped == len(turns):
            return prompt, n_dropped
        # Every drop makes the model read all that is left anew, so one drop has to last: half the room becomes free.
        goal = len(alone) + max(0, limit - len(alone)) // 2
        n_before = n_dropped
        while len(prompt) > goal and n_dropped < len(turns):
            n_dropped += 1
            prompt = self._tokens(turns[n_dropped:], message)
        n_new = n_dropped - n_before
        say(f"the context is full: the model no longer reads {'the oldest turn' if n_new == 1 else f'the {n_new} oldest turns'}"
            f" ({len(prompt):,} of {self.n_ctx:,} tokens are left)")  # fmt: skip
        return prompt, n_dropped

    def _hint_for(self, message: str, n_wanted: int) -> str:
        trained = self.models.weights.n_ctx_train
        if n_wanted > trained > 0:
            return f"give a part of it{self._with_edit(message)}: the model was trained for {trained:,} tokens"
        return f"make it shorter{self._with_edit(message)}, or start the chat with --ctx {n_wanted}"

    def _with_edit(self, message: str) -> str:
        return " with /edit" if message == self.unanswered else ""

    def _tokens(self, turns: Sequence[Turn], message: str | None) -> list[Token]:
        """The conversation with these turns, up to where `message` is to be answered."""
        messages = [Message("system", self._system)] if self._system is not None else []
        answers: dict[int, Sequence[Token]] = {}
        for turn in turns:
            messages.append(Message("user", turn.message))
            if turn.tokens is not None:
                answers[len(messages)] = turn.tokens
            messages.append(Message("assistant", turn.text))
        if message is not None:
            messages.append(Message("user", message))
        return self._tokenizer.tokens(messages, answers, is_question=message is not None)

    def _turn(self, message: str, prompt: Sequence[Token], generation: Generation, n_earlier_tries: int) -> Turn | None:
        """What became of a generation, with the KV cache cut to what is shown of it; None where nothing is."""
        vocab, session = self.models.weights.vocab, self.models.session
        tokens = generation.tokens
        is_ended = bool(tokens) and tokens[-1] in vocab.eog
        text = generation.text
        if not text and not is_ended and generation.finish_reason != "stop":
            return None
        if generation.finish_reason == "stop" and not is_ended:  # at a stop string, which may be a control token
            while tokens and not vocab.piece(tokens[-1]):
                tokens = tokens[:-1]
        kept = shown_tokens(vocab, tokens[:-1] if is_ended else tokens, text)
        session.reuse([*prompt, *kept, *tokens[-1:]] if is_ended else [*prompt, *kept])
        return Turn(
            message=message, text=text, tokens=tuple(kept), n_message=self.count(message), n_answer=len(kept),
            n_earlier_tries=n_earlier_tries,
            finish_reason=generation.finish_reason or "interrupted",
            stats={name: value for name, value in generation.metrics.as_dict().items() if name in _KEPT_FIGURES},
        )  # fmt: skip

    def _forget_what_is_not_shown(self) -> None:
        """Rolls the KV cache back to what it shares with the conversation."""
        try:
            shown = self._tokens(self.turns[self.n_dropped :], None)
        except ConfigError:  # a template that wants a message first
            shown = []
        with abort_on_interrupt():
            self.models.session.reuse(shown)
