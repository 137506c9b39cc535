"""Where a prompt comes from."""

from __future__ import annotations

import io
import os
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from specllm.cli.prompt import MAX_BYTES, read_prompt
from specllm.errors import ConfigError
from tests.cli.conftest import QUICK, run, run_all


@pytest.fixture
def pipe(monkeypatch: pytest.MonkeyPatch) -> Iterator[io.TextIOWrapper]:
    """Write to it what is piped in, then close it."""
    reader, writer = os.pipe()
    with open(reader, encoding="utf-8") as stdin, open(writer, "w", encoding="utf-8", newline="") as stream:
        monkeypatch.setattr("sys.stdin", stdin)
        yield stream


@pytest.fixture
def no_stdin(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with open(os.devnull, encoding="utf-8") as stdin:
        monkeypatch.setattr("sys.stdin", stdin)
        yield


@pytest.mark.parametrize(
    ("words", "piped", "prompt"),
    [
        (["tell", "me"], "", "tell me"),
        ([], "piped\n", "piped\n"),
        (["explain:"], "code\n", "explain:\n\ncode\n"),
        (["-", "explain:"], "code\n", "explain:\n\ncode\n"),
        (["-"], "code\r\nmore\r\n", "code\r\nmore\r\n"),
        (["explain:"], " \n", "explain:"),
        ([], "\ufeffmarked", "marked"),
    ],
)
def test_words_come_first_then_what_is_piped_in(
    pipe: io.TextIOWrapper, words: list[str], piped: str, prompt: str
) -> None:
    pipe.write(piped)
    pipe.close()
    assert read_prompt(words, None) == prompt


def test_a_file_is_read_as_it_is(no_stdin: None, tmp_path: Path) -> None:
    file = tmp_path / "prompt.txt"
    file.write_bytes("\ufeffline one\r\n海\r\n".encode())
    assert read_prompt([], file) == "line one\r\n海\r\n"
    assert read_prompt(["read", "this:"], file) == "read this:\n\nline one\r\n海\r\n"


def test_a_dash_as_file_is_what_is_piped_in(pipe: io.TextIOWrapper) -> None:
    pipe.write("piped")
    pipe.close()
    assert read_prompt([], Path("-")) == "piped"


def test_an_empty_pipe_is_no_prompt(pipe: io.TextIOWrapper) -> None:
    pipe.close()
    with pytest.raises(ConfigError, match="there is no prompt"):
        read_prompt([], None)


@pytest.mark.parametrize(
    ("data", "hint"), [("hi".encode("utf-16"), "-f utf-16"), ("café".encode("latin1"), "-f latin1")]
)
def test_another_encoding_is_named_in_the_hint(no_stdin: None, tmp_path: Path, data: bytes, hint: str) -> None:
    file = tmp_path / "prompt.txt"
    file.write_bytes(data)
    with pytest.raises(ConfigError, match="is not UTF-8") as error:
        read_prompt([], file)
    assert hint in error.value.hint


def test_an_argument_that_is_no_text_is_refused(no_stdin: None) -> None:
    with pytest.raises(ConfigError, match="the prompt is not UTF-8"):
        read_prompt([os.fsdecode(b"caf\xe9")], None)


def test_an_endless_file_is_refused(no_stdin: None) -> None:
    with pytest.raises(ConfigError, match=f"longer than {MAX_BYTES >> 20} MiB"):
        read_prompt([], Path("/dev/zero"))


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_file_without_permission_is_refused(no_stdin: None, tmp_path: Path) -> None:
    file = tmp_path / "prompt.txt"
    file.touch(mode=0)
    with pytest.raises(ConfigError, match="Permission denied"):
        read_prompt([], file)


def test_every_source_asks_the_model_the_same(llama_gguf: Path, tmp_path: Path) -> None:
    """The real command: argument, file and pipe of the same bytes, and a prompt of dashes behind `--`."""
    file = tmp_path / "prompt.txt"
    file.write_text("--two\n\ndashes", encoding="utf-8")
    ask = partial(run, "generate", "-m", str(llama_gguf), *QUICK, "--json", "-n", "3")
    results = run_all([
        partial(ask, "--", "--two\n\ndashes"),
        partial(ask, "--prompt-file", str(file)),
        partial(ask, stdin="--two\n\ndashes"),
        partial(ask, "-", "--", "--two", stdin="dashes"),
    ])  # fmt: skip
    answers = [result.document["result"] for result in results]
    # <s>, ten characters, and two pairs that the vocabulary has
    assert {answer["stats"]["n_prompt"] for answer in answers} == {13}
    assert len({answer["text"] for answer in answers}) == 1
