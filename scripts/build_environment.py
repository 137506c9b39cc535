"""Builds .venv: the work behind scripts/setup, with the standard library alone.

The slow part is compiling llama.cpp. Meanwhile the Python packages are installed and the models are fetched. What is being
done is always on the screen: one line that is drawn again on a terminal, else a new line every few seconds.
"""

from __future__ import annotations

import argparse
import contextlib
import filecmp
import hashlib
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import tomllib
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import NoReturn

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))  # specllm is not installed yet

from specllm.kernels import build as kernels  # noqa: E402
from specllm.runtime import build_flags  # noqa: E402

VENV = ROOT / ".venv"
PYTHON = VENV / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
BINDING = "llama-cpp-python"
SILENCE_S = 4.0  # without a terminal: a line at least this often
REDRAW_S = 0.5  # on a terminal
DAY_S = 86_400.0
QUOTED_LINES = 30  # of a failed command's output
DESCRIPTION = """\
Leaves .venv with specllm, its development tools and a llama-cpp-python built for this processor. Safe to run again: what is
already there is kept."""
VARIABLES = f"""\
environment:
  SPECLLM_BACKEND      cpu, cuda, metal or vulkan; metal on a Mac and cpu elsewhere where it is not set
  {build_flags.CPU_VARIABLE}          the x86-64 level to build for, such as x86-64-v3, for a folder copied to other machines
  CC, CXX              the compiler; on x86 Linux a CPU build fetches clang from the package index where they are not set
  PYTHON               the Python to make .venv with
  SPECLLM_WHEELS_DIR   where finished builds are kept; the user's cache where it is not set"""


class Failed(Exception):
    """A step did not work: what happened, and what to do."""

    def __init__(self, message: str, hint: str) -> None:
        super().__init__(message)
        self.message, self.hint = message, hint


class Status:
    """Shows on stderr what every running job says about itself, so that nobody waits without knowing for what."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._is_terminal = sys.stderr.isatty()
        self._jobs: dict[str, str] = {}  # by short name, how far each is
        self._shown = ""
        self._started = self._spoke_at = clock()
        self._lock = threading.Lock()
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._go_on, daemon=True)

    def __enter__(self) -> Status:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._is_over.set()
        self._thread.join()
        with self._lock:
            self._erase()

    @contextlib.contextmanager
    def job(self, name: str, text: str) -> Iterator[Callable[[str], None]]:
        """Says `text` now and shows the job by its short name until the block ends.

        Call what is given to say how far the job is.
        """
        self.say(text)

        def tell(detail: str) -> None:
            with self._lock:
                self._jobs[name] = detail

        tell("")
        try:
            yield tell
        finally:
            with self._lock:
                del self._jobs[name]

    def say(self, text: str) -> None:
        """A line that stays."""
        with self._lock:
            self._erase()
            print(f"setup: {text}", file=sys.stderr, flush=True)
            self._spoke_at = self._clock()

    def _go_on(self) -> None:
        while not self._is_over.wait(REDRAW_S):
            self.show()

    def show(self) -> None:
        """Draws the line of running jobs again; without a terminal only where nothing was said for SILENCE_S."""
        with self._lock:
            if self._jobs:
                self._show()

    def _show(self) -> None:
        seconds = int(self._clock() - self._started)
        jobs = "; ".join(f"{name} {detail}".strip() for name, detail in self._jobs.items())
        text = f"{seconds // 60}:{seconds % 60:02} {jobs}"
        if self._is_terminal:
            columns = shutil.get_terminal_size().columns
            self._erase()
            self._shown = text[: columns - 1]
            print(self._shown, end="", file=sys.stderr, flush=True)
        elif self._clock() - self._spoke_at >= SILENCE_S:
            print(f"setup: {text}", file=sys.stderr, flush=True)
            self._spoke_at = self._clock()

    def _erase(self) -> None:
        if self._shown:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)
            self._shown = ""


class Progress:
    """How far a build is, from the lines that ninja or make print: "[12/127] .." or "[ 12%] .."."""

    _NINJA = re.compile(r"\s*\[(\d+)/(\d+)\]")
    _MAKE = re.compile(r"\s*\[ *(\d+)%\]")

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._started: tuple[float, float] | None = None  # when, and which share was done then

    def read(self, line: str) -> str | None:
        """What to show after this line; None where it does not tell."""
        if found := self._NINJA.match(line):
            n_done, n_all = int(found[1]), int(found[2])
            share, text = n_done / max(n_all, 1), f"{n_done} of {n_all} files"
        elif found := self._MAKE.match(line):
            share, text = int(found[1]) / 100, f"{int(found[1])} %"
        else:
            return None
        return text + self._time_left(share)

    def _time_left(self, share: float) -> str:
        now = self._clock()
        if self._started is None:
            self._started = now, share
        at, share_then = self._started
        if share - share_then < 0.1 or share >= 1:
            return ""
        left = int((now - at) / (share - share_then) * (1 - share))
        return f", about {left // 60}:{left % 60:02} left"


_running = set[subprocess.Popen[str]]()  # to be ended where another step fails


def run(
    command: Sequence[str | Path], *, hint: str, environment: Mapping[str, str] | None = None,
    read: Callable[[str], None] = lambda line: None,
) -> None:  # fmt: skip
    """Runs a command to its end; `read` sees every line it prints. Raises Failed with the last lines where it fails."""
    last = deque[str](maxlen=QUOTED_LINES)
    with subprocess.Popen(
        [str(part) for part in command], cwd=ROOT, env={**os.environ, **(environment or {})}, stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, encoding="utf-8", errors="replace",
    ) as process:  # fmt: skip
        assert process.stdout is not None
        _running.add(process)
        try:
            for line in process.stdout:
                last.append(line.rstrip())
                read(line)
        finally:
            _running.discard(process)
    if process.returncode:
        raise Failed(f"{Path(str(command[0])).name} failed:\n  " + "\n  ".join(last or ["(it said nothing)"]), hint)


def pip(*arguments: str | Path, hint: str, environment: Mapping[str, str] | None = None,
        read: Callable[[str], None] = lambda line: None, is_told: bool = False) -> None:  # fmt: skip
    """Runs .venv's pip. It speaks of errors only, unless `is_told`; remarks on how an index is set up help nobody here."""
    loudness = "--verbose" if is_told else "-qq"
    command = [PYTHON, "-m", "pip", arguments[0], loudness, "--disable-pip-version-check", *arguments[1:]]
    run(command, hint=hint, environment=environment, read=read)


def make_venv(status: Status) -> None:
    """Makes .venv, and makes it again where an interrupted run left one without pip or its Python is gone."""
    if PYTHON.exists() and subprocess.run([PYTHON, "-m", "pip", "--version"], capture_output=True).returncode == 0:
        return
    is_new = not VENV.exists()
    with status.job(".venv", "making .venv" if is_new else "making .venv again: it is not whole"):
        run([sys.executable, "-m", "venv", "--clear", VENV], hint="install Python's venv module (Debian: python3-venv)")


def install_packages(status: Status, project: Mapping[str, object]) -> None:
    """Everything that specllm and its development need except llama.cpp; `specllm models` works afterwards."""
    extras = project["optional-dependencies"]
    assert isinstance(extras, dict)
    wanted = [text for text in (*project["dependencies"], *extras["dev"]) if not text.startswith(BINDING)]  # type: ignore[misc]
    hint = "look at the connection to the package index, then run scripts/setup again"
    with status.job("packages", "installing Python packages"):
        pip("install", *wanted, hint=hint)
        pip("install", "--no-deps", "--editable", ROOT, hint=hint)


@dataclass(frozen=True)
class Tools:
    """What compiles."""

    environment: Mapping[str, str]  # in which CMake finds it
    for_kernels: kernels.Compiler | None


@contextlib.contextmanager
def clang(status: Status, folder: Path) -> Iterator[Tools]:
    """The pinned clang, unpacked below `folder`, and the environment in which CMake finds it."""
    tools = folder / "tools"
    hint = "to build with this machine's own compiler: CC=cc CXX=c++ scripts/setup"
    text = f"fetching a compiler ({build_flags.ZIG_REQUIREMENT}, 100 MB, for this build only)"
    with status.job("compiler", text):
        pinned = folder / "compiler.txt"
        pinned.write_text(f"{build_flags.ZIG_REQUIREMENT} --hash=sha256:{build_flags.ZIG_SHA256}\n", encoding="utf-8")
        pip(
            "install",
            "--no-deps",
            "--only-binary",
            ":all:",
            "--require-hashes",
            "--target",
            tools,
            "-r",
            pinned,
            hint=hint,
        )
    bin = tools / "bin"
    bin.mkdir(exist_ok=True)
    program = tools / "ziglang" / "zig"
    zig = shlex.quote(str(program))
    for name, arguments in {
        "cc": f"cc -include {shlex.quote(str(build_flags.YIELDING_PAUSE))}",
        "c++": "c++",
        "ar": "ar",  # this and the next one CMake finds beside the compiler
        "ranlib": "ranlib",
    }.items():
        # CMake links a file to learn which compiler this is. Compiled is enough, and no link is made before ninja runs.
        only_compiles = 'case " $* " in *CompilerId.c*) set -- -c "$@" ;; esac\n' if name in ("cc", "c++") else ""
        (bin / name).write_text(f'#!/bin/sh\n{only_compiles}exec {zig} {arguments} "$@"\n', encoding="utf-8")
        (bin / name).chmod(0o755)
    names = {"CC": bin / "cc", "CXX": bin / "c++", "ZIG_GLOBAL_CACHE_DIR": tools / "cache"}
    yield Tools({name: str(path) for name, path in names.items()}, kernels.zig(program))
    shutil.rmtree(tools)


def compile_missing(status: Status, version: str, backend: str, compiler: build_flags.Compiler, *,
                    wheels: Path | None, library: Path | None) -> None:  # fmt: skip
    """Compiles llama.cpp into a wheel in the folder `wheels`, and the kernels into the file `library`; None is left out.

    Each is there whole or not at all.
    """
    parent = wheels_folder()
    parent.mkdir(parents=True, exist_ok=True)
    for left in parent.glob("building.*"):  # of a run that was killed; nobody builds for a day
        if time.time() - left.stat().st_mtime > DAY_S:
            shutil.rmtree(left, ignore_errors=True)
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="building.", dir=parent)))
        is_fetched = compiler == "zig"
        tools = stack.enter_context(clang(status, folder)) if is_fetched else Tools({}, kernels.find_compiler())
        with meanwhile(*[partial(build_kernels, status, tools, library)] if library else []):
            if wheels:
                check_compiler(tools)
                build_wheel(status, version, backend, compiler, tools, folder, wheels)


def check_compiler(tools: Tools) -> None:
    environment = {**os.environ, **tools.environment}
    for tool in (environment.get("CXX") or "c++", environment.get("CC") or "cc"):
        if not shutil.which(shlex.split(tool)[0]):
            raise Failed(f"no C++ compiler ({tool}) on this machine",
                         "install one (Debian: apt install build-essential; macOS: xcode-select --install) and run "
                         "scripts/setup again")  # fmt: skip


def build_kernels(status: Status, tools: Tools, library: Path) -> None:
    """Compiles specllm's kernels; where that fails, says so, because everything works without them."""
    if tools.for_kernels is None:
        status.say("no C++ compiler for specllm's kernels; llama.cpp's own compute")
        return
    with status.job("kernels", "compiling specllm's kernels"):
        try:
            kernels.build(tools.for_kernels, library, tools.environment)
        except kernels.BuildFailed as error:
            status.say(f"specllm's kernels do not compile, so llama.cpp's own compute:\n{error}")


def build_wheel(status: Status, version: str, backend: str, compiler: build_flags.Compiler, tools: Tools, folder: Path,
                into: Path) -> None:  # fmt: skip
    """Compiles llama.cpp with the work below `folder`, and leaves its wheel in the folder `into`."""
    sources = folder / "sources.txt"
    sources.write_text(f"{BINDING}=={version} --hash=sha256:{build_flags.SOURCES_SHA256}\n", encoding="utf-8")
    arguments = shlex.join(build_flags.cmake_args(backend, compiler=compiler))
    made = folder / "wheel"
    with status.job("llama.cpp", f"building {BINDING} {version} for {backend}") as tell:
        progress = Progress()

        def read(line: str) -> None:
            if said := progress.read(line):
                tell(said)
            elif "Downloading" in line:
                tell("fetching the sources (77 MB)")
            elif "Installing build dependencies" in line:
                tell("fetching its build tools")
            elif "Configuring CMake" in line:
                tell("looking at the compiler")

        tell("fetching the sources (77 MB)")
        pip("wheel", "--no-cache-dir", "--no-deps", "--no-binary", BINDING, "--require-hashes", "--wheel-dir", made,
            "-r", sources, environment={"CMAKE_ARGS": arguments, **tools.environment}, read=read, is_told=True,
            hint="the last lines above say why; without a fetched compiler: CC=cc CXX=c++ scripts/setup")  # fmt: skip
    shutil.rmtree(into, ignore_errors=True)
    made.rename(into)


def pull_models(status: Status, names: Sequence[str]) -> None:
    with status.job("models", f"fetching models: {', '.join(names)}") as tell:
        run([PYTHON, "-m", "specllm", "models", "pull", *names],
            read=lambda line: tell(line.strip().removeprefix("downloading: ")),
            hint=f"to try again: .venv/bin/specllm models pull {' '.join(names)}")  # fmt: skip


@contextlib.contextmanager
def meanwhile(*steps: Callable[[], None]) -> Iterator[None]:
    """Takes the steps one after the other while the block runs, and waits for them at its end. Raises what they raise."""
    raised: list[Exception] = []

    def take() -> None:
        try:
            for step in steps:
                step()
        except Exception as error:
            raised.append(error)

    thread = threading.Thread(target=take, daemon=True)
    thread.start()
    yield
    thread.join()
    if raised:
        raise raised[0]


def set_up(status: Status, names: Sequence[str], *, is_rebuilt: bool) -> None:
    """All steps; those whose result is there are left out."""
    backend = os.environ.get("SPECLLM_BACKEND") or build_flags.default_backend()
    if backend not in build_flags.BACKENDS:
        raise Failed(f"SPECLLM_BACKEND={backend} is not a backend", f"use one of {', '.join(build_flags.BACKENDS)}")
    compiler = build_flags.choose_compiler(backend)
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    project = tomllib.loads(text)["project"]
    version = next(name.partition("==")[2] for name in project["dependencies"] if name.startswith(f"{BINDING}=="))
    try:
        flags = build_flags.cmake_args(backend, compiler=compiler)
    except ValueError as error:
        raise Failed(str(error), "scripts/setup --help tells what it may be") from None
    key = build_flags.build_key(version, backend, compiler, flags)
    wheels = wheels_folder() / key
    compiled = wheels_folder() / f"kernels-{compiler}-{kernels.sources_digest()}" / kernels.LIBRARY.name
    # The stamp says what was installed; a wheel of another build has the same version, so pip alone would keep the old one.
    stamp, noted = f"{key} {hashlib.sha256(text.encode()).hexdigest()}", VENV / "setup-stamp"
    make_venv(status)
    is_stale = is_rebuilt or not noted.exists() or noted.read_text(encoding="utf-8").strip() != stamp
    steps: list[Callable[[], None]] = []
    unfetched: list[Failed] = []  # told last: without models the rest is still worth having

    def pull() -> None:
        try:
            pull_models(status, names)
        except Failed as error:
            unfetched.append(error)

    if is_stale:
        noted.unlink(missing_ok=True)
        steps.append(partial(install_packages, status, project))
    if names:
        steps.append(pull)
    is_wheel_missing = is_rebuilt or not list(wheels.glob("*.whl"))
    are_kernels_missing = kernels.IS_SUPPORTED and (is_rebuilt or not compiled.is_file())
    with meanwhile(*steps):
        if is_wheel_missing or are_kernels_missing:
            compile_missing(status, version, backend, compiler, wheels=wheels if is_wheel_missing else None,
                            library=compiled if are_kernels_missing else None)  # fmt: skip
    if compiled.is_file() and not (kernels.LIBRARY.is_file() and filecmp.cmp(compiled, kernels.LIBRARY, shallow=False)):
        copy = kernels.LIBRARY.with_suffix(f".{os.getpid()}")
        shutil.copyfile(compiled, copy)
        copy.replace(kernels.LIBRARY)
    if is_stale:
        wheel = next(wheels.glob("*.whl"))
        hint = "look at the connection to the package index, then run scripts/setup again"
        with status.job(BINDING, f"installing {BINDING} ({key})"):
            pip("install", "--no-deps", "--force-reinstall", wheel, hint=hint)
            pip("install", f"{BINDING}=={version}", hint=hint)  # what it needs beside itself
        noted.write_text(f"{stamp}\n", encoding="utf-8")
    with status.job("test", "decoding with a tiny model, as a test"):
        run([PYTHON, "-m", "specllm.runtime.backend", "--smoke", backend], hint="scripts/setup --rebuild builds it again",
            read=lambda line: status.say(line.strip()))  # fmt: skip
    if unfetched:
        raise unfetched[0]


def wheels_folder() -> Path:
    """Where finished builds are kept: SPECLLM_WHEELS_DIR, else below the user's cache."""
    if chosen := os.environ.get("SPECLLM_WHEELS_DIR"):
        return Path(chosen).absolute()
    cache = os.environ.get("XDG_CACHE_HOME")
    return (Path(cache) if cache else Path.home() / ".cache") / "specllm" / "wheels"


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="scripts/setup",
        description=DESCRIPTION,
        epilog=VARIABLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--rebuild", action="store_true", help="compile llama.cpp again, also where a finished build is kept"
    )
    parser.add_argument("--pull", nargs="+", metavar="NAME", default=[], help="models to fetch meanwhile")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that what is half made is removed
    try:
        with Status() as status:
            set_up(status, options.pull, is_rebuilt=options.rebuild)
            status.say("ready: .venv/bin/specllm --help")
    except Failed as error:
        fail(error)
    except KeyboardInterrupt:
        sys.exit(130)
    finally:
        for process in tuple(_running):
            process.terminate()


def fail(error: Failed) -> NoReturn:
    print(f"error: {error.message}\nhint: {error.hint}", file=sys.stderr)
    sys.exit(1)


if __name__ == "__main__":
    main()
