"""Puts new bytes in the place of a file: whole or not at all, whatever fails or kills the process in between.

The bytes go into a file of the same folder, that one to the disk, and a rename puts it in place. A link stays a link, and
mode, owner and extended attributes stay those of the old file. Every writer's file has a name of its own. What a killed process
leaves behind is never taken for anything, and goes with the first edit of that file an hour later.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import shutil
import stat
import tempfile
import time
from pathlib import Path

from specllm.errors import ConfigError, StorageError
from specllm.models.disk import sync_folder

ABSENT = ""  # in the place of a digest: there is no file
PARTIAL_SUFFIX = ".partial"
STALE_S = 3600  # writing takes seconds, so whoever made an older file is gone


def digest_of(data: bytes) -> str:
    """SHA-256 in hexadecimal."""
    return hashlib.sha256(data).hexdigest()


def require_replaceable(path: Path) -> None:
    """Raises ConfigError where the regular file at `path` could not be replaced."""
    target = Path(os.path.realpath(path))
    # Not only access(): it lets the superuser write what is meant to be read only.
    if not os.access(target, os.W_OK) or not target.stat().st_mode & (stat.S_IWUSR | stat.S_IWGRP | stat.S_IWOTH):
        raise ConfigError(f"{path} is read-only", "make it writable (chmod u+w), or use --output or --dry-run")
    require_writable_folder(target)


def require_writable_folder(target: Path) -> None:
    """Raises ConfigError where no file can be put beside `target`."""
    folder = Path(os.path.realpath(target)).parent
    if not folder.is_dir():
        raise ConfigError(f"there is no folder {folder}", "make it first")
    if not os.access(folder, os.W_OK | os.X_OK):
        raise ConfigError(
            f"the folder {folder} cannot be written, and a file is replaced from inside its folder",
            "make the folder writable, or use --output or --dry-run",
        )


def digest_now(path: Path) -> str | None:
    """Of the file as it is now; None where there is none that can be read."""
    try:
        return digest_of(path.read_bytes()) if path.is_file() else None  # reading a pipe would wait
    except OSError:
        return None


def require_as_expected(path: Path, expected: str) -> None:
    """Raises StorageError unless the file at `path` has that digest, or is not there where `expected` is `ABSENT`."""
    if expected == ABSENT:
        if os.path.lexists(path):
            raise StorageError(
                f"{path} appeared meanwhile, so nothing was written", "name another file, or run it again"
            )
    elif not os.path.lexists(path):
        raise StorageError(
            f"{path} is gone by now, so nothing was written",
            f"make {path.parent} again first" if not path.parent.is_dir() else "put it back where it is still wanted",
        )
    elif digest_now(path) != expected:
        raise StorageError(f"{path} changed meanwhile, so nothing was written", "run the edit again")


def replace_file(path: Path, data: bytes, *, expected: str | None, mode: int = 0o644) -> None:
    """`path` holds exactly `data` and that is on the disk, or (on any error) it is as it was.

    `expected` is the digest that the old file must still have at the moment of the rename, or `ABSENT`; None takes whatever
    is there, also nothing. A new file gets `mode`. Raises StorageError.
    """
    target = Path(os.path.realpath(path))
    try:
        _remove_stale_partials(target)
        descriptor, name = tempfile.mkstemp(PARTIAL_SUFFIX, partial_prefix(target.name), target.parent)
        partial = Path(name)
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(data)
                file.flush()
                _take_over(target, partial, mode)
                os.fsync(file.fileno())
            if expected is not None:
                require_as_expected(path, expected)
            if expected == ABSENT:
                _move_beside_nothing(partial, target)
            else:
                os.replace(partial, target)
        finally:
            partial.unlink(missing_ok=True)
        sync_folder(target.parent)
    except FileExistsError:
        require_as_expected(path, ABSENT)
        raise
    except OSError as error:
        if not target.parent.is_dir():
            raise StorageError(
                f"cannot write {path}: {error.strerror}; its folder is gone", f"make {target.parent} again first"
            ) from None
        refused = error.errno in (errno.EACCES, errno.EPERM, errno.EROFS)
        raise StorageError(
            f"cannot write {path}: {error.strerror or error}; it is as it was",
            f"make {target.parent} writable" if refused else f"check {target.parent} and the space on its disk",
        ) from error


def write_beside(path: Path, data: bytes, *, like: Path) -> None:
    """The new file `path` holds `data`, and is as private and as executable as `like`.

    Raises StorageError, also where there is a file by now.
    """
    try:
        mode = like.stat().st_mode & 0o777
    except OSError:  # it is gone by now
        mode = 0o600
    replace_file(path, data, expected=ABSENT, mode=mode)


def partial_prefix(name: str) -> str:
    """Of the files that become the file called `name`; short however long that is: a folder's names end at 255 bytes."""
    return f".specllm-{digest_of(os.fsencode(name))[:16]}"


def is_partial_of(partial: str, name: str) -> bool:
    return partial.startswith(partial_prefix(name)) and partial.endswith(PARTIAL_SUFFIX)


def _remove_stale_partials(target: Path) -> None:
    """What a killed process left behind; a younger one may belong to another that is writing right now."""
    oldest = time.time() - STALE_S
    for partial in target.parent.glob(f"{partial_prefix(target.name)}*{PARTIAL_SUFFIX}"):
        with contextlib.suppress(FileNotFoundError):
            if partial.lstat().st_mtime < oldest:
                partial.unlink()


def _move_beside_nothing(partial: Path, target: Path) -> None:
    """Renames without replacing anything, where the file system can promise that."""
    try:
        os.link(partial, target)
    except FileExistsError:
        raise
    except OSError:  # there are no hard links here
        require_as_expected(target, ABSENT)
        os.replace(partial, target)


def _take_over(target: Path, partial: Path, mode: int) -> None:
    """Owner, mode and extended attributes of the old file, as far as this user may set them."""
    try:
        old = target.stat()
    except FileNotFoundError:
        os.chmod(partial, mode)
        return
    if hasattr(os, "chown"):
        for owner, group in ((old.st_uid, -1), (-1, old.st_gid)):
            with contextlib.suppress(PermissionError):
                os.chown(partial, owner, group)
    shutil.copystat(target, partial)  # behind chown, which drops set-uid bits
    os.utime(partial)
