"""Draws an answer: streamed text, the live status line, the closing figures."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import Protocol

from rich import box
from rich.console import Console
from rich.table import Table

from specllm.decoding.metrics import Metrics
from specllm.ui.console import harmless, has_colour, is_terminal
from specllm.ui.status import StatusLine

_COLOURS = {"model": "\x1b[32m", "lookup": "\x1b[36m", "reference": "\x1b[35m", "grammar": "\x1b[33m"}
_OTHER_SOURCE = "\x1b[34m"
_RESET = "\x1b[0m"


class Chunk(Protocol):
    @property
    def text(self) -> str: ...
    @property
    def source(self) -> str: ...


class Answer(Protocol):
    """What is drawn: the parts of an `app.generate.Answer` that a screen needs."""

    def __iter__(self) -> Iterator[Sequence[Chunk]]: ...
    @property
    def metrics(self) -> Metrics: ...
    @property
    def draft_length(self) -> int: ...
    @property
    def source(self) -> str: ...
    def interrupt(self) -> None: ...


def stream(answer: Answer, *, has_status: bool, colours_accepted: bool) -> None:
    """Prints the answer to stdout as it comes, with the status line on stderr meanwhile; Ctrl-C ends it early."""
    is_coloured = colours_accepted and has_colour(sys.stdout)
    ends_with_newline = True
    with StatusLine(is_wanted=has_status) as status:
        try:
            for chunks in answer:
                for chunk in chunks:
                    ends_with_newline = chunk.text.endswith("\n")
                    sys.stdout.write(_drawn(chunk, is_coloured))
                sys.stdout.flush()
                status.show(status_line(answer))
        except KeyboardInterrupt:
            answer.interrupt()
    if not ends_with_newline and is_terminal(sys.stdout):
        print(flush=True)


def _drawn(chunk: Chunk, is_coloured: bool) -> str:
    text = harmless(chunk.text) if sys.stdout.isatty() else chunk.text
    if not is_coloured or chunk.source == "target":
        return text
    return f"{_COLOURS.get(chunk.source, _OTHER_SOURCE)}{text}{_RESET}"


def status_line(answer: Answer) -> str:
    """The figures so far, on one line."""
    metrics = answer.metrics
    if not metrics.n_rounds:
        return f" reading the prompt, {metrics.n_prompt:,} tokens · {metrics.prefill_s:.1f} s"
    return " " + " · ".join(figures(metrics, answer.draft_length, answer.source))


def figures(metrics: Metrics, draft_length: int, source: str) -> Iterable[str]:
    """The short forms that the status line and the stats line share."""
    yield f"{metrics.n_committed} tokens"
    if (speed := metrics.decode_tok_per_s) is not None:
        yield f"{speed:.1f} tok/s"
    if draft_length:
        rate = metrics.acceptance_rate
        yield f"accepted {metrics.n_accepted}/{metrics.n_drafted}" + (f" ({rate:.0%})" if rate is not None else "")
        yield f"{metrics.tokens_per_forward or 0:.2f} tokens/forward"
        yield f"{source} k={draft_length}"
    else:
        yield "plain decoding"


def stats_line(metrics: Metrics, draft_length: int, source: str, finish_reason: str | None) -> str:
    """The one line printed at the end."""
    parts = [*figures(metrics, draft_length, source)]
    if metrics.ttft_s is not None:
        parts.append(f"first token {metrics.ttft_s:.2f} s")
    if finish_reason not in (None, "stop"):
        parts.append(str(finish_reason))
    return " · ".join(parts)


def print_stats_table(metrics: Metrics) -> None:
    """All figures, on stderr."""
    table = Table(box=box.SIMPLE, show_header=False, pad_edge=False)
    table.add_column(no_wrap=True)
    table.add_column()
    for name, value in stats_rows(metrics):
        table.add_row(name, value)
    Console(file=sys.stderr, highlight=False).print(table)


def stats_rows(metrics: Metrics) -> Iterable[tuple[str, str]]:
    def number(value: float | None, form: str, unit: str = "") -> str:
        return "–" if value is None else f"{value:{form}}{unit}"

    yield "prompt", f"{metrics.n_prompt} tokens, {metrics.n_reused} reused"
    yield "prefill", f"{metrics.prefill_s:.2f} s, {number(metrics.prefill_tok_per_s, '.1f', ' tok/s')}"
    yield "first token (TTFT)", number(metrics.ttft_s, ".2f", " s")
    yield "decode speed", number(metrics.decode_tok_per_s, ".1f", " tok/s")
    yield "committed", f"{metrics.n_committed} tokens in {metrics.n_rounds} forwards"
    yield "tokens per forward", number(metrics.tokens_per_forward, ".2f")
    yield "drafted / accepted", f"{metrics.n_drafted} / {metrics.n_accepted}"
    yield "acceptance rate", number(metrics.acceptance_rate, ".1%")
    positions = " ".join(f"{share:.0%}" for share in metrics.acceptance_by_position[:16])
    yield "acceptance by position", positions or "–"
    yield "mean accepted draft", number(metrics.mean_accepted_draft, ".2f", " tokens")
    yield "zero-accept share", number(metrics.zero_accept_share, ".1%")
    total = metrics.decode_s or 1.0
    yield (
        "time split",
        f"draft {metrics.draft_s / total:.0%}, verify {metrics.verify_s / total:.0%}, rest {metrics.rest_s / total:.1%}",
    )
