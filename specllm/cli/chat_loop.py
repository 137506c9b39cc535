"""The loop of `specllm chat`: a line is a message or a command, and whatever fails, the chat goes on."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from specllm.app.chat import commands
from specllm.app.chat.commands import Call
from specllm.app.chat.transcript import Transcript, clean, load, save
from specllm.app.chat.use_case import Chat
from specllm.app.generate import Answer
from specllm.cli.signals import has_to_terminate
from specllm.errors import ConfigError, SpecllmError
from specllm.ui import chat as ui
from specllm.ui.chat_lines import Input
from specllm.ui.console import write_error, write_note
from specllm.ui.generate import AnswerView, stats_rows
from specllm.ui.keyboard import echo_off

_MAX_ROWS = 20  # turns in the list of /tokens
FORCE = "--force"


@dataclass(kw_only=True)
class Show:
    """What is shown beside the text, as it can be changed in the chat."""

    has_text: bool = True
    has_status: bool = True
    has_table: bool = False
    has_markdown: bool = False
    has_colour: bool = False
    is_live: bool = False  # the rounds below the text, which has their colours


class ChatLoop:
    """Reads, answers, obeys, until the end of the input."""

    def __init__(self, chat: Chat, lines: Input, make_view: Callable[[Show], AnswerView], show: Show) -> None:
        self.chat = chat
        self.results: list[dict[str, object]] = []  # for --json
        self.has_failed = self.is_interrupted = False
        self._lines = lines
        self._make_view = make_view
        self._show = show
        self._draft = ""  # what the next line begins with
        self._is_editing = False  # the next message takes the place of the last one
        self._is_leaving = False  # another Ctrl-C ends the chat
        self._is_over = False

    def run(self) -> None:
        """Until the input ends, /quit, or Ctrl-C twice (once, where nobody can type again). A script ends at an error."""
        while not self._is_over:
            try:
                self._step()
            except KeyboardInterrupt:
                if has_to_terminate() or self._is_leaving or not self._lines.is_person:
                    self._is_over = self.is_interrupted = True
                else:
                    self._is_leaving, self._is_editing = True, False
                    write_note("(Ctrl-C again or Ctrl-D leaves)")
            except SpecllmError as error:
                self.has_failed = True
                if self._lines.is_script:
                    raise
                write_error(error.message, error.hint)

    def _step(self) -> None:
        draft, self._draft = self._draft, ""
        line = self._lines.read(draft)
        if line is None:
            self._is_over = True
            return
        self.take(clean(line))

    def take(self, line: str) -> None:
        """Answers a message or obeys a command; nothing for an empty line."""
        is_editing, self._is_editing = self._is_editing, False
        wanted = commands.parse(line)
        if wanted is None:
            return
        self._is_leaving = False
        if isinstance(wanted, Call):
            getattr(self, f"_{wanted.name}")(wanted.argument)
        else:
            self._answer(wanted, is_again=is_editing)

    def _answer(self, message: str, *, is_again: bool = False) -> None:
        show, chat = self._show, self.chat
        answer: Answer | None = None
        try:
            with (
                self._make_view(show) as view,
                echo_off(is_wanted=self._lines.has_bar),  # that input line shows what was typed meanwhile
                chat.ask(message, view.note, is_again=is_again) as answer,
            ):
                view.stream(answer)
        except KeyboardInterrupt:
            if answer is not None:  # Ctrl-C came when it was complete
                self._record(message, answer)
            raise
        self._record(message, answer)
        reason, text = answer.finish_reason, answer.text
        if show.has_text and not sys.stdout.isatty() and text and not text.endswith("\n"):
            print(flush=True)
        if show.has_table or reason == "interrupted" or not self._lines.has_bar:
            view.close(answer, has_table=show.has_table)
        if reason == "interrupted":
            self._is_leaving = True
            if has_to_terminate() or not self._lines.is_person:
                raise KeyboardInterrupt
        if chat.unanswered is not None:
            write_note("nothing was answered: the message is no part of the conversation; /retry sends it again")
        elif (shortfall := answer.shortfall) is not None:  # no use to a script
            self.has_failed = True
            write_error(shortfall.message, shortfall.hint)
        elif reason == "length":
            self._tell_cut(answer.metrics.n_committed)
        if self._lines.is_person:
            print(file=sys.stderr)

    def _record(self, message: str, answer: Answer) -> None:
        reason, stats = answer.finish_reason, answer.metrics.as_dict()
        self.results.append({"user": message, "text": answer.text, "finish_reason": reason, "stats": stats})

    def _tell_cut(self, n_tokens: int) -> None:
        most = self.chat.models.plan.generate.max_tokens
        if n_tokens < most:
            write_note(f"the answer was cut: the context of {self.chat.n_ctx:,} tokens is full")
        else:
            write_note(f"the answer was cut after {n_tokens:,} tokens; /set max_tokens {2 * most} allows more")

    # ---- commands, by their names in app/chat/commands.py --------------------------------------------------------------

    def _help(self, _: str) -> None:
        ui.print_table((f"/{command.name} {command.argument}", command.says) for command in commands.COMMANDS)
        write_note("Alt-Enter: new line; Ctrl-C stops an answer; a blank before / makes a message")

    def _system(self, text: str) -> None:
        if text:
            self.chat.system = None if text.lower() == "none" else text
        ui.print_table([("system", self.chat.system or "(none)")])

    def _clear(self, _: str) -> None:
        self.chat.replace(self.chat.system, ())
        write_note("the conversation begins anew")

    def _retry(self, _: str) -> None:
        message = self._last_message()
        if not self.chat.unanswered and self.chat.models.plan.sampling.temperature == 0:
            write_note("at temperature 0 the answer will be the same; /set temperature 0.7 allows others")
        self._answer(message, is_again=True)

    def _undo(self, _: str) -> None:
        message = self.chat.undo()
        ui.print_table([("taken back", message)])

    def _edit(self, text: str) -> None:
        message = self._last_message()
        if text:
            self._answer(text, is_again=True)
        elif self._lines.can_edit:
            self._draft, self._is_editing = message, True
        else:
            raise ConfigError("/edit needs the new text here", "write /edit TEXT")

    def _last_message(self) -> str:
        message = self.chat.last_message
        if message is None:
            raise ConfigError("there is no message yet", "send one first")
        return message

    def _save(self, argument: str) -> None:
        name = argument.removeprefix(FORCE).strip() if argument.startswith(f"{FORCE} ") else argument
        chat, path = self.chat, Path(name).expanduser()
        if not chat.turns and chat.unanswered is None:
            raise ConfigError("there is nothing to save", "send a message first")
        transcript = Transcript(chat.system, chat.turns, chat.unanswered)
        save(path, transcript, chat.models.plan.target.name, may_replace=name != argument)
        chat.is_saved = True
        write_note(f"saved {_turns(len(chat.turns))} in {path}")

    def _load(self, name: str) -> None:
        if not self.chat.is_saved:
            raise ConfigError("this conversation is not saved", "/save FILE first, or /clear it")
        self.load(Path(name).expanduser())

    def load(self, path: Path) -> None:
        """Goes on with a saved conversation; where the file says nothing of a system message, the present one stays."""
        transcript = load(path, self.chat.count)
        system = self.chat.system if transcript.system is None else transcript.system
        self.chat.replace(system, transcript.turns, transcript.unanswered)
        write_note(f"loaded {_turns(len(transcript.turns))} from {path}")
        if transcript.unanswered is not None:
            write_note("the last message has no answer: /retry asks for one")

    def _stats(self, _: str) -> None:
        figures = self.chat.last_figures
        if figures is None:
            raise ConfigError("there are no figures yet", "send a message first")
        ui.print_table([("strategy", figures.strategy), *stats_rows(figures.metrics)])

    def _tokens(self, _: str) -> None:
        ui.print_table(self._token_rows())

    def _token_rows(self) -> Iterator[tuple[str, str]]:
        chat = self.chat
        if chat.system is not None:
            yield "system", f"{chat.count(chat.system):,}"
        first = max(0, len(chat.turns) - _MAX_ROWS)
        if first:
            n_tokens = sum(turn.n_message + turn.n_answer for turn in chat.turns[:first])
            yield f"turns 1 to {first}", f"{n_tokens:,}"
        for number, turn in enumerate(chat.turns[first:], start=first + 1):
            gone = ", no longer read" if number <= chat.n_dropped else ""
            yield f"turn {number}", f"{turn.n_message:,} asked, {turn.n_answer:,} answered{gone}"
        yield "context", f"{chat.n_context:,} of {chat.n_ctx:,}, what the template adds included"

    def _drafter(self, name: str) -> None:
        if name:
            # Measuring takes seconds, in which somebody may type.
            with self._make_view(self._show) as view, echo_off(is_wanted=self._lines.has_bar):
                self.chat.models.use_drafter(name, view.notice)
        ui.print_table([("drafter", self.chat.models.drafter)])

    def _set(self, argument: str) -> None:
        name, _, value = argument.replace("=", " ").partition(" ")
        if name and not value.strip():
            raise ConfigError(f"/set {name} needs a value", f"write /set {name} VALUE; /set alone shows all")
        if name:
            self.chat.models.set(name, value.strip())
        ui.print_table((key, f"{number}") for key, number in self.chat.models.settings().items())

    def _markdown(self, _: str) -> None:
        self._require_plain_view()
        self._show.has_markdown = not self._show.has_markdown
        show = self._show
        hides = ", and hides colours by source" if show.has_markdown and show.has_colour else ""
        write_note(f"Markdown is {'on' if show.has_markdown else 'off'}{hides}")

    def _color(self, _: str) -> None:
        self._require_plain_view()
        self._show.has_colour = not self._show.has_colour
        show = self._show
        are_hidden = ", but Markdown hides them" if show.has_markdown and show.has_colour else ""
        write_note(f"colours by source are {'on' if show.has_colour else 'off'}{are_hidden}")

    def _require_plain_view(self) -> None:
        if self._show.is_live:
            raise ConfigError("--live shows the text in the colours of its rounds", "start the chat without it")

    def _quit(self, _: str) -> None:
        self._is_over = True


def _turns(n: int) -> str:
    return "1 turn" if n == 1 else f"{n} turns"
