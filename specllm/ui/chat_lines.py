"""Where the lines of a chat come from, where no terminal can be asked to edit them."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from typing import Protocol

PROMPT = "> "


class Input(Protocol):
    @property
    def is_person(self) -> bool:
        """Whether somebody sits there who can type again."""
        ...

    @property
    def is_script(self) -> bool:
        """Whether an error should end it all."""
        ...

    @property
    def has_bar(self) -> bool:
        """Whether it shows the last answer's figures."""
        ...

    @property
    def can_edit(self) -> bool:
        """Whether a line can begin with a text that is to be changed."""
        ...

    def read(self, text: str = "") -> str | None:
        """The next line or message, with `text` to begin with where it can be edited; None at the end.

        KeyboardInterrupt is Ctrl-C on an empty line.
        """
        ...


class PlainInput:
    """Lines of stdin, asked for on stderr where that is a terminal without the means to edit."""

    is_script = has_bar = can_edit = False

    def __init__(self) -> None:
        self.is_person = sys.stdin.isatty()
        if hasattr(sys.stdin, "reconfigure"):
            sys.stdin.reconfigure(errors="replace")  # a byte that is no text must not end the chat

    def read(self, text: str = "") -> str | None:
        if self.is_person:
            print(PROMPT, end="", file=sys.stderr, flush=True)
        line = ""
        try:
            line = sys.stdin.readline()
        finally:
            if self.is_person and not line:  # Ctrl-C or Ctrl-D: the prompt's line ends
                print(file=sys.stderr, flush=True)
        return line.rstrip("\r\n") if line else None


class GivenInput:
    """Messages that are there already."""

    is_person = has_bar = can_edit = False
    is_script = True

    def __init__(self, messages: Sequence[str]) -> None:
        self._left: Iterator[str] = iter(messages)

    def read(self, text: str = "") -> str | None:
        return next(self._left, None)
