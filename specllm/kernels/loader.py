"""Puts the kernels into ggml's libraries, once per process and before the first model is loaded, or says why not.

`SPECLLM_KERNELS`: `auto` (they are used where they are built and pass their test), `on` (an error where they are not used),
`off`. For tests and measurements, `SPECLLM_KERNELS_SET` names one instruction set instead of the fastest, and
`SPECLLM_KERNELS_LIBRARY` a compiled library instead of the one beside this file.
"""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import json
import logging
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import platformdirs

from specllm.config import KERNELS_MODES, KERNELS_VARIABLE
from specllm.errors import BackendError, ConfigError
from specllm.kernels import build

LOGGER = logging.getLogger("specllm.kernels")
SET_VARIABLE = "SPECLLM_KERNELS_SET"
LIBRARY_VARIABLE = "SPECLLM_KERNELS_LIBRARY"
TEST_TIMEOUT_S = 120.0  # it takes half a second; on a machine that is busy with other things longer
CRASHES = (
    "SIGSEGV",
    "SIGBUS",
    "SIGILL",
    "SIGFPE",
    "SIGABRT",
)  # what tested code can do to itself; any other signal came from outside
HINT = "compile them with `python -m specllm.kernels.build`, or run without them: SPECLLM_KERNELS=off"


class TestUnfinished(Exception):
    """Nothing is known about the kernels: something ended their test, or it was not begun."""


@dataclass(frozen=True, slots=True)
class Kernels:
    """What computes in this process."""

    instruction_set: str = ""  # empty: ggml's own kernels
    digest: str = ""  # of the kernels' sources
    reason: str = ""  # why ggml's own kernels compute
    is_expected: bool = False  # nothing is wrong: they were never there
    # How often ggml itself computed something so far that may give a row other bits beside other rows
    count_others: Callable[[], int] = field(default=lambda: 0, compare=False, repr=False)

    @property
    def name(self) -> str:
        """Tells apart what computes differently or at another speed; empty for ggml's own kernels."""
        return f"{self.instruction_set} {self.digest}" if self.instruction_set else ""


@dataclass(frozen=True, slots=True)
class Libraries:
    """ggml's libraries in the folder of llama-cpp-python."""

    cpu: Path
    base: Path

    @classmethod
    def find(cls, folder: Path) -> Libraries | None:
        cpu, base = folder / "libggml-cpu.so.0", folder / "libggml-base.so.0"
        return cls(cpu, base) if cpu.exists() and base.exists() else None


def install(folder: Path, library: Path | None = None) -> Kernels:
    """Has the process compute with the kernels, if it may and can. `folder` holds ggml's libraries, already loaded.

    Raises ConfigError for a mode that does not exist, and BackendError where the mode is `on` and something is in the way.
    """
    mode = os.environ.get(KERNELS_VARIABLE) or "auto"
    if mode not in KERNELS_MODES:
        raise ConfigError(f"{KERNELS_VARIABLE}={mode} is no mode", f"use one of {', '.join(KERNELS_MODES)}")
    if mode == "off":
        return Kernels(reason=f"{KERNELS_VARIABLE} is off", is_expected=True)
    library = library or Path(os.environ.get(LIBRARY_VARIABLE) or build.LIBRARY).absolute()
    kernels = _try_install(folder, library, os.environ.get(SET_VARIABLE, ""))
    if not kernels.instruction_set:
        if mode == "on":
            raise BackendError(f"specllm's kernels are not used: {kernels.reason}", HINT)
        level = logging.DEBUG if kernels.is_expected else logging.WARNING
        LOGGER.log(level, "ggml's own kernels compute: %s", kernels.reason)
    return kernels


def _try_install(folder: Path, library: Path, instruction_set: str) -> Kernels:
    if not build.IS_SUPPORTED:
        return Kernels(reason="specllm's are for x86-64 Linux", is_expected=True)
    if not library.is_file():
        return Kernels(reason="specllm's are not compiled", is_expected=True)
    libraries = Libraries.find(folder)
    if libraries is None:
        return Kernels(reason="ggml's CPU library is not a library of its own here", is_expected=True)
    # Before this process opens it: a file that was cut off kills who does.
    if complaint := test_once(libraries, library, instruction_set):
        return Kernels(reason=f"specllm's failed their test: {complaint}")
    try:
        native = load(library)
        digest, expected = native.specllm_sources().decode(), build.sources_digest()
    except (OSError, AttributeError) as error:
        return Kernels(reason=f"specllm's do not load: {error}")
    if digest != expected:
        return Kernels(reason="specllm's were compiled from other sources; scripts/setup compiles them anew")
    if complaint := put_in_place(native, libraries, instruction_set):
        return Kernels(reason=complaint)
    return Kernels(native.specllm_installed_set().decode(), digest, count_others=native.specllm_n_others)


def load(library: Path) -> ctypes.CDLL:
    """The library of kernels; raises OSError or AttributeError where it is not one."""
    native = ctypes.CDLL(str(library))
    native.specllm_install.restype = native.specllm_installed_set.restype = native.specllm_sources.restype = (
        ctypes.c_char_p
    )
    native.specllm_install.argtypes = [ctypes.c_char_p, ctypes.c_char_p, ctypes.c_char_p, ctypes.c_bool]
    native.specllm_packed_total.restype = ctypes.c_size_t
    native.specllm_buffer_type.restype = ctypes.c_void_p
    native.specllm_n_others.restype = ctypes.c_long
    return native


def put_in_place(native: ctypes.CDLL, libraries: Libraries, instruction_set: str) -> str:
    """Installs them; what is in the way, or nothing."""
    complaint = native.specllm_install(
        os.fsencode(libraries.cpu), os.fsencode(libraries.base), instruction_set.encode(), True
    )
    return complaint.decode(errors="replace") if complaint else ""


def test_once(libraries: Libraries, library: Path, instruction_set: str) -> str:
    """What the self-test has against these files, or nothing; remembered as long as they stay as they are."""
    notes = _note_files(libraries, library, instruction_set)
    for note in notes:
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
            return str(json.loads(note.read_text(encoding="utf-8"))["complaint"])
    try:
        complaint = run_test(libraries, library, instruction_set)
    except TestUnfinished as error:  # another time it may end
        return str(error)
    for note in notes:
        try:
            note.parent.mkdir(parents=True, exist_ok=True)
            draft = note.with_suffix(f".{os.getpid()}")
            draft.write_text(json.dumps({"complaint": complaint}), encoding="utf-8")
            draft.replace(note)
            break
        except OSError as error:
            LOGGER.debug("the result of the kernels' test is not kept in %s: %s", note, error)
    return complaint


def run_test(libraries: Libraries, library: Path, instruction_set: str) -> str:
    """What the self-test says in a child process, which may crash: nothing where all is well. Raises TestUnfinished."""
    command = [sys.executable, "-P", "-m", "specllm.kernels.selftest", libraries.cpu.parent, library, instruction_set]
    try:
        child = subprocess.run(
            [str(word) for word in command], capture_output=True, stdin=subprocess.DEVNULL, timeout=TEST_TIMEOUT_S
        )
    except subprocess.TimeoutExpired:
        raise TestUnfinished(f"no end within {TEST_TIMEOUT_S:.0f} s") from None
    except OSError as error:
        raise TestUnfinished(f"it could not be started: {error}") from None
    if child.returncode < 0:
        known = {number.value: number.name for number in signal.Signals}
        name = known.get(-child.returncode, f"signal {-child.returncode}")
        if name not in CRASHES:
            raise TestUnfinished(f"it was ended: {name}")
        return f"it crashed: {name}"
    if child.returncode:
        lines = child.stderr.decode(errors="replace").strip().splitlines()
        return lines[-1] if lines else f"exit code {child.returncode}"
    return ""


def _note_files(libraries: Libraries, library: Path, instruction_set: str) -> list[Path]:
    """Where the result may be kept: beside the library, and in the user's cache where that folder is not theirs."""
    chosen = os.environ.get("SPECLLM_CACHE_DIR")
    cache = Path(chosen or platformdirs.user_cache_dir("specllm", appauthor=False))
    with contextlib.suppress(RuntimeError):  # a home folder of nobody
        cache = cache.expanduser()
    facts = [instruction_set, _processor()]
    for file in (libraries.cpu, libraries.base, library):
        stat = file.resolve().stat()
        facts += [str(file), str(stat.st_size), str(stat.st_mtime_ns)]
    name = f"{hashlib.sha256(repr(facts).encode()).hexdigest()[:16]}.json"
    return [library.with_name("tested") / name, cache / "kernels" / name]


def _processor() -> str:
    """The extensions that Linux reports: a home folder may be shared by machines."""
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
    return next((line for line in text.splitlines() if line.startswith("flags")), "")
