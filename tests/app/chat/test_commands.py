"""What a line of a chat is: a message, a command, nothing, or a mistake."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specllm.app.chat.commands import COMMANDS, Call, parse
from specllm.errors import ConfigError


@pytest.mark.parametrize(
    ("line", "meaning"),
    [
        ("", None), ("   ", None), ("\n\t\n", None),
        ("hello", "hello"), (" two\nlines ", " two\nlines "), ("/usr/bin is a path", "/usr/bin is a path"),
        ("//", "//"), ("/", "/"), ("/ help", "/ help"), (" /help", " /help"), ("/tmp/x.py:12 fails", "/tmp/x.py:12 fails"),
        ("/home is nearly full, what can go?", "/home is nearly full, what can go?"), ("/home", "/home"), ("/etc\n", "/etc\n"),
        ("/xyzzy", "/xyzzy"), ("/hlep me", "/hlep me"), ("/sets are unordered", "/sets are unordered"),
        ("/help", Call("help", "")), ("/HELP  ", Call("help", "")), ("/?", Call("help", "")), ("/exit", Call("quit", "")),
        ("/system be brief\nand kind", Call("system", "be brief\nand kind")), ("/system", Call("system", "")),
        ("/save  my file.jsonl ", Call("save", "my file.jsonl")), ("/set temperature 0.3", Call("set", "temperature 0.3")),
    ],
)  # fmt: skip
def test_a_line_is_a_message_or_a_command(line, meaning):
    assert parse(line) == meaning


@pytest.mark.parametrize(
    ("line", "says", "hint"),
    [
        ("/hepl", "no command /hepl", "did you mean /help?"),
        ("/hepl", "no command /hepl", "a blank in front makes it a message"),
        ("/QIUT  ", "no command /qiut", "did you mean /quit?"),
        ("/systm\n", "no command /systm", "did you mean /system?"),
        ("/help me with this", "/help takes nothing", "a blank in front makes it a message"),
        ("/save", "/save needs something", "/save FILE"),
        ("/undo this", "/undo takes nothing", "alone"),
        ("/help\nmore", "/help takes nothing", "alone"),
    ],
)
def test_mistakes_are_told(line, says, hint):
    with pytest.raises(ConfigError, match=says) as error:
        parse(line)
    assert hint in error.value.hint


@given(st.text())
def test_every_line_is_something(line):
    """And a blank in front always makes it a message."""
    with contextlib.suppress(ConfigError):
        assert parse(line) is None or isinstance(parse(line), str | Call)
    if line.strip():
        assert parse(f" {line}") == f" {line}"


def test_every_command_has_a_handler_and_no_handler_is_forgotten():
    from specllm.cli.chat_loop import ChatLoop

    assert all(callable(getattr(ChatLoop, f"_{command.name}", None)) for command in COMMANDS)
