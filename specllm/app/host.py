"""What machine and which versions a result comes from."""

from __future__ import annotations

import os
import platform
import sys
from importlib import metadata
from pathlib import Path

from specllm import __version__


def processor_name() -> str:
    """The processor's own name where the system tells it, else its architecture."""
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def installed_version(distribution: str) -> str | None:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None


def describe_build() -> dict[str, object]:
    """The `host` part of a result that llama.cpp computed: `describe_host` and which build of it computed that where."""
    from specllm.runtime.backend import inspect_backend, physical_cores

    info = inspect_backend()
    return {
        **describe_host(),
        "physical_cores": physical_cores(),
        "build": {
            "ggml": info.ggml_version or None,
            "backend": info.backend,
            "features": sorted(info.features),
            "compiler": info.compiler or None,
            "cpu": info.cpu or None,
            "kernels": info.kernels.name or None,
            "devices": [device.description or device.name for device in info.devices],
        },
    }


def describe_host() -> dict[str, object]:
    """For the `host` part of a JSON document; loads no native library."""
    return {
        "specllm": __version__,
        "llama_cpp_python": installed_version("llama-cpp-python"),
        "python": platform.python_version(),
        "system": sys.platform,
        "machine": platform.machine(),
        "processor": processor_name(),
        "logical_processors": os.cpu_count(),
    }
