"""Draws an answer: streamed text, the live status line, the closing figures."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from types import TracebackType
from typing import Protocol

from rich import box
from rich.console import Console
from rich.table import Table

from specllm.decoding.metrics import Metrics
from specllm.decoding.protocols import Round
from specllm.ui.console import harmless, has_colour, joined, write_note
from specllm.ui.status import Panel, StatusLine

_COLOURS = {
    "model": "\x1b[32m",
    "lookup": "\x1b[36m",
    "reference": "\x1b[35m",
    "store": "\x1b[34m",
    "grammar": "\x1b[33m",
}
_OTHER_SOURCE = "\x1b[34m"
_RESET = "\x1b[0m"
_MAX_POSITIONS = 16  # of the acceptance by position, in the table; --json has all


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
    def strategy(self) -> str:
        """Who drafts and how much: `lookup k=15`, or `auto: lookup 3-31, model off (would lose 18 %)`."""
        ...

    @property
    def finish_reason(self) -> str | None: ...
    @property
    def last_round(self) -> Round | None:
        """The round behind the chunks that came last; None before the first one."""
        ...

    def interrupt(self) -> None: ...


class AnswerView:
    """The screen while an answer is made: text on stdout, the status line on stderr, inside `with`.

    Without `has_text` only the status is drawn. Ctrl-C while streaming ends the answer early.
    """

    def __init__(self, *, has_text: bool = True, has_status: bool = True, colours_accepted: bool = False) -> None:
        self._has_text = has_text
        self._has_status = has_status
        self._is_coloured = colours_accepted and has_text and has_colour(sys.stdout)
        self._is_visible = has_text and sys.stdout.isatty()
        self._line = StatusLine(is_wanted=has_status)

    def __enter__(self) -> AnswerView:
        self._line.__enter__()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._line.__exit__(kind, error, tb)

    def notice(self, text: str) -> None:
        """Shows what takes its time before there is text, in the status line."""
        self._line.show(f" {text}", is_urgent=True)

    def note(self, text: str) -> None:
        """One line for the person that stays."""
        write_note(text)

    def stream(self, answer: Answer) -> None:
        """Draws the answer as it comes; the cursor ends in the first column."""
        ends_with_newline = True
        try:
            self._line.show(self._status(answer), is_urgent=True)
            for chunks in answer:
                if self._has_text and chunks:
                    self._line.write("".join(map(self._drawn, chunks)))
                    ends_with_newline = chunks[-1].text.endswith("\n")
                self._line.show(self._status(answer))
        except KeyboardInterrupt:
            answer.interrupt()
        if self._is_visible and not ends_with_newline:
            self._line.write("\n")

    def close(self, answer: Answer, *, has_table: bool = False) -> None:
        """Says on stderr how it went: the stats line, what the colours mean, and the table of all figures if wanted."""
        if self._has_status and self._has_text:
            for line in closing_lines(answer):
                print(line, file=sys.stderr)
            if legend := self._legend(answer):
                print(legend, file=sys.stderr)
        if has_table:
            print_stats_table(answer)

    def _legend(self, answer: Answer) -> str:
        return colour_legend(answer.metrics) if self._is_coloured else ""

    def _status(self, answer: Answer) -> str | Panel:
        """What to show beside the text now; asked for after every step of the answer."""
        return status_line(answer)

    def _drawn(self, chunk: Chunk) -> str:
        text = harmless(chunk.text) if self._is_visible else chunk.text
        return _coloured(text, chunk.source) if self._is_coloured and chunk.source != "target" else text


def _coloured(text: str, source: str) -> str:
    return f"{_COLOURS.get(source, _OTHER_SOURCE)}{text}{_RESET}"


def status_line(answer: Answer) -> str:
    """The figures so far, on one line."""
    metrics = answer.metrics
    if not metrics.n_rounds:
        seconds = f", {metrics.prefill_s:.1f} s" if metrics.prefill_s else ""
        return f" reading the prompt, {metrics.n_prompt:,} tokens{seconds}"
    return status([f"{metrics.n_committed} tokens", *_figures(answer)])


def status(parts: Iterable[str]) -> str:
    """What fits into the status line, which begins with a blank and leaves the last column free."""
    return " " + joined(parts, sys.stderr, n_spare=2)


def closing_lines(answer: Answer) -> Iterator[str]:
    """What is printed at the end: the figures on one line and, where it was decided round by round, who drafted how much."""
    yield stats_line(answer)
    if ":" in answer.strategy:
        yield answer.strategy


def stats_line(answer: Answer) -> str:
    """The figures of a finished answer on one line; a terminal shows as many of them as fit, most important first."""
    metrics = answer.metrics
    tokens = f"{metrics.n_committed} tokens"
    if answer.finish_reason == "interrupted":
        if not metrics.n_rounds:
            return f"interrupted while reading the prompt, {metrics.n_prompt:,} tokens"
        tokens = f"interrupted after {tokens}"
    elif answer.finish_reason == "length":
        tokens = f"{tokens}, cut"
    return joined([tokens, *_figures(answer, has_ttft=True)], sys.stderr)


def _figures(answer: Answer, *, has_ttft: bool = False) -> Iterator[str]:
    """The short forms that the status line and the stats line share."""
    metrics = answer.metrics
    if (speed := metrics.decode_tok_per_s) is not None:
        yield f"{shown_speed(speed)} tok/s{against_plain(speed, metrics)}"
    rate = metrics.acceptance_rate
    yield without_drafts(answer.strategy) if rate is None else f"{_drafter(answer.strategy)} {rate:.0%} accepted"
    if has_ttft and metrics.ttft_s is not None:
        yield f"TTFT {metrics.ttft_s:.2f} s"
    if rate is not None:
        yield f"{metrics.tokens_per_forward or 0:.2f} tok/forward"


def without_drafts(strategy: str) -> str:
    """Why an answer has no drafts."""
    if strategy == "plain decoding":
        return strategy
    if ":" not in strategy:  # its length was fixed, and nobody left it off
        return f"{_drafter(strategy)} drafted nothing"
    loss = re.search(r"would lose \d+%", strategy)
    return f"drafting left off: {loss.group()}" if loss else "drafting left off"


def _drafter(strategy: str) -> str:
    return strategy.replace(":", " ").split()[0]


def shown_speed(tok_per_s: float) -> str:
    """Three digits say all that a measurement knows."""
    return f"{tok_per_s:.0f}" if tok_per_s >= 100 else f"{tok_per_s:.1f}"


def against_plain(tok_per_s: float, metrics: Metrics) -> str:
    """`, 3.7 x plain` for that speed of the answer; empty where plain decoding's is not known."""
    plain = metrics.plain_tok_per_s
    return f", {shown_ratio(tok_per_s / plain)} x plain" if plain else ""


def shown_ratio(ratio: float) -> str:
    """Two decimals where they decide between faster and slower."""
    return f"{ratio:.1f}" if ratio >= 1.995 else f"{ratio:.2f}"


def colour_legend(metrics: Metrics) -> str:
    """What the colours of the text mean; empty where nothing was accepted."""
    accepted = sorted((source, n) for source, n in metrics.accepted_by_source.items() if n)
    if not accepted:
        return ""
    parts = [_coloured(f"{n} tokens accepted from {source}", source) for source, n in accepted]
    return f"colours: {', '.join(parts)}, {metrics.n_committed - metrics.n_accepted} the target's own"


def print_stats_table(answer: Answer) -> None:
    """All figures, on stderr."""
    table = Table(box=box.SIMPLE, show_header=False, pad_edge=False)
    table.add_column(no_wrap=True)
    table.add_column()
    for name, value in stats_rows(answer.metrics):
        table.add_row(name, value)
    Console(file=sys.stderr, highlight=False).print(table)


def stats_rows(metrics: Metrics) -> Iterator[tuple[str, str]]:
    """Every figure by its name; those about drafts only where something was drafted."""
    reused = f", {metrics.n_reused} of them reused" if metrics.n_reused else ""
    yield "prompt", f"{metrics.n_prompt} tokens{reused}"
    yield "prefill", f"{metrics.prefill_s:.2f} s, {_number(metrics.prefill_tok_per_s, '.1f')} tok/s"
    yield "first token (TTFT)", f"{_number(metrics.ttft_s, '.2f')} s"
    speed, tpot = _number(metrics.decode_tok_per_s, ".1f"), _number(metrics.tpot_s, ".4f")
    yield "decode speed", f"{speed} tok/s, {tpot} s per token"
    if (plain := metrics.plain_tok_per_s) is not None:
        gain = (
            f": this was {shown_ratio(metrics.speedup_over_plain)} times as fast" if metrics.speedup_over_plain else ""
        )
        yield "plain decoding would make", f"{plain:.1f} tok/s{gain}"
    yield "committed", f"{metrics.n_committed} tokens in {metrics.n_rounds} forwards"
    yield "tokens per forward", f"{_number(metrics.tokens_per_forward, '.2f')} (plain decoding: 1.00)"
    if metrics.n_drafted:
        yield "drafted", f"{metrics.n_drafted} tokens in {metrics.n_drafting_rounds} of {metrics.n_rounds} rounds"
        by_source = [f"{n} from {source}" for source, n in metrics.accepted_by_source.items() if n]
        yield "accepted", f"{metrics.n_accepted} tokens" + (f": {', '.join(by_source)}" if len(by_source) > 1 else "")
        yield "acceptance rate", f"{_number(metrics.acceptance_rate, '.1%')} of the drafted"
        positions = [f"{share:.0%}" for share in metrics.acceptance_by_position]
        more = " .." if len(positions) > _MAX_POSITIONS else ""
        yield "acceptance by position", " ".join(positions[:_MAX_POSITIONS]) + more
        yield "mean accepted draft length", f"{_number(metrics.mean_accepted_draft, '.2f')} tokens"
        yield "zero-accept share", f"{_number(metrics.zero_accept_share, '.1%')} of the drafts"
    if metrics.n_prediction:
        tokens = f"{metrics.n_prediction_accepted} tokens accepted, {metrics.n_prediction_rejected} rejected"
        yield "prediction", f"{tokens}; it has {metrics.n_prediction}"
    if total := metrics.decode_s:
        draft, verify, rest = (part / total for part in (metrics.draft_s, metrics.verify_s, metrics.rest_s))
        yield "time", f"drafting {draft:.1%}, verifying {verify:.1%}, rest {rest:.1%}"


def _number(value: float | None, form: str) -> str:
    return "?" if value is None else format(value, form)
