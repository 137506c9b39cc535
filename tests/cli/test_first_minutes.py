"""What somebody sees who has nothing yet: what there is, what went wrong, and what to do next."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from specllm.cli.main import FIRST_PAIR, PROGRAM, Invocation, command_tree
from specllm.models.registry import Registry


def invoke(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    """Exit code, stdout and stderr of the command, in this process."""
    code = Invocation(list(arguments)).run()
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def groups() -> list[list[str]]:
    """The words that name the program and every group of commands in it."""
    tree = command_tree()
    return [[], *([name] for name, command in tree.commands.items() if hasattr(command, "commands"))]


def leaves(group: Any, *words: str) -> Iterator[tuple[list[str], Any]]:
    """Every command with the words that name it."""
    for name, command in group.commands.items():
        yield from leaves(command, *words, name) if hasattr(command, "commands") else [([*words, name], command)]


@pytest.mark.parametrize("words", groups(), ids=lambda words: " ".join([PROGRAM, *words]))
def test_every_command_says_in_a_whole_line_what_it_is_for(
    words: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    code, shown, _ = invoke(capsys, *words, "--help")
    assert code == 0
    _, _, commands = shown.partition("Commands:\n")
    assert commands
    assert "..." not in commands
    assert all(len(line) <= 80 for line in shown.splitlines())


def test_the_program_alone_shows_on_one_screen_its_help_and_how_to_begin(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    code, shown, _ = invoke(capsys)
    assert code == 0
    assert len(shown.splitlines()) < 24  # the shell's next prompt stands in the last row
    assert f"To begin: specllm models pull {FIRST_PAIR}" in " ".join(shown.split())
    assert Registry.load().default == FIRST_PAIR


@pytest.mark.parametrize(
    "arguments",
    [["generate", "hi"], ["chat", "--message", "hi"], ["edit", "FILE", "shorten"], ["bench"], ["tune"], ["store", "add", "FILE"],
     ["models", "fit", FIRST_PAIR], ["models", "path", FIRST_PAIR]],
    ids=" ".join,
)  # fmt: skip
def test_without_a_model_every_command_names_the_one_that_pulls_it(
    arguments: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "hello.txt"
    file.write_text("hello\n", encoding="utf-8")
    code, out, said = invoke(capsys, *(str(file) if one == "FILE" else one for one in arguments))
    assert (code, out) == (1, "")
    assert said == (f"error: {FIRST_PAIR}-instruct is not installed\nhint: specllm models pull {FIRST_PAIR}\n")


def test_an_empty_list_of_models_says_how_to_get_the_first(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, said = invoke(capsys, "models", "list")
    assert code == 0
    assert FIRST_PAIR in out
    assert said == f"\nnothing is installed yet; to begin: specllm models pull {FIRST_PAIR}\n"


@pytest.mark.parametrize(
    "words", [["genrate", "hi"], ["models", "lst"], ["models", "pul", "x"], ["store", "ad"]], ids=" ".join
)
def test_a_command_that_is_mistyped_is_guessed(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    code, out, said = invoke(capsys, *words)
    assert (code, out) == (2, "")
    assert "Did you mean" in said


def test_what_is_missing_is_named_as_the_help_names_it(capsys: pytest.CaptureFixture[str]) -> None:
    for words, command in leaves(command_tree()):
        if any(one.param_type_name == "argument" and one.required for one in command.params):
            _, _, said = invoke(capsys, *words)
            assert re.search(r"missing argument '[A-Z]+(\.\.)?'", said), words
