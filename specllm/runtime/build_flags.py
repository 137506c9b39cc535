"""The CMake flags that make llama.cpp fit this processor and the wanted backend.

Needs nothing but the standard library: `scripts/setup` runs it before anything is installed, and `doctor` prints its
answer as the rebuild command.

`-march=native` is never used on x86: it turns on ggml's AMX kernels wherever the processor *reports* AMX, and many virtual
machines report it and then fault (SIGILL) on the first tile load. Every other extension is named one by one instead.
"""

from __future__ import annotations

import argparse
import hashlib
import platform
import sys
from pathlib import Path

BACKENDS = ("cpu", "cuda", "metal", "vulkan")

# The multimodal library is not used here and takes 2.5 of 7 minutes of a two-core build.
COMMON = ("-DLLAVA_BUILD=OFF",)

# CMake option -> the names in /proc/cpuinfo that must all be there.
X86_EXTENSIONS = {
    "GGML_SSE42": {"sse4_2"},
    "GGML_AVX": {"avx"},
    "GGML_F16C": {"f16c"},
    "GGML_FMA": {"fma"},
    "GGML_BMI2": {"bmi2"},
    "GGML_AVX2": {"avx2"},
    "GGML_AVX512": {"avx512f", "avx512cd", "avx512bw", "avx512dq", "avx512vl"},
    "GGML_AVX512_VBMI": {"avx512vbmi"},
    "GGML_AVX512_VNNI": {"avx512_vnni"},
    "GGML_AVX512_BF16": {"avx512_bf16"},
}


def default_backend(system: str = sys.platform) -> str:
    """Metal comes with every Mac; elsewhere a GPU backend is a choice, because it needs a toolkit to build."""
    return "metal" if system == "darwin" else "cpu"


def processor_extensions(cpuinfo: Path = Path("/proc/cpuinfo")) -> frozenset[str]:
    """The instruction set extensions Linux reports, empty where it does not say (macOS, Windows, ARM)."""
    try:
        text = cpuinfo.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return frozenset()
    for line in text.splitlines():
        name, _, value = line.partition(":")
        if name.strip() == "flags":
            return frozenset(value.split())
    return frozenset()


def cmake_args(
    backend: str, *, machine: str | None = None, system: str | None = None, extensions: frozenset[str] | None = None
) -> list[str]:
    """The flags for `CMAKE_ARGS`, most general first.

    Where the x86 extensions are not known, ggml's portable default (AVX2) stands.
    """
    machine = machine or platform.machine()
    system = system or sys.platform
    extensions = processor_extensions() if extensions is None else extensions
    flags = list(COMMON)
    if machine.lower() in ("x86_64", "amd64"):
        flags.append("-DGGML_NATIVE=OFF")
        if extensions:
            flags += [f"-D{name}={'ON' if needs <= extensions else 'OFF'}" for name, needs in X86_EXTENSIONS.items()]
    if system == "darwin":
        flags.append(f"-DGGML_METAL={'ON' if backend == 'metal' else 'OFF'}")
    if backend in ("cuda", "vulkan"):
        flags.append(f"-DGGML_{backend.upper()}=ON")
    return flags


def build_key(version: str, backend: str, flags: list[str]) -> str:
    """A folder name that differs whenever the built library would differ; pip's own cache ignores CMAKE_ARGS."""
    digest = hashlib.sha256(" ".join([*flags, platform.machine(), sys.platform]).encode()).hexdigest()[:8]
    return f"llama-cpp-python-{version}-{backend}-{digest}"


def main() -> None:
    parser = argparse.ArgumentParser(description="Print the CMake flags, or the key of a build, for this machine.")
    parser.add_argument("--backend", choices=BACKENDS, default=default_backend())
    parser.add_argument(
        "--key", metavar="VERSION", help="print the build's key for that llama-cpp-python version instead"
    )
    options = parser.parse_args()
    flags = cmake_args(options.backend)
    print(build_key(options.key, options.backend, flags) if options.key else " ".join(flags))


if __name__ == "__main__":
    main()
