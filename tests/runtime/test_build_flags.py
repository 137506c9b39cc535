"""Which compiler and which flags build llama.cpp, for processors and systems of every kind."""

from __future__ import annotations

import itertools
import platform
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from specllm.runtime import build_flags
from specllm.runtime.build_flags import (
    BACKENDS,
    X86_EXTENSIONS,
    X86_LEVELS,
    YIELDING_PAUSE,
    Compiler,
    build_key,
    choose_compiler,
    cmake_args,
)

AVX512 = X86_EXTENSIONS["GGML_AVX512"]
COMPILERS: tuple[Compiler, ...] = ("zig", "system")


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("machine", ["x86_64", "AMD64", "aarch64", "riscv64"])
@pytest.mark.parametrize("system", ["linux", "darwin", "win32"])
@pytest.mark.parametrize("environment", [{}, {"CC": "gcc-14"}, {"CXX": "clang++"}, {"CC": "", "CXX": ""}])
def test_zig_compiles_where_it_was_measured_and_nobody_chose(
    backend: str, machine: str, system: str, environment: dict[str, str]
) -> None:
    chosen = choose_compiler(backend, machine=machine, system=system, environment=environment)
    is_measured = backend == "cpu" and machine in ("x86_64", "AMD64") and system == "linux"
    assert chosen == ("zig" if is_measured and not any(environment.values()) else "system")


@pytest.mark.parametrize(
    ("extensions", "level"),
    [
        (frozenset[str](), "x86_64"),
        (X86_LEVELS["x86_64_v2"], "x86_64_v2"),
        (X86_LEVELS["x86_64_v3"], "x86_64_v3"),
        (AVX512 | X86_LEVELS["x86_64_v3"] | {"amx_tile", "amx_int8"}, "x86_64_v4"),
        (AVX512 - {"avx512vl"} | X86_LEVELS["x86_64_v3"], "x86_64_v3"),
    ],
)
def test_zig_is_told_the_best_level_the_processor_has(extensions: frozenset[str], level: str) -> None:
    flags = cmake_args("cpu", compiler="zig", machine="x86_64", system="linux", extensions=extensions)
    assert f"-DCMAKE_C_FLAGS=-mcpu={level}" in flags
    assert f"-DCMAKE_CXX_FLAGS=-mcpu={level}" in flags
    assert "-DGGML_OPENMP=OFF" in flags


@pytest.mark.parametrize(("compiler", "backend"), list(itertools.product(COMPILERS, BACKENDS)))
def test_no_build_takes_amx_or_whatever_this_processor_has(compiler: Compiler, backend: str) -> None:
    everything = frozenset().union(*X86_EXTENSIONS.values(), *X86_LEVELS.values(), {"amx_tile", "amx_int8"})
    flags = cmake_args(backend, compiler=compiler, machine="x86_64", system="linux", extensions=everything)
    assert "-DGGML_NATIVE=OFF" in flags
    assert not [flag for flag in flags if "AMX" in flag.upper() or "native" in flag]
    assert {f"-D{option}=ON" for option in X86_EXTENSIONS} <= set(flags)


def test_only_zig_is_told_of_levels_and_goes_without_openmp() -> None:
    flags = cmake_args("cpu", compiler="system", machine="x86_64", system="linux", extensions=AVX512)
    assert not [flag for flag in flags if "CMAKE_C_FLAGS" in flag or "OPENMP" in flag]


def test_builds_that_differ_have_different_folders() -> None:
    kinds = [
        [*origin, *cmake_args(backend, compiler=compiler, machine="x86_64", system="linux", extensions=extensions)]
        for compiler, backend, extensions in itertools.product(COMPILERS, ("cpu", "cuda"), (AVX512, frozenset[str]()))
        for origin in ([], ["another compiler"])
    ]
    keys = [build_key(version, "cpu", flags) for flags in kinds for version in ("0.3.36", "0.3.37")]
    assert len(set(keys)) == len(keys)


def test_the_script_prints_a_key_for_these_flags_and_this_compiler(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def printed(*arguments: str) -> str:
        monkeypatch.setattr("sys.argv", ["build_flags", *arguments])
        build_flags.main()
        return capsys.readouterr().out.strip()

    system, zig = ([printed(*which), printed(*which, "--key", "0.3.36")] for which in ((), ("--compiler", "zig")))
    assert not {*system} & {*zig}
    assert system == [printed("--compiler", "system"), printed("--compiler", "system", "--key", "0.3.36")]
    assert printed("--choose") in COMPILERS
    monkeypatch.setattr(build_flags, "ZIG_REQUIREMENT", "ziglang==99")
    assert printed("--compiler", "zig", "--key", "0.3.36") != zig[1]


@pytest.mark.skipif(
    not (shutil.which("cc") and platform.machine() == "x86_64" and sys.platform == "linux"),
    reason="x86 Linux with a C compiler",
)
def test_the_yielding_pause_is_c_and_gives_the_core_away(tmp_path: Path) -> None:
    """Compiled as ggml is, in front of a file that pauses; counted by a sched_yield of its own."""
    source = tmp_path / "spin.c"
    source.write_text(
        "#include <stdio.h>\nstatic int n_yields;\nint sched_yield(void) { n_yields++; return 0; }\n"
        'int main(void) { for (int i = 0; i < 10 * 1024; i++) _mm_pause(); printf("%d", n_yields); return 0; }\n'
    )
    program = tmp_path / "spin"
    subprocess.run(["cc", "-include", YIELDING_PAUSE, source, "-o", program], check=True)
    assert subprocess.run([program], capture_output=True, text=True, check=True).stdout == "10"
