"""Writing below the model folder: whole files or nothing, one writer at a time, errors with a next step."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import re
import shutil
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from specllm.errors import StorageError
from specllm.units import sized

CHUNK_BYTES = 4 << 20
DISK_MARGIN_BYTES = 256 << 20  # never fill somebody's disk to the last byte

_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
_SHORT_WRITE = re.compile(r"\d+ requested and \d+ written")  # numpy, without an errno
_REFUSED = {errno.EACCES, errno.EPERM, errno.EROFS}
_NO_LOCKS_HERE = {errno.ENOLCK, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS}


@contextlib.contextmanager
def storage_errors(path: Path) -> Iterator[None]:
    """An OSError inside the block leaves it as a StorageError about `path` with the step that mends it."""
    try:
        yield
    except OSError as error:
        raise storage_error(path, error) from error


def storage_error(path: Path, error: OSError) -> StorageError:
    """The StorageError that says what `error` means for somebody who wants to write `path`."""
    if error.errno in _FULL or _SHORT_WRITE.fullmatch(str(error)):
        return StorageError(
            f"no space left on the disk of {path}",
            "free some space, or set SPECLLM_MODELS_DIR to a folder on another disk; then run it again",
        )
    if error.errno in _REFUSED:
        return StorageError(
            f"cannot write {path}: {error.strerror}",
            f"make {path.parent} writable, or choose another folder: SPECLLM_MODELS_DIR for models, SPECLLM_STORES_DIR for "
            "stores, SPECLLM_CONFIG_DIR for models.toml",
        )
    return StorageError(f"{path}: {error.strerror or error}", "check the path and the disk")


def make_folder(folder: Path) -> Path:
    """`folder` exists and is a folder."""
    with storage_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
    return folder


def require_space(folder: Path, n_bytes: int) -> None:
    """Raises StorageError unless `n_bytes` and a margin are free on the disk of `folder` (which exists)."""
    with storage_errors(folder):
        free = shutil.disk_usage(folder).free
    if free < n_bytes + DISK_MARGIN_BYTES:
        needed = f"{sized(n_bytes)} and {sized(DISK_MARGIN_BYTES)} to spare"
        raise StorageError(
            f"not enough disk space in {folder}: {sized(free)} free, {needed} needed",
            "free some space, or set SPECLLM_MODELS_DIR to a folder on another disk; then run it again",
        )


def write_whole(path: Path, content: bytes) -> None:
    """`path` holds exactly `content`, or (on any error) what it held before. A symlink stays one."""
    target = Path(os.path.realpath(path))
    with storage_errors(path):
        target.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=target.parent, prefix=".specllm-")
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(content)
                sync(file.fileno())
            with contextlib.suppress(OSError):  # a new file gets the umask's mode, an old one keeps its own
                os.chmod(temporary, target.stat().st_mode & 0o777 if target.exists() else 0o644)
            os.replace(temporary, target)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(temporary)
            raise
        sync_folder(target.parent)


def move_whole(source: Path, target: Path) -> None:
    """`target` is the file that `source` was, safely on the disk, whatever happens in between."""
    with storage_errors(target):
        with source.open("rb+") as file:
            sync(file.fileno())
        os.replace(source, target)
        sync_folder(target.parent)


def sync(descriptor: int) -> None:
    os.fsync(descriptor)


def sync_folder(folder: Path) -> None:
    """The names in `folder` are on the disk, where the system can promise that at all (not on Windows)."""
    with contextlib.suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def sha256_of(paths: Iterable[Path], on_bytes: Callable[[int], None] = lambda n_bytes: None) -> str:
    """The SHA-256 of the files one after the other, in hexadecimal; `on_bytes` hears what each step reads."""
    digest = hashlib.sha256()
    for path in paths:
        with path.open("rb", buffering=0) as file:
            while chunk := file.read(CHUNK_BYTES):
                digest.update(chunk)
                on_bytes(len(chunk))
    return digest.hexdigest()


@contextlib.contextmanager
def locked(path: Path, on_wait: Callable[[], None] = lambda: None) -> Iterator[None]:
    """This process alone is inside the block, among all that lock `path`; `on_wait` is called once if it
    must wait.

    The system drops the lock when its holder dies, so none is ever stale; the empty file stays. On a file
    system without locks (some network drives) the block runs unlocked: the digest still catches what two
    writers would spoil.
    """
    make_folder(path.parent)
    with storage_errors(path):
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        if not _try_lock(descriptor):
            on_wait()
            while not _try_lock(descriptor):
                time.sleep(0.2)
        yield
    finally:
        os.close(descriptor)


def _try_lock(descriptor: int) -> bool:
    try:
        if os.name == "nt":  # pragma: no cover - exercised on Windows only
            import msvcrt

            msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)  # type: ignore[attr-defined,unused-ignore]
        else:
            import fcntl

            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (BlockingIOError, PermissionError):
        return False
    except OSError as error:
        return error.errno in _NO_LOCKS_HERE
    return True
