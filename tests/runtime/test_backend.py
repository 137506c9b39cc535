"""What the llama.cpp build says about itself, and how to build it again."""

from __future__ import annotations

import ctypes
import sys
from dataclasses import replace
from importlib import metadata
from pathlib import Path

import pytest

from specllm.runtime import rebuild
from specllm.runtime.backend import Device, _devices, _ggml_version, inspect_backend, parse_compiler, parse_features

GIB = 1 << 30


def test_this_build_names_its_version_features_and_a_processor() -> None:
    info = inspect_backend()
    assert info.binding_version == metadata.version("llama-cpp-python")
    assert info.ggml_version
    assert "CPU" in info.system_info
    assert bool(info.compiler) == (sys.platform == "linux")
    assert any(device.type == "cpu" and device.total_bytes > 0 for device in info.devices)
    assert info.can_mmap


def test_features_are_those_above_zero() -> None:
    line = "CUDA : ARCHS = 900 | CPU : SSE3 = 1 | AVX512 = 0 | AMX_INT8 = 1 | REPACK = 1 | "
    assert parse_features(line) == {"ARCHS", "SSE3", "AMX_INT8", "REPACK"}
    assert parse_features("") == frozenset()


@pytest.mark.parametrize(
    ("comment", "compiler"),
    [
        (b"\0clang version 22.1.8\0Linker: LLD 22.1.8\0", "clang 22.1.8"),
        (b"\0GCC: (Debian 12.2.0-14) 12.2.0\0", "GCC 12.2.0"),
        (b"\0GCC: (GNU) 14.1\0Ubuntu clang version 19.1.7 (++git)\0", "clang 19.1.7"),
        (b"\0rustc version 1.80\0", ""),
    ],
)
def test_the_compiler_is_in_the_librarys_comment(comment: bytes, compiler: str) -> None:
    assert parse_compiler(b"\x7fELF" + comment) == compiler


@pytest.mark.parametrize(
    ("name", "backend"), [("CUDA0", "cuda"), ("Vulkan1", "vulkan"), ("MTL0", "metal"), ("Metal", "metal")]
)
def test_the_backend_is_known_by_its_gpu(name: str, backend: str) -> None:
    info = replace(inspect_backend(), devices=(Device(name, "", "gpu", GIB, GIB),))
    assert info.backend == backend
    assert replace(info, devices=(Device("CPU", "", "cpu", GIB, GIB),)).backend == "cpu"


def test_a_library_without_the_functions_has_no_devices() -> None:
    stranger = ctypes.CDLL(None)
    assert _devices(stranger) == () or inspect_backend().devices  # loaded globally, they may be found after all
    assert isinstance(_ggml_version(stranger), str)


def test_a_checkout_is_rebuilt_by_its_script(tmp_path: Path) -> None:
    (tmp_path / "scripts").mkdir()
    (tmp_path / "scripts" / "setup").touch()
    assert rebuild.rebuild_command("cpu", checkout=tmp_path).endswith("scripts/setup --rebuild")
    assert rebuild.rebuild_command("cuda", checkout=tmp_path) == "SPECLLM_BACKEND=cuda scripts/setup --rebuild"


def test_an_installation_is_rebuilt_by_pip(tmp_path: Path) -> None:
    command = rebuild.rebuild_command("cuda", checkout=tmp_path)
    assert command.startswith('CMAKE_ARGS="-DLLAVA_BUILD=OFF')
    assert "-DGGML_CUDA=ON" in command
    assert command.endswith(f"--no-cache-dir --no-binary llama-cpp-python llama-cpp-python=={rebuild.pinned_version()}")


def test_the_installed_version_is_the_pinned_one() -> None:
    assert rebuild.installed_version() == rebuild.pinned_version()


def test_missing_distributions_have_no_version(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rebuild, "BINDING", "no-such-distribution")
    monkeypatch.setattr(rebuild, "DISTRIBUTION", "no-such-distribution")
    assert rebuild.installed_version() is None
    assert rebuild.pinned_version() is None
