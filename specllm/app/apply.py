"""Puts new bytes in the place of a file: whole or not at all, whatever fails or kills the process in between.

The bytes go into a file of the same folder, that one to the disk, and a rename puts it in place. A link stays a link, and
mode, owner and extended attributes stay those of the old file. What a killed process leaves behind has a fixed name, is
never taken for anything, and is gone with the next edit of that file.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import shutil
import stat
from pathlib import Path

from specllm.errors import ConfigError, StorageError
from specllm.models.disk import sync_folder


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


def replace_file(path: Path, data: bytes, *, expected: str | None, mode: int = 0o644) -> None:
    """`path` holds exactly `data` and that is on the disk, or (on any error) it is as it was.

    `expected` is the digest that the old file must still have at the moment of the rename; None takes whatever is there,
    also nothing, and then the new file gets `mode`. Raises StorageError.
    """
    target = Path(os.path.realpath(path))
    partial = target.with_name(partial_name(target.name))
    try:
        partial.unlink(missing_ok=True)
        descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0), 0o600)
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(data)
                file.flush()
                _take_over(target, partial, mode)
                os.fsync(file.fileno())
            if expected is not None and digest_now(target) != expected:
                raise StorageError(f"{path} changed meanwhile, so nothing was written", "run the edit again")
            os.replace(partial, target)
        finally:
            partial.unlink(missing_ok=True)
        sync_folder(target.parent)
    except OSError as error:
        refused = error.errno in (errno.EACCES, errno.EPERM, errno.EROFS)
        raise StorageError(
            f"cannot write {path}: {error.strerror or error}; it is as it was",
            f"make {target.parent} writable" if refused else f"check {target.parent} and the space on its disk",
        ) from error


def write_beside(path: Path, data: bytes, *, like: Path, replaces: bool) -> None:
    """`path` holds `data`; a new file is as private and as executable as `like`.

    Raises StorageError, also where there is a file by now and nobody said that it may be replaced.
    """
    if not replaces and path.exists():
        raise StorageError(f"{path} appeared meanwhile, so nothing was written", "name another file, or pass --yes")
    try:
        mode = like.stat().st_mode & 0o777
    except OSError:  # it is gone by now
        mode = 0o600
    replace_file(path, data, expected=None, mode=mode)


def partial_name(name: str) -> str:
    """Short however long the file's own name is: a folder's names end at 255 bytes."""
    return f".specllm-{digest_of(os.fsencode(name))[:16]}.partial"


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
