"""Compiles `native/` to one shared library: `python -m specllm.kernels.build` with a C++ compiler or the package ziglang.

Needs nothing but the standard library. Each instruction set is one file with flags of its own; the library chooses among
them where it runs.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib.util
import os
import platform
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

NATIVE = Path(__file__).with_name("native")
LIBRARY = Path(__file__).with_name("libspecllm-kernels.so")
IS_SUPPORTED = sys.platform == "linux" and platform.machine().lower() in ("x86_64", "amd64")
GLIBC = "2.17"  # manylinux2014

# File -> the x86-64 level and what it may use beyond that
FILES: dict[str, tuple[str, str]] = {
    "avx2.cpp": ("v3", ""),
    "avx512.cpp": ("v4", ""),
    "avx512_vnni.cpp": ("v4", "avx512vnni"),
    "avx_vnni.cpp": ("v3", "avxvnni"),
    "plugin.cpp": ("", ""),
    "processor.cpp": ("", ""),
    "reference.cpp": ("", ""),
    "test_interface.cpp": ("", ""),
}
# No contraction: a multiplication and an addition become one rounding only where the code says so, with every compiler.
FLAGS = (
    "-std=c++17", "-O3", "-g0", "-fPIC", "-fvisibility=hidden", "-fno-exceptions", "-fno-rtti", "-fno-threadsafe-statics",
    "-ffp-contract=off", "-Wall", "-Wextra", "-Wno-unused-function",
)  # fmt: skip


class BuildFailed(Exception):
    """The compiler's own words."""


@dataclass(frozen=True)
class Compiler:
    """How to call it: compiling and linking, because zig would build a C++ library for the link that nothing needs."""

    compile: tuple[str, ...]
    link: tuple[str, ...]
    is_zig: bool

    def target(self, level: str, extension: str) -> list[str]:
        if self.is_zig:
            name = f"x86_64_{level}" if level else "x86_64"
            return [f"-mcpu={name}+{extension}" if extension else f"-mcpu={name}"]
        return [f"-march=x86-64-{level}" if level else "-march=x86-64"] + ([f"-m{extension}"] if extension else [])


def find_compiler() -> Compiler | None:
    """CXX, else the clang of the package ziglang, else this machine's C++ compiler; None where there is none."""
    if named := os.environ.get("CXX"):
        return named_compiler(named)
    spec = importlib.util.find_spec("ziglang")
    if spec and spec.origin:
        return zig(Path(spec.origin).parent / "zig")
    return next((named_compiler(name) for name in ("c++", "g++", "clang++") if shutil.which(name)), None)


def named_compiler(command: str) -> Compiler:
    words = tuple(shlex.split(command))
    return Compiler(words, words, is_zig=False)


def zig(program: Path) -> Compiler:
    """Makes a library for every system with this C library or a newer one, whatever this machine's is."""
    words = "-target", f"x86_64-linux-gnu.{GLIBC}", "-fno-sanitize=all"
    return Compiler((str(program), "c++", *words), (str(program), "cc", *words), is_zig=True)


def sources_digest() -> str:
    """Changes with every source file; the library carries that of the sources it was compiled from."""
    digest = hashlib.sha256()
    for file in sorted(file for file in NATIVE.glob("[!.]*") if file.suffix in (".h", ".cpp")):
        digest.update(file.name.encode() + b"\0" + file.read_bytes() + b"\0")
    return digest.hexdigest()[:16]


def build(compiler: Compiler, out: Path = LIBRARY, environment: Mapping[str, str] | None = None) -> None:
    """Leaves the library at `out`, whole or not at all; raises BuildFailed. `environment` is added to the process's own."""
    out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="kernels.", dir=out.parent) as folder:

        def compile_one(name: str) -> Path:
            made = Path(folder) / f"{name}.o"
            marks = [f'-DSPECLLM_SOURCES="{sources_digest()}"'] if name == "plugin.cpp" else []
            words = [*compiler.compile, *FLAGS, *compiler.target(*FILES[name]), *marks]
            _run([*words, "-c", NATIVE / name, "-o", made], environment)
            return made

        with ThreadPoolExecutor(os.cpu_count()) as pool:
            objects = list(pool.map(compile_one, FILES))
        library = Path(folder) / out.name
        _run([*compiler.link, "-shared", "-s", "-Wl,--as-needed", "-o", library, *objects, "-lm", "-ldl", "-lpthread"],
             environment)  # fmt: skip
        library.replace(out)


def _run(command: list[str | Path], environment: Mapping[str, str] | None) -> None:
    done = subprocess.run([str(word) for word in command], env={**os.environ, **(environment or {})},
                          capture_output=True, text=True, stdin=subprocess.DEVNULL)  # fmt: skip
    if done.returncode:
        raise BuildFailed(f"{shlex.join(str(word) for word in command)}\n{done.stderr.strip()}")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m specllm.kernels.build", description=__doc__)
    parser.add_argument("--out", type=Path, default=LIBRARY)
    options = parser.parse_args()
    compiler = find_compiler()
    if not IS_SUPPORTED or compiler is None:
        print(
            "error: the kernels need x86-64 Linux and a C++ compiler\nhint: pip install ziglang, or set CXX",
            file=sys.stderr,
        )
        return 1
    try:
        build(compiler, options.out)
    except BuildFailed as error:
        print(f"error: the kernels do not compile: {error}\nhint: specllm works without them", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
