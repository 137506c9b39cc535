"""Where a prompt comes from: words, a file, a pipe."""

from __future__ import annotations

import codecs
import os
import stat
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import BinaryIO

from specllm.errors import ConfigError

STDIN = "-"
MAX_BYTES = 64 * 2**20  # more than any context holds; a wrong file or an endless device should not fill the memory

_WIDE_MARKS = {codecs.BOM_UTF16_LE: "utf-16", codecs.BOM_UTF16_BE: "utf-16"}


def read_prompt(
    words: Sequence[str],
    file: Path | None,
    *,
    reads_pipe: bool = True,
    may_be_empty: bool = False,
    is_quiet: bool = False,
) -> str:
    """The words, then the file, then what is piped in, with empty lines between them.

    The pipe is read where `-` asks for it, and where there are neither words nor a file. Otherwise it belongs to somebody
    else, such as a loop over lines, or never ends; a note says so where a text waits there, unless `is_quiet`. Without
    `reads_pipe`, what is piped in is something else.
    """
    is_asked_for_stdin = STDIN in words or str(file) == STDIN
    if is_asked_for_stdin and not reads_pipe:
        raise ConfigError("stdin cannot be both the prompt and the prediction", "give one of them as a file")
    parts = [_checked(typed(words))]
    if file is not None and str(file) != STDIN:
        parts.append(read_file(file))
    if is_asked_for_stdin or (reads_pipe and not words and file is None and _is_piped()):
        parts.append(_read_stdin())
    elif reads_pipe and not is_quiet and _is_text_waiting():
        print("note: the text on stdin is not read; to add it, put - among the words", file=sys.stderr)
    prompt = "\n\n".join(part for part in parts if part.strip())
    if not prompt and not may_be_empty:
        raise ConfigError("there is no prompt", 'give one: specllm generate "...", --prompt-file FILE, or pipe it in')
    return prompt


def typed(words: Sequence[str]) -> str:
    """The words as one text, which a prompt begins with; empty where they are blanks."""
    text = " ".join(word for word in words if word != STDIN)
    return text if text.strip() else ""


def read_prediction(file: Path) -> str:
    """The text in `file`, or what is piped in (`-`)."""
    text = _read_stdin("--prediction FILE") if str(file) == STDIN else read_file(file, "--prediction")
    if not text:
        raise ConfigError("the prediction is empty", "give the text that the answer will resemble, or leave it out")
    return text


def _is_piped() -> bool:
    """Whether stdin is a pipe or a file; a terminal, /dev/null or a closed stdin is none."""
    try:
        mode = os.fstat(sys.stdin.fileno()).st_mode
    except (AttributeError, OSError, ValueError):
        return False
    return stat.S_ISFIFO(mode) or stat.S_ISREG(mode)


def _is_text_waiting() -> bool:
    """Whether stdin is a pipe with something in it, or a file of which nothing was read yet. Reads nothing."""
    try:
        import fcntl
        import termios

        number = sys.stdin.fileno()
        status = os.fstat(number)
        if stat.S_ISREG(status.st_mode):
            return status.st_size > 0 and os.lseek(number, 0, os.SEEK_CUR) == 0
        return stat.S_ISFIFO(status.st_mode) and any(fcntl.ioctl(number, termios.FIONREAD, bytes(4)))
    except (ImportError, AttributeError, OSError, ValueError):  # Windows; no stdin, or none of the system
        return False


def _checked(text: str) -> str:
    """The arguments as they are; bytes that are no text arrive as lone surrogates."""
    try:
        text.encode()
    except UnicodeEncodeError:
        raise ConfigError("the prompt is not UTF-8", "put it into a file and convert that: iconv -t utf-8") from None
    return text


def read_file(path: Path, option: str = "--prompt-file") -> str:
    """The text of the file that `option` names."""
    try:
        with path.open("rb") as file:
            return _decoded(file, str(path))
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}", f"check {option}") from None


def _read_stdin(other_way: str = "--prompt-file") -> str:
    try:
        return _decoded(sys.stdin.buffer, "the piped text")
    except OSError as error:
        raise ConfigError(f"cannot read stdin: {error.strerror}", f"use {other_way}") from None


def _decoded(file: BinaryIO, name: str) -> str:
    """The file's text as it is, without a byte order mark."""
    data = file.read(MAX_BYTES + 1)
    if len(data) > MAX_BYTES:
        raise ConfigError(f"{name} is longer than {MAX_BYTES >> 20} MiB", "no context holds that: give a part of it")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        encoding = _WIDE_MARKS.get(data[:2], "latin1")
        raise ConfigError(
            f"{name} is not UTF-8 (byte {error.start})", f"convert it: iconv -f {encoding} -t utf-8"
        ) from None
