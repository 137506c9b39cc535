"""The command that builds llama-cpp-python again, as this installation of specllm would need it."""

from __future__ import annotations

import re
import shlex
from importlib import metadata
from pathlib import Path

from specllm.runtime.build_flags import cmake_args, default_backend

DISTRIBUTION = "specllm-cli"
BINDING = "llama-cpp-python"


def installed_version() -> str | None:
    """The version of the binding on disk, without importing it; None where there is none."""
    try:
        return metadata.version(BINDING)
    except metadata.PackageNotFoundError:
        return None


def pinned_version() -> str | None:
    """The one version of the binding that specllm asks for; None where specllm itself is not installed."""
    try:
        requirements = metadata.requires(DISTRIBUTION) or []
    except metadata.PackageNotFoundError:
        return None
    for requirement in requirements:
        if found := re.match(rf"{BINDING}\s*==\s*([\w.]+)", requirement):
            return found[1]
    return None


def rebuild_command(backend: str | None = None, *, checkout: Path | None = None) -> str:
    """What to type: `scripts/setup --rebuild` in a checkout, else pip with the flags for this processor."""
    backend = backend or default_backend()
    checkout = checkout or Path(__file__).parents[2]
    if (checkout / "scripts" / "setup").is_file():
        prefix = "" if backend == default_backend() else f"SPECLLM_BACKEND={backend} "
        return f"{prefix}scripts/setup --rebuild"
    version = pinned_version() or installed_version()
    wanted = f"{BINDING}=={version}" if version else BINDING
    return (
        f"CMAKE_ARGS={shlex.quote(shlex.join(cmake_args(backend)))} pip install --force-reinstall --no-cache-dir "
        f"--no-binary {BINDING} {wanted}"
    )
