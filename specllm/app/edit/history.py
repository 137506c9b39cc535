"""The edits of this user, newest last, each with the text it replaced: what `edit --undo` takes back.

An edit is written down before the file is replaced. If the process is killed in between, the entry speaks of an edit that
never happened: the file still is what it was before, which shows when it is read again.
"""

from __future__ import annotations

import base64
import contextlib
import itertools
import json
import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from specllm.app.apply import digest_now, digest_of, replace_file, require_as_expected
from specllm.app.state import state_dir
from specllm.app.text_file import MAX_BYTES
from specllm.errors import ConfigError, SpecllmError, StorageError
from specllm.models.disk import locked

MOST = 100  # edits that are kept


@dataclass(frozen=True, slots=True)
class Entry:
    """One edit: the real path of the file, its bytes before, and the digest of its bytes afterwards."""

    file: Path  # where this is written down
    path: Path
    before: bytes
    after_sha256: str
    mode: int
    at: str  # ISO 8601, UTC


def open_history() -> Path:
    """The folder of the history, made where it is missing, for this user's eyes only; raises ConfigError."""
    folder = state_dir() / "edits"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        folder.chmod(0o700)
    except OSError as error:
        raise ConfigError(
            f"cannot keep old texts for --undo in {folder}: {error.strerror}",
            "set SPECLLM_STATE_DIR to a folder that you can write",
        ) from None
    if not os.access(folder, os.W_OK):
        raise ConfigError(f"cannot write {folder}", "set SPECLLM_STATE_DIR to a folder that you can write")
    return folder


def apply_edit(path: Path, before: bytes, after: bytes) -> None:
    """The file at `path`, which must still hold `before`, holds `after`, and `undo_edit` can take it back.

    Raises StorageError and leaves everything as it was where that cannot be.
    """
    folder = open_history()
    with locked(folder / "lock"):
        require_as_expected(path, digest_of(before))
        try:
            entry = _add(folder, path, before, after)
        except StorageError as error:
            raise StorageError(
                f"{path} was left alone, for its old text cannot be kept for --undo: {error.message}",
                "free some space there, set SPECLLM_STATE_DIR to another folder, or use --output",
            ) from None
        try:
            replace_file(path, after, expected=digest_of(before))
        except StorageError:
            _drop(entry)
            raise
        for old in _entries(folder)[:-MOST]:
            old.unlink(missing_ok=True)


def read_replaced(path: Path) -> bytes:
    """What the file holds that an edit is to replace; raises ConfigError where that could not be kept."""
    try:
        with path.open("rb") as file:
            data = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}", "name another file") from None
    if len(data) > MAX_BYTES:
        raise ConfigError(f"{path} is too large to be kept for --undo", "name another file, or move it away first")
    return data


def last_edit(path: Path | None, *, is_forced: bool = False) -> Entry:
    """The edit that `undo_edit` would take back; raises what that would raise, and changes nothing."""
    folder = open_history()
    with locked(folder / "lock"):
        entry = _last(folder, path)
        now = _read(entry.path)
        if not is_forced and not _is_as_left(entry, now):
            raise _refusal(entry, now)
        return entry


def undo_edit(path: Path | None, *, is_forced: bool = False) -> Entry:
    """Takes back the newest edit of `path` (None: of any file) and returns it.

    Raises StorageError where the file changed since, unless `is_forced`: then what it holds now becomes the newest edit's
    old text, so that another undo brings it back. Raises it too where nobody named a file and that of the newest edit holds
    its old text already: an older edit of another file is not what was meant. Raises ConfigError where there is nothing to
    take back.
    """
    folder = open_history()
    with locked(folder / "lock"):
        if path is not None:
            for over in _over(folder, path):
                _drop(over.file)
        entry = _last(folder, path)
        now = _read(entry.path)
        if _is_as_left(entry, now):
            replace_file(entry.path, entry.before, expected=entry.after_sha256)
        elif is_forced:
            rescue = _add(folder, entry.path, now, entry.before) if now is not None else None
            try:
                replace_file(
                    entry.path, entry.before, expected=digest_of(now) if now is not None else None, mode=entry.mode
                )
            except StorageError:
                if rescue:
                    _drop(rescue)
                raise
        else:
            raise _refusal(entry, now)
        _drop(entry.file)
        return entry


def keep(what: str, data: bytes) -> Path | None:
    """The file beside the history that now holds `data`, in the place of the last `what`; None where it cannot be kept."""
    try:
        file = open_history() / f"last-{what.replace(' ', '-')}"
        replace_file(file, data, expected=None, mode=0o600)
    except SpecllmError:
        return None
    return file


def _is_as_left(entry: Entry, now: bytes | None) -> bool:
    """Whether the file holds what the edit put there."""
    return now is not None and digest_of(now) == entry.after_sha256


def _refusal(entry: Entry, now: bytes | None) -> StorageError:
    what = "is gone" if now is None else "changed since that edit"
    return StorageError(
        f"{entry.path} {what}, so nothing was undone", "pass --force to restore it all the same, or name another file"
    )


def _last(folder: Path, path: Path | None) -> Entry:
    n_over = len(_over(folder, path)) if path is not None else 0
    found = next(itertools.islice(_parsed_entries(folder, path), n_over, None), None)
    if found is None:
        raise ConfigError(
            f"there is no edit of {path} to undo" if path else "there is no edit to undo",
            f"edits are kept in {folder}, the last {MOST} of them",
        )
    if path is None and _is_over(found):
        raise StorageError(
            f"the last edit was of {found.path}, which holds again what it held before; nothing was undone",
            "specllm edit --undo FILE takes back the last edit of another file",
        )
    return found


def _over(folder: Path, path: Path) -> list[Entry]:
    """The newest edits of `path` that never happened, or were taken back by hand."""
    return list(itertools.takewhile(_is_over, _parsed_entries(folder, path)))


def _is_over(entry: Entry) -> bool:
    now = digest_now(entry.path)
    return now != entry.after_sha256 and now == digest_of(entry.before)


def _parsed_entries(folder: Path, path: Path | None) -> Iterator[Entry]:
    """Newest first; of that file alone, where it is named."""
    suffix = f"-{_key(Path(os.path.realpath(path)))}.json" if path else ".json"
    for file in reversed(_entries(folder)):
        if file.name.endswith(suffix) and (entry := _parsed(file)):
            yield entry


def _add(folder: Path, path: Path, before: bytes, after: bytes) -> Path:
    """Writes an edit down; returns the file with it."""
    target = Path(os.path.realpath(path))
    try:
        mode = stat.S_IMODE(target.stat().st_mode)
    except OSError:  # gone by now, which shows when it is to be replaced
        mode = 0o600
    numbers = [int(file.name.partition("-")[0]) for file in _entries(folder)]
    file = folder / f"{max(numbers, default=0) + 1:08d}-{_key(target)}.json"
    values = {
        "path": os.fsencode(target).decode("utf-8", "surrogateescape"),
        "at": datetime.now(UTC).isoformat(timespec="seconds"),
        "mode": mode,
        "after_sha256": digest_of(after),
        "before": base64.b64encode(before).decode(),
    }
    replace_file(file, json.dumps(values).encode(), expected=None, mode=0o600)
    return file


def _parsed(file: Path) -> Entry | None:
    """None for what is no entry of ours: a file that somebody put there, or of another version."""
    try:
        values: dict[str, Any] = json.loads(file.read_bytes())
        before = base64.b64decode(values["before"], validate=True)
        path = Path(os.fsdecode(values["path"].encode("utf-8", "surrogateescape")))
        return Entry(file, path, before, str(values["after_sha256"]), int(values["mode"]), str(values["at"]))
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


def _entries(folder: Path) -> list[Path]:
    """Oldest first."""
    return sorted(file for file in folder.glob("*-*.json") if file.name.partition("-")[0].isdecimal())


def _key(target: Path) -> str:
    return digest_of(os.fsencode(target))[:16]


def _read(path: Path) -> bytes | None:
    """What the file holds; None where it is gone. Raises StorageError where there is something that cannot be kept."""
    try:
        if path.exists() and not path.is_file():
            raise StorageError(f"{path} is no file by now, so nothing was undone", "move it away first")
        return path.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise StorageError(
            f"cannot read {path}: {error.strerror}; nothing was undone", "make it readable, or move it away, first"
        ) from None


def _drop(file: Path) -> None:
    with contextlib.suppress(OSError):
        file.unlink()
