"""A run as JSON lines, one per round: everything the loop knew, enough to replay it without a model.

`texts` has a text per token, for reading: a character split over two tokens is no text in either. `shown` has what became of
them on the screen, as [text, source] pairs: together, the answer exactly. `logprobs`, where they were asked for, has an object
per token (see `logprobs.described`). The last line also says how the answer `end`ed.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol

from specllm.decoding.metrics import Metrics
from specllm.decoding.protocols import Round, Token
from specllm.errors import StorageError


@contextlib.contextmanager
def storage_errors(path: Path) -> Iterator[None]:
    """Turns what the file system says about `path` into a StorageError."""
    try:
        yield
    except OSError as error:
        raise StorageError(
            f"cannot write {path}: {error.strerror}", "choose another file, or free some space"
        ) from error


class Chunk(Protocol):
    @property
    def text(self) -> str: ...
    @property
    def source(self) -> str: ...


def _partial_beside(target: Path) -> Path:
    """Another process has another one, and its name is short however long the file's own is: names end at 255 bytes."""
    digest = hashlib.sha256(os.fsencode(target.name)).hexdigest()[:16]
    return target.with_name(f".specllm-{digest}-{os.getpid()}.partial")


class TraceWriter:
    """Writes beside the file and renames when done, so that an older trace is replaced whole or not at all.

    What is there and is no file (a pipe, a terminal, /dev/full) is written to as it is: a rename would remove the device.
    """

    def __init__(self, path: Path, piece: Callable[[Token], str]) -> None:
        self._path = path
        self._piece = piece
        self._is_spoiled = False  # a line could not be written
        self._n_rounds = 0
        self._line: dict[str, Any] | None = None  # the last round, not written yet: more may become known about it
        with storage_errors(path):
            if path.is_dir():
                raise IsADirectoryError(21, "it is a folder")
            self._target = Path(os.path.realpath(path))  # a link stays a link
            is_special = path.exists() and not path.is_file()
            self._partial = None if is_special else _partial_beside(self._target)
            self._file = (self._partial or self._target).open("w", encoding="utf-8")

    def __enter__(self) -> TraceWriter:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        was_told = self._is_spoiled  # its error is on the way already
        try:
            with storage_errors(self._path), contextlib.closing(self._file):
                self._write_line()
                if self._partial and not self._is_spoiled:
                    self._file.flush()
                    os.fsync(self._file.fileno())
                    os.replace(self._partial, self._target)
        except StorageError:
            if not was_told:
                raise
        finally:
            if self._partial:
                self._partial.unlink(missing_ok=True)

    def write(self, round: Round, metrics: Metrics, logprobs: Sequence[Mapping[str, object]] = ()) -> None:
        """Adds a round, with the log probabilities of its tokens if there are some; the first one also carries what the
        prompt cost."""
        self._write_line()
        self._line = {
            "round": self._n_rounds,
            "tokens": round.tokens,
            "texts": [self._piece(token) for token in round.tokens],
            "draft": round.draft.tokens,
            "source": round.draft.source,
            "n_accepted": round.n_accepted,
            "width": round.width,
            "draft_s": round.draft_s,
            "verify_s": round.verify_s,
            "rest_s": round.rest_s,
            "reason": round.reason,
            "shown": [],
        }
        if round.plain_s is not None:
            self._line["plain_s"] = round.plain_s
        if round.draft.evidence:
            self._line["evidence"] = round.draft.evidence
        if logprobs:
            self._line["logprobs"] = logprobs
        if not self._n_rounds:
            self._line["prompt"] = {
                "n_prompt": metrics.n_prompt,
                "n_reused": metrics.n_reused,
                "prefill_s": metrics.prefill_s,
            }
            if metrics.n_prediction:
                self._line["prompt"]["n_prediction"] = metrics.n_prediction
        self._n_rounds += 1

    def show(self, chunks: Sequence[Chunk]) -> None:
        """Adds text that was released after the last round."""
        if self._line is not None:
            self._line["shown"] += [[chunk.text, chunk.source] for chunk in chunks]

    def end(self, *, finish_reason: str | None, strategy: str) -> None:
        """Adds how it ended."""
        if self._line is not None:
            self._line["end"] = {"finish_reason": finish_reason, "strategy": strategy}

    def _write_line(self) -> None:
        line, self._line = self._line, None
        if line is None or self._is_spoiled:
            return
        self._is_spoiled = True
        with storage_errors(self._path):
            self._file.write(json.dumps(line, ensure_ascii=False) + "\n")
        self._is_spoiled = False
