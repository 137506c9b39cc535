"""Looks at everything that generation needs, from Python to the pair of models: what is there, what to do."""

from __future__ import annotations

import platform
import re
import shutil
import sys
import tomllib
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import Protocol

from specllm.app.doctor.diagnosis import Check, attempt, counted, listed
from specllm.app.doctor.models import check_files, check_pair
from specllm.errors import BackendError, ConfigError
from specllm.models.progress import NoProgress, Progress
from specllm.models.registry import Registry
from specllm.runtime.backend import BackendInfo, inspect_backend
from specllm.runtime.kernels import KERNELS_HINT
from specllm.runtime.machine import is_virtual_machine, physical_cores, unused_extensions
from specllm.runtime.rebuild import (
    BINDING,
    DISTRIBUTION,
    installed_version,
    pinned_version,
    rebuild_command,
)
from specllm.runtime.smoke import run_smoke_decode
from specllm.units import sized

MIN_PYTHON = (3, 11)
MIN_COLUMNS = 60  # below it the tables wrap
CHECKOUT = Path(__file__).parents[3]  # where it is one
NVIDIA_DRIVER = Path("/proc/driver/nvidia/version")


class Terminal(Protocol):
    """Where answers are shown."""

    @property
    def is_terminal(self) -> bool: ...
    @property
    def encoding(self) -> str: ...
    @property
    def columns(self) -> int: ...
    @property
    def has_colour(self) -> bool: ...


def diagnose(terminal: Terminal, *, is_full: bool = False, progress: Progress | None = None) -> Iterator[Check]:
    """Every check in turn, as soon as it is done; `is_full` reads whole model files for their digests."""
    yield check_python()
    yield check_libraries()
    info = None
    try:
        info = inspect_backend()
    except BackendError as error:
        yield Check("llama.cpp", "fail", error.message, error.hint)
    can_decode = False
    if info:
        yield check_build(info)
        yield check_kernels(info)
        yield check_devices(info)
        smoke = check_smoke(info)
        can_decode = smoke.status == "ok"
        yield smoke
    try:
        registry = Registry.load()
    except ConfigError as error:
        yield Check("models.toml", "fail", error.message, error.hint)
    else:
        yield from check_files(registry, is_full=is_full, progress=progress or NoProgress())
        yield from check_pair(registry, info if can_decode else None)
    yield check_terminal(terminal)


def check_python() -> Check:
    fact = f"{platform.python_version()} ({sys.executable})"
    if sys.version_info < MIN_PYTHON:
        return Check("python", "fail", fact, "install Python 3.11 or newer and run scripts/setup again")
    return Check("python", "ok", fact)


def check_libraries() -> Check:
    """Every dependency is there, and the binding is the one version the flat functions were tested with."""
    try:
        requirements = _requirements()
    except metadata.PackageNotFoundError:
        return Check("libraries", "fail", f"{DISTRIBUTION} is not installed", "scripts/setup")
    names = [found[0] for text in requirements if ";" not in text and (found := re.match(r"[\w.-]+", text))]
    versions, missing = {}, []
    for name in names:
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            missing.append(name)
    if missing:
        fix = rebuild_command() if BINDING in missing else f"pip install {' '.join(missing)}"
        return Check("libraries", "fail", f"missing: {listed(missing)}", fix)
    fact = listed([f"{name} {version}" for name, version in versions.items()])
    pinned = pinned_version()
    if pinned and installed_version() != pinned:
        return Check("libraries", "warn", f"{fact}; specllm was tested with {BINDING} {pinned}", rebuild_command())
    return Check("libraries", "ok", fact)


def _requirements() -> list[str]:
    """What specllm needs: as a checkout has it, which may be newer than what was noted when it was installed."""
    noted = metadata.requires(DISTRIBUTION) or []
    project = CHECKOUT / "pyproject.toml"
    wanted = tomllib.loads(project.read_text(encoding="utf-8")).get("project", {}) if project.is_file() else {}
    return list(wanted["dependencies"]) if wanted.get("name") == DISTRIBUTION else noted


def check_build(info: BackendInfo) -> Check:
    """The features of llama.cpp against those of the processor."""
    features = listed(sorted(info.features))
    made = f"ggml {info.ggml_version or '?'}" + (f" by {info.compiler}" if info.compiler else "")
    fact = f"{made}, {counted(physical_cores(), 'core')}: {features}"
    if info.cpu:
        fact = f"{fact}; built for {info.cpu}, as SPECLLM_CPU asked"
    rebuild = rebuild_command(info.backend)
    if "AMX_INT8" in info.features and is_virtual_machine():
        danger = "AMX is compiled in, and many virtual machines fault on it"
        return Check("llama.cpp", "warn", f"{fact}; {danger}", rebuild)
    if not info.cpu and (unused := unused_extensions(info.features)):
        return Check("llama.cpp", "warn", f"{fact}; the processor also has {listed(unused)}", rebuild)
    return Check("llama.cpp", "ok", fact)


def check_kernels(info: BackendInfo) -> Check:
    """Whose matrix kernels compute; without specllm's own, equal logits at every width are not promised."""
    kernels = info.kernels
    if kernels.instruction_set:
        return Check("kernels", "ok", f"specllm's own, for {kernels.instruction_set}")
    fact = f"llama.cpp's own: {kernels.reason}"
    return Check("kernels", "ok", fact) if kernels.is_expected else Check("kernels", "warn", fact, KERNELS_HINT)


def check_devices(info: BackendInfo) -> Check:
    """What computes, and whether a GPU lies idle because the build has no use for it."""
    devices = [
        f"{one.name} ({one.description}, {sized(one.free_bytes)} of {sized(one.total_bytes)} free)"
        for one in info.devices
    ]
    offload = "offload to a GPU" if info.can_offload else "no offload"
    fact = f"{listed(devices)}; {offload}, mmap {_yes(info.can_mmap)}, mlock {_yes(info.can_mlock)}"
    has_gpu = any(device.is_gpu for device in info.devices)
    if info.can_offload and not has_gpu:
        return Check(
            "devices",
            "warn",
            f"{fact}; built for a GPU, but there is none to be seen",
            "check the GPU's driver (nvidia-smi, vulkaninfo)",
        )
    if not has_gpu and (NVIDIA_DRIVER.exists() or shutil.which("nvidia-smi")):
        idle = "an NVIDIA GPU is here and not used"
        return Check("devices", "warn", f"{fact}; {idle}", rebuild_command("cuda"))
    return Check("devices", "ok", fact)


def check_smoke(info: BackendInfo) -> Check:
    """A tiny quantized model decodes in a child process, so that a crash is an answer."""
    return attempt("smoke decode", lambda: Check("smoke decode", "ok", run_smoke_decode(info.backend).summary))


def check_terminal(terminal: Terminal) -> Check:
    colour = "colour" if terminal.has_colour else "no colour"
    where = f"{terminal.columns} columns" if terminal.is_terminal else "not a terminal"
    fact = f"{where}, {terminal.encoding}, {colour}"
    if not terminal.encoding.lower().replace("-", "").startswith("utf"):
        return Check(
            "terminal",
            "warn",
            f"{fact}; other characters are shown as ?",
            "set PYTHONUTF8=1, or a UTF-8 locale such as LANG=C.UTF-8",
        )
    if terminal.is_terminal and terminal.columns < MIN_COLUMNS:
        fix = "make the window wider"
        return Check("terminal", "warn", f"{fact}; tables need {MIN_COLUMNS} columns", fix)
    return Check("terminal", "ok", fact)


def _yes(is_so: bool) -> str:
    return "yes" if is_so else "no"
