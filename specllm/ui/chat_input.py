"""The input line of a chat on a terminal: editing, history, completion of commands, pasting, a bar with figures below."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

from prompt_toolkit import PromptSession
from prompt_toolkit.application import get_app
from prompt_toolkit.completion import CompleteEvent, Completer, Completion, PathCompleter
from prompt_toolkit.document import Document
from prompt_toolkit.filters import Condition
from prompt_toolkit.history import FileHistory
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent
from prompt_toolkit.output import ColorDepth
from prompt_toolkit.styles import Style

from specllm.ui.chat_lines import PROMPT

MAX_REMEMBERED = 64 << 10  # characters of an entry: pasted files would make every later start slow
_MENU_ROWS = 6  # kept free for completions while a command is typed
_STYLE = Style.from_dict({"bottom-toolbar": "noreverse fg:ansibrightblack"})
FILES = "FILES"  # in place of choices: the names of files


class TerminalInput:
    """Implements `chat_lines.Input`. Enter sends, Alt-Enter begins a new line, what is pasted arrives whole."""

    is_person = has_bar = can_edit = True
    is_script = False

    def __init__(
        self,
        *,
        history: Path,
        commands: Mapping[str, str],
        choices: Mapping[str, Sequence[str] | str],
        bar: Callable[[], str],
    ) -> None:
        """`commands`: what each does, by name; `choices`: what may stand behind a name, or FILES."""
        self._session: PromptSession[str] = PromptSession(
            PROMPT,
            multiline=True,
            prompt_continuation=lambda width, line, wraps: "." + " " * (width - 1),
            history=History(history),
            completer=CommandCompleter(commands, choices),
            complete_while_typing=Condition(lambda: get_app().current_buffer.text.startswith("/")),
            key_bindings=_key_bindings(),
            bottom_toolbar=bar,
            enable_suspend=True,
            reserve_space_for_menu=_MENU_ROWS,
            style=_STYLE,
            color_depth=ColorDepth.DEPTH_1_BIT if os.environ.get("NO_COLOR") else None,
        )

    def read(self, text: str = "") -> str | None:
        """See `chat_lines.Input.read`."""
        try:
            # Not its own handling of SIGINT: with that, SIGTERM (which acts as SIGINT here) would be lost.
            return self._session.prompt(default=text, handle_sigint=False)
        except EOFError:
            return None


def _key_bindings() -> KeyBindings:
    keys = KeyBindings()

    @keys.add("enter")
    def send(event: KeyPressEvent) -> None:
        buffer = event.current_buffer
        if buffer.complete_state and buffer.complete_state.current_completion:
            buffer.complete_state = None  # Enter takes the completion
        else:
            buffer.validate_and_handle()

    @keys.add("escape", "enter")
    @keys.add("escape", "c-j")  # typed while an answer came: the terminal has made a newline of Enter
    def begin_line(event: KeyPressEvent) -> None:
        event.current_buffer.newline(copy_margin=False)

    @keys.add("c-c")
    def clear(event: KeyPressEvent) -> None:
        if event.current_buffer.text:
            event.current_buffer.reset()
        else:
            event.app.exit(exception=KeyboardInterrupt, style="class:aborting")

    return keys


class CommandCompleter(Completer):
    """Completes a command's name, and what may stand behind it."""

    def __init__(self, commands: Mapping[str, str], choices: Mapping[str, Sequence[str] | str]) -> None:
        self._commands = commands
        self._choices = choices
        self._paths = PathCompleter(expanduser=True)

    def get_completions(self, document: Document, complete_event: CompleteEvent) -> Iterable[Completion]:
        text = document.text
        if not text.startswith("/") or "\n" in text or not document.is_cursor_at_the_end:
            return
        name, blank, rest = text[1:].partition(" ")
        choices = self._choices.get(name, ())
        if not blank:
            for command, says in self._commands.items():
                if command.startswith(name):
                    yield Completion(f"/{command}", start_position=-len(text), display_meta=says)
        elif choices == FILES:
            yield from self._paths.get_completions(Document(rest), complete_event)
        else:
            for choice in choices:
                if choice.startswith(rest):
                    yield Completion(choice, start_position=-len(rest))


class History(FileHistory):
    """Lines of earlier chats, for the user's eyes only. A history that cannot be kept never disturbs a chat."""

    def __init__(self, path: Path) -> None:
        self._path = path
        super().__init__(str(path))

    def load_history_strings(self) -> Iterable[str]:
        try:
            return list(super().load_history_strings())
        except OSError:
            return []

    def store_string(self, string: str) -> None:
        if len(string) > MAX_REMEMBERED:
            return
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            os.close(os.open(self._path, os.O_CREAT | os.O_WRONLY, 0o600))
            super().store_string(string)
        except OSError:
            return
