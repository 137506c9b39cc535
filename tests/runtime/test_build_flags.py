"""Which compiler and which flags build llama.cpp, for processors and systems of every kind."""

from __future__ import annotations

import itertools
import platform
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from specllm.runtime import build_flags
from specllm.runtime.build_flags import (
    BACKENDS,
    LLAMA_BUILD,
    X86_EXTENSIONS,
    X86_LEVELS,
    YIELDING_PAUSE,
    Compiler,
    build_key,
    choose_compiler,
    cmake_args,
    default_backend,
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


def test_builds_that_differ_have_different_folders(monkeypatch: pytest.MonkeyPatch) -> None:
    keys = [
        build_key(version, "cpu", compiler, cmake_args(backend, compiler=compiler, machine="x86_64", system="linux",
                                                       extensions=extensions), environment)
        for version, compiler, backend, extensions in itertools.product(
            ("0.3.36", "0.3.37"), COMPILERS, ("cpu", "cuda"), (AVX512, frozenset[str]())
        )
        for environment in ({}, {"CC": "gcc-14"}, {"CFLAGS": "-g"})[: 3 if compiler == "system" else 1]
    ]  # fmt: skip
    for name in ("ZIG_SHA256", "SOURCES_SHA256"):
        with monkeypatch.context() as patch:
            patch.setattr(build_flags, name, "other")
            keys.append(build_key("0.3.36", "cpu", "zig", []))
    assert len(set(keys)) == len(keys)


def test_the_folder_does_not_depend_on_where_the_checkout_lies(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    here = build_key("0.3.36", "cpu", "zig", cmake_args("cpu", compiler="zig"))
    moved = tmp_path / "another place" / LLAMA_BUILD.name
    moved.parent.mkdir()
    moved.write_text(LLAMA_BUILD.read_text())
    flags = [flag.replace(LLAMA_BUILD.as_posix(), moved.as_posix()) for flag in cmake_args("cpu", compiler="zig")]
    monkeypatch.setattr(build_flags, "LLAMA_BUILD", moved)
    assert build_key("0.3.36", "cpu", "zig", flags) == here


@pytest.mark.parametrize("name", ["x86-64-v3", "x86_64_v3", "X86-64-V3"])
def test_the_processor_to_build_for_can_be_named(name: str) -> None:
    everything = frozenset().union(*X86_EXTENSIONS.values(), *X86_LEVELS.values())
    for compiler in COMPILERS:
        flags = cmake_args(
            "cpu", compiler=compiler, machine="x86_64", system="linux", environment={"SPECLLM_CPU": name}
        )
        assert {"-DGGML_AVX2=ON", "-DGGML_FMA=ON", "-DGGML_AVX512=OFF", f"-DSPECLLM_CPU={name}"} <= set(flags)
        assert ("-DCMAKE_C_FLAGS=-mcpu=x86_64_v3" in flags) == (compiler == "zig")
    assert build_flags.wanted_extensions(name) < everything


def test_levels_hold_all_that_the_lower_ones_hold() -> None:
    levels = [build_flags.wanted_extensions(name) for name in X86_LEVELS]
    assert all(lower < higher for higher, lower in itertools.pairwise(levels))
    assert all(needs <= levels[0] for name, needs in X86_EXTENSIONS.items() if not name.startswith("GGML_AVX512_"))


@pytest.mark.parametrize(("cpu", "machine"), [("pentium", "x86_64"), ("x86-64-v9", "x86_64"), ("x86-64-v3", "aarch64")])
def test_a_processor_that_cannot_be_is_refused(cpu: str, machine: str) -> None:
    with pytest.raises(ValueError, match="SPECLLM_CPU"):
        cmake_args("cpu", machine=machine, system="linux", environment={"SPECLLM_CPU": cpu})


def test_the_command_prints_flags_that_a_shell_reads_back(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr(build_flags, "COMMON", (f"-DCMAKE_PROJECT_llama.cpp_INCLUDE={tmp_path}/two words.cmake",))
    monkeypatch.setattr("sys.argv", ["build_flags", "--compiler", "zig"])
    build_flags.main()
    assert shlex.split(capsys.readouterr().out) == cmake_args(default_backend(), compiler="zig")


def test_the_command_refuses_a_processor_that_cannot_be(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["build_flags"])
    monkeypatch.setenv("SPECLLM_CPU", "pentium")
    with pytest.raises(SystemExit, match="2"):
        build_flags.main()
    assert "SPECLLM_CPU" in capsys.readouterr().err


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
