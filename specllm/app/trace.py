"""A run as JSON lines, one per round: everything the loop knew, enough to replay it without a model."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from types import TracebackType

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


class TraceWriter:
    """Writes beside the file and renames when done, so that an older trace is replaced whole or not at all.

    What is there and is no file (a pipe, a terminal, /dev/full) is written to as it is: a rename would remove the device.
    """

    def __init__(self, path: Path, piece: Callable[[Token], str]) -> None:
        self._path = path
        self._piece = piece
        self._is_spoiled = False  # a line could not be written
        self._n_rounds = 0
        with storage_errors(path):
            if path.is_dir():
                raise IsADirectoryError(21, "it is a folder")
            self._target = Path(os.path.realpath(path))  # a link stays a link
            is_special = path.exists() and not path.is_file()
            self._partial = None if is_special else self._target.with_name(f".{path.name}.{os.getpid()}.partial")
            self._file = (self._partial or self._target).open("w", encoding="utf-8")

    def __enter__(self) -> TraceWriter:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        try:
            with storage_errors(self._path), contextlib.closing(self._file):
                if self._partial and not self._is_spoiled:
                    self._file.flush()
                    os.fsync(self._file.fileno())
                    os.replace(self._partial, self._target)
        except StorageError:
            if not self._is_spoiled:  # else its error is on the way already
                raise
        finally:
            if self._partial:
                self._partial.unlink(missing_ok=True)

    def write(self, round: Round, metrics: Metrics) -> None:
        """Adds a round; the first one also carries what the prompt cost."""
        line: dict[str, object] = {
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
        }
        if not self._n_rounds:
            line["prompt"] = {
                "n_prompt": metrics.n_prompt,
                "n_reused": metrics.n_reused,
                "prefill_s": metrics.prefill_s,
            }
        self._n_rounds += 1
        self._is_spoiled = True
        with storage_errors(self._path):
            self._file.write(json.dumps(line, ensure_ascii=False) + "\n")
        self._is_spoiled = False
