"""The compiler and the CMake flags that make llama.cpp fit this processor and the wanted backend.

Needs nothing but the standard library: `scripts/setup` runs it before anything is installed, and `doctor` prints its
answer as the rebuild command.

`-march=native` is never used on x86: it turns on ggml's AMX kernels wherever the processor *reports* AMX, and many virtual
machines report it and then fault (SIGILL) on the first tile load. Every other extension is named one by one instead.

What checking a draft costs is the compiler's doing as well: ggml's kernels for blocks hold more values than there are
registers, and clang spills fewer. Medians on two cores of an AMD EPYC (Zen 5), 1.5B Q4_K_M, 2026-11-30, clang 22 against
GCC 12: one token takes 1.00 to 1.03 times as long, blocks of 4 tokens 0.96, 8 0.91, 12 0.87, 16 0.90, 32 0.83, 128 0.77.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib.util
import json
import os
import platform
import shlex
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Literal, get_args

Compiler = Literal["zig", "system"]

YIELDING_PAUSE = Path(__file__).with_name("yielding_pause.h")  # goes into what zig compiles
LLAMA_BUILD = Path(__file__).with_name("llama_build.cmake")  # CMake reads it with llama.cpp's own files

# Clang with its own headers and libraries as one package of the index, for machines with any compiler or none. One file
# serves every x86 Linux.
ZIG_REQUIREMENT = "ziglang==0.17.1"
ZIG_SHA256 = "ea6cc5d87b033cf0aedfbc8f9549a908cae6c50ac31f1698188fa48a74524b54"

BUILD_RECORD = "specllm-build.json"  # beside llama.cpp's libraries, written by llama_build.cmake

# The source distribution of the llama-cpp-python that pyproject.toml asks for.
SOURCES_SHA256 = "832db0699007f1be95a7e41ef12e88926b02ba836461e36a36372db2760c1a2e"

BACKENDS = ("cpu", "cuda", "metal", "vulkan")
X86_MACHINES = ("x86_64", "amd64")

# The multimodal library is not used here and takes 2.5 of 7 minutes of a two-core build.
COMMON = ("-DLLAVA_BUILD=OFF", f"-DCMAKE_PROJECT_llama.cpp_INCLUDE={LLAMA_BUILD.as_posix()}")

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

# Clang's name of what all of the code may use -> what must be there for it, best first. Kernels get the flags above too.
X86_LEVELS = {
    "x86_64_v4": X86_EXTENSIONS["GGML_AVX512"],
    "x86_64_v3": {"avx", "avx2", "bmi1", "bmi2", "f16c", "fma", "abm", "movbe"},
    "x86_64_v2": {"ssse3", "sse4_1", "sse4_2", "popcnt", "cx16"},
    "x86_64": frozenset[str](),
}

# Environment variable: the processor to build for, for a folder that is copied to other machines. The psABI's names of the
# levels above, such as x86-64-v3; without it the processor at hand.
CPU_VARIABLE = "SPECLLM_CPU"


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


def wanted_extensions(cpu: str, cpuinfo: Path = Path("/proc/cpuinfo")) -> frozenset[str]:
    """The extensions to build for: those of the x86-64 level called `cpu`, or of this processor where that is empty.

    Raises ValueError for another name.
    """
    if not cpu:
        return processor_extensions(cpuinfo)
    levels = list(X86_LEVELS)
    name = cpu.lower().replace("-", "_")
    if name not in levels:
        raise ValueError(
            f"{CPU_VARIABLE}={cpu} is no x86-64 level: use {', '.join(x.replace('_', '-') for x in levels)}"
        )
    return frozenset().union(*(X86_LEVELS[level] for level in levels[levels.index(name) :]))


def read_build_record(folder: Path) -> dict[str, str]:
    """What the build of the libraries in `folder` wrote down of itself; nothing where it was made some other way."""
    try:
        record = json.loads((folder / BUILD_RECORD).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return {name: text for name, text in record.items() if isinstance(text, str)} if isinstance(record, dict) else {}


def built_extensions() -> frozenset[str]:
    """What the installed llama.cpp was built for: this processor, unless its build says that SPECLLM_CPU named another."""
    package = importlib.util.find_spec("llama_cpp")
    folder = os.environ.get("LLAMA_CPP_LIB_PATH") or (
        package and package.origin and Path(package.origin).parent / "lib"
    )
    cpu = read_build_record(Path(folder)).get("cpu", "") if folder else ""
    return wanted_extensions(cpu) if cpu else processor_extensions()


def choose_compiler(
    backend: str, *, machine: str | None = None, system: str | None = None, environment: Mapping[str, str] = os.environ
) -> Compiler:
    """Whose compiler builds: zig's on x86 Linux without a GPU, where it was measured, unless CC or CXX name another."""
    is_measured = (machine or platform.machine()).lower() in X86_MACHINES and (system or sys.platform) == "linux"
    is_named = bool(environment.get("CC") or environment.get("CXX"))
    return "zig" if backend == "cpu" and is_measured and not is_named else "system"


def cmake_args(
    backend: str,
    *,
    compiler: Compiler = "system",
    machine: str | None = None,
    system: str | None = None,
    extensions: frozenset[str] | None = None,
    environment: Mapping[str, str] = os.environ,
) -> list[str]:
    """The flags for `CMAKE_ARGS`, most general first.

    Where the x86 extensions are not known, ggml's portable default (AVX2) stands. Raises ValueError where SPECLLM_CPU
    names no processor.
    """
    machine = machine or platform.machine()
    system = system or sys.platform
    cpu = environment.get(CPU_VARIABLE, "")
    if cpu and machine.lower() not in X86_MACHINES:
        raise ValueError(f"{CPU_VARIABLE} names x86-64 levels, and this is {machine}: unset it")
    extensions = wanted_extensions(cpu) if extensions is None else extensions
    flags = [*COMMON, f"-DSPECLLM_CPU={cpu}"] if cpu else list(COMMON)
    if compiler == "zig":  # it means this processor, AMX and all, where it is not told; it brings no OpenMP
        level = next(name for name, needs in X86_LEVELS.items() if needs <= extensions)
        flags += [f"-DCMAKE_{language}_FLAGS=-mcpu={level}" for language in ("C", "CXX")]
        flags.append("-DGGML_OPENMP=OFF")
        # CMake's own trials compile and do not link: the first link makes clang's C++ library (75 s of one core), which
        # ninja then does beside other work.
        flags.append("-DCMAKE_TRY_COMPILE_TARGET_TYPE=STATIC_LIBRARY")
    if machine.lower() in X86_MACHINES:
        flags.append("-DGGML_NATIVE=OFF")
        if extensions:
            flags += [f"-D{name}={'ON' if needs <= extensions else 'OFF'}" for name, needs in X86_EXTENSIONS.items()]
    if system == "darwin":
        flags.append(f"-DGGML_METAL={'ON' if backend == 'metal' else 'OFF'}")
    if backend in ("cuda", "vulkan"):
        flags.append(f"-DGGML_{backend.upper()}=ON")
    return flags


def build_key(
    version: str, backend: str, compiler: Compiler, flags: list[str], environment: Mapping[str, str] = os.environ
) -> str:
    """A folder name that differs whenever the built library would differ; pip's own cache ignores CMAKE_ARGS."""
    if compiler == "zig":
        made_by = [ZIG_SHA256, YIELDING_PAUSE.read_text("utf-8")]
    else:
        made_by = [environment.get(name, "") for name in ("CC", "CXX", "CFLAGS", "CXXFLAGS", "LDFLAGS")]
    parts = [*made_by, SOURCES_SHA256, LLAMA_BUILD.read_text("utf-8"), platform.machine(), sys.platform]
    parts += [flag for flag in flags if LLAMA_BUILD.as_posix() not in flag]  # where it lies makes no difference
    digest = hashlib.sha256("\n".join(parts).encode()).hexdigest()[:8]
    return f"llama-cpp-python-{version}-{backend}-{digest}"


def main() -> None:
    parser = argparse.ArgumentParser(description="Print the CMake flags for this machine, as CMAKE_ARGS takes them.")
    parser.add_argument("--backend", choices=BACKENDS, default=default_backend())
    parser.add_argument("--compiler", choices=get_args(Compiler), default="system", help="whose flags; default: system")
    options = parser.parse_args()
    try:
        print(shlex.join(cmake_args(options.backend, compiler=options.compiler)))
    except ValueError as error:
        parser.error(str(error))


if __name__ == "__main__":
    main()
