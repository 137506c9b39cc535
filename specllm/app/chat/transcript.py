"""A conversation as a file of JSON lines, one message each: `role`, `content` and how many tokens it was.

The figures of an answer stand beside it. Whatever else a line holds is ignored, so other programs' files of `role` and
`content` can be loaded too.
"""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from specllm.app.chat.use_case import Turn
from specllm.app.trace.writer import storage_errors
from specllm.errors import ConfigError, StorageError

MAX_BYTES = 64 * 2**20  # more than any context holds
_HINT = 'each line is {"role": "system", "user" or "assistant", "content": "..."}, user and assistant taking turns'


@dataclass(frozen=True, slots=True)
class Transcript:
    system: str | None
    turns: Sequence[Turn]
    unanswered: str | None  # a last message without an answer


def save(path: Path, transcript: Transcript, model: str, *, may_replace: bool) -> None:
    """`path` holds the conversation, whole; raises StorageError where a file is there, unless it `may_replace` that."""
    content = "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in _lines(transcript, model)).encode()
    target = Path(os.path.realpath(path))  # a link stays a link
    with storage_errors(path):
        if target.exists() and not target.is_file():
            raise OSError(22, "it is no file")
        if may_replace and target.exists():
            _write_whole(target, content)
            return
        try:
            os.close(os.open(target, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))  # the name is ours from here on
        except FileExistsError:
            hint = f"choose another name, or replace it: /save --force {path}"
            raise StorageError(f"{path} is there already", hint) from None
        with contextlib.ExitStack() as undo:
            undo.callback(target.unlink, missing_ok=True)
            _write_whole(target, content)
            undo.pop_all()


def _write_whole(target: Path, content: bytes) -> None:
    """A file that is there holds `content`, or (on any error) what it held before; it keeps its mode."""
    handle, name = tempfile.mkstemp(dir=target.parent, prefix=".specllm-")
    temporary = Path(name)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        temporary.chmod(target.stat().st_mode & 0o777)
        temporary.replace(target)
    finally:
        temporary.unlink(missing_ok=True)


def _lines(transcript: Transcript, model: str) -> Iterator[dict[str, object]]:
    if transcript.system is not None:
        yield {"role": "system", "content": transcript.system}
    for turn in transcript.turns:
        yield {"role": "user", "content": turn.message, "n_tokens": turn.n_message}
        yield {
            "role": "assistant", "content": turn.text, "n_tokens": turn.n_answer, "finish_reason": turn.finish_reason,
            "model": model, **turn.stats,
        }  # fmt: skip
    if transcript.unanswered is not None:
        yield {"role": "user", "content": transcript.unanswered}


def load(path: Path, count: Callable[[str], int]) -> Transcript:
    """The conversation in a file; `count` tells the tokens of a text. Raises ConfigError with the line that is wrong."""
    try:
        with path.open("rb") as file:
            data = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}", "check the name: /load FILE") from None
    if len(data) > MAX_BYTES:
        raise ConfigError(f"{path} is longer than {MAX_BYTES >> 20} MiB", "no context holds that")
    try:
        lines = data.decode("utf-8-sig").split("\n")
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path} is not UTF-8 (byte {error.start})", f"a transcript is text: {_HINT}") from None
    return _conversation(path, list(_messages(path, lines)), count)


def _messages(path: Path, lines: Iterable[str]) -> Iterator[tuple[int, str, str, str]]:
    """(line number, role, content, finish reason) of every line that is not empty."""
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            message = json.loads(line)
        except (ValueError, RecursionError):
            raise ConfigError(f"{path}, line {number}: this is no JSON", _HINT) from None
        if not isinstance(message, dict) or not isinstance(message.get("content"), str):
            raise ConfigError(f"{path}, line {number}: there is no text under content", _HINT)
        role = message.get("role")
        if role not in ("system", "user", "assistant"):
            raise ConfigError(f"{path}, line {number}: no role {role!r}", _HINT)
        yield number, role, clean(message["content"]), str(message.get("finish_reason"))


def _conversation(path: Path, messages: Sequence[tuple[int, str, str, str]], count: Callable[[str], int]) -> Transcript:
    system: str | None = None
    turns: list[Turn] = []
    question: str | None = None
    for place, (number, role, content, reason) in enumerate(messages):
        expected = "assistant" if question is not None else "user"
        if role == "system" and not place:
            system = content
        elif role != expected:
            raise ConfigError(f"{path}, line {number}: {role} where {expected} should speak", _HINT)
        elif question is None:
            question = content
        else:
            is_known = reason in ("stop", "length", "interrupted")
            turns.append(
                Turn(message=question, text=content, n_message=count(question), n_answer=count(content),
                     finish_reason=reason if is_known else "stop")  # type: ignore[arg-type]
            )  # fmt: skip
            question = None
    if not messages:
        raise ConfigError(f"{path} is empty", _HINT)
    return Transcript(system, turns, question)


def clean(text: str) -> str:
    """The text without lone surrogates: bytes that are no UTF-8 arrive as such, and no model knows them."""
    return text.encode("utf-8", errors="replace").decode("utf-8")
