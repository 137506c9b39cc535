"""Draws a conversation: answers as they come, and how full the context is and what was saved beside them."""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Iterable, Iterator
from typing import Protocol

from specllm.decoding.metrics import Metrics
from specllm.ui.console import harmless, has_colour, is_terminal, joined
from specllm.ui.generate import Answer, AnswerView, against_plain, shown_speed, status, without_drafts
from specllm.ui.markdown import MarkdownStream
from specllm.ui.status import Panel

_WINDOW_S = 2.0  # of decoding, for the speed "now"
_MAX_SHOWN = 400  # characters of a text in a list


class Room(Protocol):
    """How full the context is, in tokens."""

    @property
    def n_context(self) -> int: ...
    @property
    def n_ctx(self) -> int: ...


class Figures(Protocol):
    """What is known about an answer."""

    @property
    def metrics(self) -> Metrics: ...
    @property
    def strategy(self) -> str: ...
    @property
    def finish_reason(self) -> str | None: ...


class ChatView(AnswerView):
    """An answer inside a conversation: the status line also tells about the context."""

    def __init__(self, room: Room, *, has_text: bool = True, has_status: bool = True, colours_accepted: bool = False,
                 has_markdown: bool = False) -> None:  # fmt: skip
        super().__init__(has_text=has_text, has_status=has_status, colours_accepted=colours_accepted)
        self._room = room
        self._past: deque[tuple[float, int]] = deque([(0.0, 0)])
        self._markdown = MarkdownStream() if has_markdown and has_text and is_terminal(sys.stdout) else None

    def stream(self, answer: Answer) -> None:
        """See `AnswerView.stream`; with Markdown, block by block."""
        if self._markdown is None:
            super().stream(answer)
            return
        try:
            self._line.show(self._status(answer), is_urgent=True)
            for chunks in answer:
                if text := self._markdown.push("".join(chunk.text for chunk in chunks)):
                    self._line.write(text)
                self._line.show(self._status(answer))
        except KeyboardInterrupt:
            answer.interrupt()
        if text := self._markdown.finish():
            self._line.write(text)

    def close(self, answer: Answer, *, has_table: bool = False) -> None:
        """Says on stderr how it went, on one line, and the table if wanted."""
        if self._has_status and self._has_text:
            print(answer_line(answer, self._room), file=sys.stderr)
        if has_table:
            super().close(answer, has_table=True)

    def _status(self, answer: Answer) -> str | Panel:
        metrics = answer.metrics
        if not metrics.n_rounds:
            return status(_reading(metrics))
        return status(figures(answer, self._room, self._speed_now(metrics)))

    def _speed_now(self, metrics: Metrics) -> float | None:
        """Tokens per second over the last two seconds of decoding."""
        past = self._past
        if (metrics.decode_s, metrics.n_committed) != past[-1]:
            past.append((metrics.decode_s, metrics.n_committed))
        while len(past) > 2 and past[-1][0] - past[1][0] >= _WINDOW_S:
            past.popleft()
        (start_s, n_start), (end_s, n_end) = past[0], past[-1]
        return (n_end - n_start) / (end_s - start_s) if end_s > start_s else None


def answer_line(answer: Figures, room: Room) -> str:
    """The one line about an answer that is over."""
    metrics = answer.metrics
    if answer.finish_reason == "interrupted" and not metrics.n_rounds:
        return joined(["interrupted while reading", *_reading(metrics)], sys.stderr)
    ending = {"interrupted": " before Ctrl-C", "length": ", cut"}.get(answer.finish_reason or "", "")
    return joined([f"{metrics.n_committed} tokens{ending}", *figures(answer, room)], sys.stderr)


def figures(answer: Figures, room: Room, speed: float | None = None) -> Iterator[str]:
    """The short forms, most important first; the speed of the whole answer unless one is given."""
    metrics = answer.metrics
    speed = metrics.decode_tok_per_s if speed is None else speed
    if speed is not None:
        yield f"{shown_speed(speed)} tok/s{against_plain(speed, metrics)}"
    if metrics.acceptance_rate is None:
        yield without_drafts(answer.strategy)
    else:
        source, _ = max(metrics.accepted_by_source.items(), key=lambda item: item[1], default=("drafts", 0))
        yield f"{source} {metrics.acceptance_rate:.0%}"
    yield f"context {room.n_context / room.n_ctx:.0%}"
    yield f"reused {metrics.n_reused:,}, read {metrics.n_prompt - metrics.n_reused:,}"
    if metrics.n_drafting_rounds:
        yield f"k {metrics.n_drafted / metrics.n_drafting_rounds:.0f}"


def toolbar(answer: Figures | None, room: Room) -> str:
    """What stands below the input line: the last answer's figures, and where help is."""
    if answer is None:
        return joined([f"context 0% of {room.n_ctx:,}", "/help", "Alt-Enter: new line"], sys.stdout)
    return joined([*figures(answer, room), "/help"], sys.stdout)


def print_greeting(model: str, room: Room) -> None:
    """One dim line before the first question."""
    line = joined([harmless(model), f"context {room.n_ctx:,} tokens", "/help lists commands"], sys.stderr)
    print(f"\x1b[2m{line}\x1b[0m" if has_colour(sys.stderr) else line, file=sys.stderr, flush=True)


def _reading(metrics: Metrics) -> Iterator[str]:
    seconds = f", {metrics.prefill_s:.1f} s" if metrics.prefill_s else ""
    yield f"reading {metrics.n_prompt - metrics.n_reused:,} tokens{seconds}"
    yield f"reused {metrics.n_reused:,}"


def print_table(rows: Iterable[tuple[str, str]]) -> None:
    """Two columns on stderr; long texts are cut, and nothing in them is obeyed."""
    shown = [(name, harmless(value)) for name, value in rows]
    width = max((len(name) for name, _ in shown), default=0)
    for name, value in shown:
        more = f" .. ({len(value):,} characters)" if len(value) > _MAX_SHOWN else ""
        print(f"  {name:<{width}}  {value[:_MAX_SHOWN]}{more}", file=sys.stderr)
