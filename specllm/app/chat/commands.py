"""What may be typed in a chat beside messages: one table, and one way to read a line."""

from __future__ import annotations

import re
from dataclasses import dataclass
from difflib import get_close_matches

from specllm.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Command:
    name: str
    argument: str  # as shown in the help; in brackets where it may be left out, "" where there is none
    says: str


COMMANDS = tuple(
    Command(*row)
    for row in (
        ("help", "", "this list"),
        ("system", "[TEXT]", "show or change the system message; `none` removes it"),
        ("clear", "", "begin anew, with the same system message"),
        ("retry", "", "answer the last message again"),
        ("undo", "", "take back the last message and its answer"),
        ("edit", "[TEXT]", "change the last message and answer it again"),
        ("save", "FILE", "write the conversation; --force FILE replaces a file"),
        ("load", "FILE", "go on with a saved conversation"),
        ("stats", "", "all figures of the last answer"),
        ("tokens", "", "what fills the context"),
        ("drafter", "[NAME]", "show or change who drafts: auto, none, lookup, store, model"),
        ("set", "[NAME VALUE]", "show or change sampling, e.g. /set temperature 0.3"),
        ("markdown", "", "Markdown on or off"),
        ("color", "", "colours by who proposed a token, on or off"),
        ("quit", "", "leave; so do Ctrl-D, and Ctrl-C twice"),
    )
)
_BY_NAME = {command.name: command for command in COMMANDS} | {
    "exit": next(command for command in COMMANDS if command.name == "quit")
}
# A path such as /usr/bin is a message: a command's name ends with a blank or the line.
_NEARLY = 0.7  # of difflib: /hlep is nearly /help, /home is not
_AS_MESSAGE = "a blank in front makes it a message"
_CALL = re.compile(r"/([A-Za-z?]+)(?:\s+(.*))?\s*", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Call:
    """A command with what was written behind it."""

    name: str
    argument: str


def parse(line: str) -> Call | str | None:
    """A command, a message, or None for an empty line.

    What is no command is a message, like `/home is nearly full`; one that begins like a command has a blank in front. Raises
    ConfigError for a command with too much or too little behind it, and for a word alone that is nearly one.
    """
    if not line.strip():
        return None
    match = _CALL.fullmatch(line)
    if match is None:
        return line
    name, argument = match[1].lower(), (match[2] or "").strip()
    command = _BY_NAME.get("help" if name == "?" else name)
    if command is None:
        close = [] if argument else get_close_matches(name, _BY_NAME, n=1, cutoff=_NEARLY)
        if not close:
            return line
        raise ConfigError(f"there is no command /{name}", f"did you mean /{close[0]}? {_AS_MESSAGE}")
    if argument and not command.argument:
        raise ConfigError(
            f"/{command.name} takes nothing behind it", f"write /{command.name} alone on a line; {_AS_MESSAGE}"
        )
    if not argument and command.argument and not command.argument.startswith("["):
        raise ConfigError(f"/{command.name} needs something behind it", f"write /{command.name} {command.argument}")
    return Call(command.name, argument)
