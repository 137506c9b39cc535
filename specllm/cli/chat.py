"""`specllm chat`: a conversation in the terminal, or lines in and answers out."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from specllm.cli import envelope, options
from specllm.cli.signals import interrupts_deferred
from specllm.cli.structure import StructureOptions
from specllm.cli.template import TemplateOptions
from specllm.config import CHAT_DRAFTERS, OVERFLOWS, GenerateConfig
from specllm.errors import ConfigError, Interrupted

if TYPE_CHECKING:
    from specllm.app.chat.use_case import Chat
    from specllm.cli.chat_loop import ChatLoop, Show
    from specllm.ui.chat_lines import Input
    from specllm.ui.generate import AnswerView

_chat = functools.partial(typer.Option, rich_help_panel="Chat")
_output = functools.partial(typer.Option, rich_help_panel="Output")


@dataclasses.dataclass(frozen=True, kw_only=True)
class ChatOptions(TemplateOptions):
    """What the conversation is like."""

    system: Annotated[str | None, _chat("--system", "-s", metavar="TEXT", help="System message.")] = None
    message: Annotated[
        list[str] | None,
        _chat("--message", metavar="TEXT", help="Send this and leave; may be repeated. Commands work too."),
    ] = None
    load: Annotated[Path | None, _chat("--load", metavar="FILE", help="Go on with a saved conversation.")] = None
    overflow: Annotated[
        str,
        _chat("--overflow", metavar="|".join(OVERFLOWS),
              help="When the context is full: drop the oldest turns, or refuse with an error."),
    ] = OVERFLOWS[0]  # fmt: skip
    max_tokens: Annotated[int, _chat("--max-tokens", "-n", metavar="N", help="Most tokens of an answer.")] = (
        GenerateConfig().max_tokens
    )
    stop: Annotated[list[str] | None, _chat("--stop", metavar="TEXT", help="End before this text; repeatable.")] = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class ChatDraftOptions(options.DraftOptions):
    """Who proposes, and how much."""

    drafter: Annotated[str | None, options.drafter_option(CHAT_DRAFTERS)] = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class ShowOptions:
    """What is shown beside the text."""

    as_json: Annotated[bool, _output("--json", help="Exactly one JSON document on stdout, at the end.")] = False
    stats: Annotated[bool, _output("--stats", help="Print a table of all figures after every answer.")] = False
    color_accepted: Annotated[bool, _output("--color-accepted", help="Colour the text by who proposed it.")] = False
    markdown: Annotated[bool, _output("--markdown", help="Draw Markdown.")] = False
    live: Annotated[bool, _output("--live", help="Show the rounds, acceptance and speed below the text.")] = False
    quiet: Annotated[bool, _output("--quiet", "-q", help="No status line and no stats line.")] = False


@options.spread
def chat(
    *,
    talk: ChatOptions,
    models: options.ModelOptions,
    drafting: ChatDraftOptions,
    sampling: options.SamplingOptions,
    structure: StructureOptions,
    machine: options.MachineOptions,
    output: ShowOptions,
) -> None:
    """Talk with a model. /help there lists what else can be typed."""
    draft, context, draft_layers = drafting.config(), machine.config(), machine.draft_layers()
    config = GenerateConfig(
        max_tokens=talk.max_tokens, stop=tuple(talk.stop or ()), structure=structure.config(),
        template_vars=talk.variables(),
    )  # fmt: skip
    chosen = sampling.chosen()
    if talk.overflow not in OVERFLOWS:
        raise ConfigError(f"no overflow mode {talk.overflow!r}", f"use one of {', '.join(OVERFLOWS)}")
    if output.live and output.markdown:
        raise ConfigError("--live shows the text in the colours of its rounds", "leave out --markdown")
    if output.as_json and not talk.message and sys.stdin.isatty():
        raise ConfigError("--json is for scripts", "give --message TEXT, or pipe messages in, one a line")

    with interrupts_deferred():
        from specllm.app.chat.models import open_models
        from specllm.app.chat.use_case import Chat
        from specllm.app.generate import GenerateRequest
        from specllm.cli.chat_loop import ChatLoop, Show
        from specllm.ui.chat import print_greeting
        from specllm.ui.generate import AnswerView

    wanted = GenerateRequest(
        prompt="", target=models.model, draft_model=models.draft_model, sampling=chosen, context=context,
        draft_gpu_layers=draft_layers, draft=draft, generate=config,
    )  # fmt: skip
    with contextlib.ExitStack() as stack:
        with AnswerView(has_text=False, has_status=not output.quiet) as view:
            loaded = stack.enter_context(open_models(wanted, view.notice))
        talking = Chat(loaded, system=talk.system, overflow=talk.overflow)
        lines = _input(talk.message, talking)
        show = Show(
            has_text=not output.as_json, has_status=not output.quiet, has_table=output.stats,
            has_markdown=output.markdown, has_colour=output.color_accepted, is_live=output.live,
        )  # fmt: skip
        if lines.is_person and not output.quiet:
            print_greeting(loaded.plan.target.name, talking)
        loop = ChatLoop(talking, lines, _view_maker(talking), show)
        if talk.load is not None:
            loop.load(talk.load)
        loop.run()
        with interrupts_deferred():
            if output.as_json:
                _emit(loop)
    if loop.is_interrupted:
        raise Interrupted("interrupted")
    if loop.has_failed and not lines.is_person:
        raise typer.Exit(1)  # what failed has been told


def _input(messages: list[str] | None, chat: Chat) -> Input:
    """The messages given; else an input line where a terminal can edit one, else lines."""
    from specllm.ui.chat_lines import GivenInput, PlainInput
    from specllm.ui.console import is_terminal

    if messages:
        return GivenInput(messages)
    if not (is_terminal(sys.stdin) and is_terminal(sys.stdout)):
        return PlainInput()
    with interrupts_deferred():
        from specllm.app.chat.commands import COMMANDS
        from specllm.app.chat.models import SETTINGS
        from specllm.app.state import state_dir
        from specllm.ui.chat import toolbar
        from specllm.ui.chat_input import FILES, TerminalInput

    return TerminalInput(
        history=state_dir() / "chat_history",
        commands={command.name: command.says for command in COMMANDS},
        choices={"drafter": CHAT_DRAFTERS, "set": SETTINGS, "save": FILES, "load": FILES},
        bar=lambda: toolbar(chat.last_figures, chat),
    )


def _view_maker(chat: Chat) -> Callable[[Show], AnswerView]:
    """Makes what an answer is drawn with."""
    from specllm.ui.chat import ChatView
    from specllm.ui.live import LiveView

    def make(show: Show) -> AnswerView:
        if show.is_live:
            return LiveView(has_text=show.has_text, has_status=show.has_status, colours_accepted=True)
        return ChatView(
            chat, has_text=show.has_text, has_status=show.has_status, colours_accepted=show.has_colour,
            has_markdown=show.has_markdown,
        )  # fmt: skip

    return make


def _emit(loop: ChatLoop) -> None:
    from specllm.app.host import describe_build

    plan = loop.chat.models.plan
    params = {**plan.params(), "system": loop.chat.system, "overflow": loop.chat.overflow}
    envelope.emit("chat", {"turns": loop.results}, host=describe_build(), models=plan.models(), params=params,
                  is_ok=not (loop.is_interrupted or loop.has_failed))  # fmt: skip
