"""Where a prompt comes from."""

from __future__ import annotations

import io
import os
import shlex
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

import specllm
from specllm.cli.prompt import MAX_BYTES, read_prompt
from specllm.errors import ConfigError
from tests.cli.conftest import COMMAND, QUICK, TIMEOUT_S, run, run_all


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
        (["explain:"], "code\n", "explain:"),
        (["-", "explain:"], "code\n", "explain:\n\ncode\n"),
        (["explain:", "-"], "code\n", "explain:\n\ncode\n"),
        (["-"], "code\r\nmore\r\n", "code\r\nmore\r\n"),
        (["-", "explain:"], " \n", "explain:"),
        ([], "\ufeffmarked", "marked"),
    ],
)
def test_words_come_first_then_what_is_piped_in_where_that_is_asked_for(
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


def test_words_and_a_file_leave_the_pipe_to_whoever_reads_it_next(pipe: io.TextIOWrapper, tmp_path: Path) -> None:
    (tmp_path / "prompt.txt").write_text("from a file", encoding="utf-8")
    pipe.write("the next line")
    pipe.flush()  # it stays open: reading to its end would never return
    assert read_prompt(["hi"], None) == "hi"
    assert read_prompt([], tmp_path / "prompt.txt") == "from a file"
    with pytest.raises(ConfigError, match="there is no prompt"):
        read_prompt([""], None)  # an empty variable is a prompt that was given
    pipe.close()
    assert sys.stdin.read() == "the next line"


@pytest.mark.parametrize(
    ("words", "piped", "is_told"),
    [(["hi"], "code", True), (["hi"], "", False), (["hi", "-"], "code", False), ([], "code", False)],
)
def test_a_text_that_waits_in_the_pipe_and_is_not_read_is_told(
    pipe: io.TextIOWrapper, capsys: pytest.CaptureFixture[str], words: list[str], piped: str, is_told: bool
) -> None:
    pipe.write(piped)
    pipe.close()
    read_prompt(words, None) if words or piped else None
    assert ("put - among the words" in capsys.readouterr().err) == is_told


@pytest.mark.parametrize(("n_read", "is_told"), [(0, True), (5, False)])
def test_a_file_on_stdin_is_told_unless_a_loop_reads_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], n_read: int, is_told: bool
) -> None:
    (tmp_path / "list").write_text("first\nsecond\n", encoding="utf-8")
    with (tmp_path / "list").open(encoding="utf-8") as stdin:
        os.read(stdin.fileno(), n_read)
        monkeypatch.setattr("sys.stdin", stdin)
        assert read_prompt(["hi"], None) == "hi"
    assert ("put - among the words" in capsys.readouterr().err) == is_told


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


@pytest.mark.parametrize(
    "arguments",
    [
        ("generate", "-m", "MODEL", *QUICK, "-n", "2", "hi"),
        ("generate", "-m", "MODEL", *QUICK, "-n", "2", "-f", "FILE"),
        ("chat", "-m", "MODEL", "--threads", "1", "-d", "none", "-n", "2", "--message", "hi"),
        ("edit", "FILE", "shorten", "-m", "MODEL", *QUICK, "-n", "2", "--dry-run"),
        ("bench", "-m", "MODEL", "--threads", "1", "--arms", "none", "--limit", "1", "-n", "2", "--runs", "1"),
        ("store", "list"),
        ("models", "list"),
        ("--help",),
    ],
    ids=lambda arguments: " ".join(arguments[:1] + arguments[-1:]),
)
def test_no_command_waits_for_a_pipe_that_nobody_told_it_to_read(
    llama_gguf: Path, tmp_path: Path, arguments: tuple[str, ...]
) -> None:
    (tmp_path / "prompt.txt").write_text("hello", encoding="utf-8")
    there = {"MODEL": str(llama_gguf), "FILE": str(tmp_path / "prompt.txt")}
    reader, writer = os.pipe()
    try:
        result = run(*(there.get(one, one) for one in arguments), stdin=reader)  # not closed before it ends
    finally:
        os.close(reader)
        os.close(writer)
    assert result.code in (0, 1, 3), result.stderr


@pytest.mark.parametrize(
    "loop",
    [
        'while read -r line; do ASK "$line"; done < list',
        'cat list | while read -r line; do ASK "$line"; done',
        'while read -r line; do ASK -f "$line"; done < list',
    ],
)
def test_a_loop_over_lines_asks_once_for_every_line(llama_gguf: Path, tmp_path: Path, loop: str) -> None:
    for name in ("one", "two", "three"):
        (tmp_path / name).write_text(name, encoding="utf-8")
    (tmp_path / "list").write_text("one\ntwo\nthree\n", encoding="utf-8")
    ask = shlex.join([*COMMAND, "generate", "-m", str(llama_gguf), *QUICK, "-n", "2", "-q", "--json"])
    script = loop.replace("ASK", ask)
    environment = {**os.environ, "PYTHONPATH": str(Path(specllm.__file__).parents[1])}
    done = subprocess.run(
        ["sh", "-c", script],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        timeout=TIMEOUT_S,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert len(done.stdout.splitlines()) == 3
