"""`specllm replay`: an answer once more, from its trace."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Annotated

import typer

from specllm.cli import envelope
from specllm.cli.signals import interrupts_deferred
from specllm.errors import ConfigError, Interrupted

AT_ONCE = ("0", "max")


def replay(
    trace: Annotated[Path, typer.Argument(metavar="TRACE", help="What `generate --trace` wrote; - is stdin.")],
    speed: Annotated[
        str | None,
        typer.Option("--speed", metavar="X", show_default=False,
                     help="2 is twice as fast as it was; 0 or max is at once. [default: 1, with --json max]"),
    ] = None,
    live: Annotated[bool, typer.Option("--live/--no-live", help="Show the rounds below the text.")] = True,
    stats: Annotated[bool, typer.Option("--stats", help="Print a table of all figures at the end.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Exactly one JSON document on stdout.")] = False,
) -> None:  # fmt: skip
    """Play a trace back, without a model. The text, its pace and the figures are the same."""
    pace = _speed(speed or ("max" if json else "1"))

    with interrupts_deferred():
        from specllm.app.trace.reader import read_trace
        from specllm.app.trace.replay import Replay
        from specllm.ui.generate import AnswerView
        from specllm.ui.live import LiveView

    answer = Replay(read_trace(trace), speed=pace)
    view_of = LiveView if live else AnswerView
    with view_of(has_text=not json, colours_accepted=live) as view:
        view.stream(answer)
    if json:
        params = {"trace": str(trace), "speed": None if pace == math.inf else pace}
        envelope.emit("replay", answer.result(), params=params)
    view.close(answer, has_table=stats)
    if answer.finish_reason == "interrupted" and not answer.is_complete:
        raise Interrupted("interrupted")


def _speed(value: str) -> float:
    """How many times as fast as it was; infinity is at once."""
    if value in AT_ONCE:
        return math.inf
    try:
        speed = float(value)
    except ValueError:
        speed = math.nan
    if not 0.001 <= speed <= 1e6:  # nan is not
        raise ConfigError(f"--speed {value}", "use a number such as 2 or 0.5, or 0 or max for at once")
    return speed
