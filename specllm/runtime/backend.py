"""The llama.cpp build at hand: its version, processor features and devices, and proof that it can decode.

`python -m specllm.runtime.backend --smoke BACKEND` is the last step of `scripts/setup`.
"""

from __future__ import annotations

import argparse
import ctypes
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from specllm.errors import BackendError
from specllm.kernels.loader import Kernels
from specllm.runtime import kernels, log, smoke
from specllm.runtime.build_flags import BACKENDS, default_backend, read_build_record
from specllm.runtime.machine import available_memory_bytes, physical_cores
from specllm.runtime.rebuild import installed_version

__all__ = ["BackendInfo", "Device", "available_memory_bytes", "inspect_backend", "main", "physical_cores"]

DeviceType = Literal["cpu", "gpu", "igpu", "accel", "meta", "unknown"]
DEVICE_TYPES: tuple[DeviceType, ...] = ("cpu", "gpu", "igpu", "accel", "meta")  # enum ggml_backend_dev_type


@dataclass(frozen=True, slots=True)
class Device:
    """Something ggml computes on; memory is 0 where the device does not say."""

    name: str
    description: str
    type: DeviceType
    free_bytes: int
    total_bytes: int

    @property
    def is_gpu(self) -> bool:
        return self.type in ("gpu", "igpu")


@dataclass(frozen=True, slots=True)
class BackendInfo:
    """What the loaded libraries say about themselves."""

    binding_version: str  # llama-cpp-python
    ggml_version: str  # of the vendored llama.cpp, with its commit; empty if it does not say
    system_info: str  # llama_print_system_info
    features: frozenset[str]  # what is switched on in it: AVX2, AVX512, OPENMP, ..
    compiler: str  # as "clang 22.1.8"; empty where whoever built it wrote nothing down
    cpu: str  # the x86-64 level that SPECLLM_CPU asked for; empty: this processor
    kernels: Kernels  # specllm's own, or why they do not compute
    kernels_bytes: int  # size of the library with the processor's kernels: tells builds apart that wrote nothing down
    devices: tuple[Device, ...]
    can_offload: bool  # llama_supports_gpu_offload
    can_mmap: bool
    can_mlock: bool

    @property
    def backend(self) -> str:
        """The name this build would have in SPECLLM_BACKEND."""
        names = " ".join(device.name.lower() for device in self.devices if device.is_gpu)
        for backend, mark in (("cuda", "cuda"), ("vulkan", "vulkan"), ("metal", "metal"), ("metal", "mtl")):
            if mark in names:
                return backend
        return "cpu"


def inspect_backend() -> BackendInfo:
    """Loads llama.cpp and asks it; raises BackendError where it cannot be loaded."""
    log.install()
    import llama_cpp

    llama_cpp.llama_backend_init()
    system_info = read_system_info()
    folder = Path(llama_cpp.llama_cpp._lib._name).parent
    record = read_build_record(folder)
    return BackendInfo(
        binding_version=installed_version() or "",
        ggml_version=_ggml_version(llama_cpp.llama_cpp._lib),
        system_info=system_info,
        features=parse_features(system_info),
        compiler=record.get("compiler", ""),
        cpu=record.get("cpu", ""),
        kernels=kernels.put_in_place(),
        kernels_bytes=sum(file.stat().st_size for file in folder.glob("*ggml-cpu*") if not file.is_symlink()),
        devices=_devices(llama_cpp.llama_cpp._lib),
        can_offload=bool(llama_cpp.llama_supports_gpu_offload()),
        can_mmap=bool(llama_cpp.llama_supports_mmap()),
        can_mlock=bool(llama_cpp.llama_supports_mlock()),
    )


def read_system_info() -> str:
    """llama_print_system_info: what the build has switched on."""
    import llama_cpp

    return str(llama_cpp.llama_print_system_info().decode("utf-8", errors="replace").strip())


def parse_features(system_info: str) -> frozenset[str]:
    """The names that are 1 (or another number above 0) in `CPU : SSE3 = 1 | AVX2 = 1 | AMX_INT8 = 0 |`."""
    features = set()
    for item in system_info.split("|"):
        name, _, value = item.rpartition("=")
        if value.strip().isdigit() and int(value):
            features.add(name.rpartition(":")[2].strip())
    return frozenset(features)


def _ggml_version(library: ctypes.CDLL) -> str:
    try:
        version, commit = library.ggml_version, library.ggml_commit
    except AttributeError:
        return ""
    version.restype = commit.restype = ctypes.c_char_p
    texts = [(function() or b"").decode("utf-8", errors="replace") for function in (version, commit)]
    return " ".join(text for text in texts if text and text != "unknown")


def _devices(library: ctypes.CDLL) -> tuple[Device, ...]:
    """ggml's devices.

    The binding does not export these functions; looking a name up in libllama finds them in the libraries it
    was linked with. Not on Windows: there are no devices to show there.
    """
    try:
        count, get = library.ggml_backend_dev_count, library.ggml_backend_dev_get
        name, description = library.ggml_backend_dev_name, library.ggml_backend_dev_description
        kind, memory = library.ggml_backend_dev_type, library.ggml_backend_dev_memory
    except AttributeError:
        return ()
    count.restype, get.restype = ctypes.c_size_t, ctypes.c_void_p
    get.argtypes = [ctypes.c_size_t]
    name.restype = description.restype = ctypes.c_char_p
    kind.restype = ctypes.c_int
    name.argtypes = description.argtypes = kind.argtypes = [ctypes.c_void_p]
    memory.restype = None
    memory.argtypes = [ctypes.c_void_p, ctypes.POINTER(ctypes.c_size_t), ctypes.POINTER(ctypes.c_size_t)]
    devices = []
    for index in range(count()):
        device = get(index)
        number, free, total = kind(device), ctypes.c_size_t(), ctypes.c_size_t()
        memory(device, ctypes.byref(free), ctypes.byref(total))
        devices.append(
            Device(
                name=(name(device) or b"").decode("utf-8", errors="replace"),
                description=(description(device) or b"").decode("utf-8", errors="replace"),
                type=DEVICE_TYPES[number] if 0 <= number < len(DEVICE_TYPES) else "unknown",
                free_bytes=free.value,
                total_bytes=total.value,
            )
        )
    return tuple(devices)


def main(arguments: list[str] | None = None) -> int:
    """Runs the smoke decode and says how it went on stderr; the exit code."""
    parser = argparse.ArgumentParser(prog="python -m specllm.runtime.backend", description=__doc__)
    parser.add_argument("--smoke", metavar="BACKEND", choices=BACKENDS, default=default_backend())
    options = parser.parse_args(arguments)
    try:
        report = smoke.run_smoke_decode(options.smoke)
    except BackendError as error:
        print(f"error: {error.message}\nhint: {error.hint}", file=sys.stderr)
        return 1
    print(f"smoke decode: ok ({report.summary})", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
