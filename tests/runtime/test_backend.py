"""What the llama.cpp build says about itself, and how to build it again."""

from __future__ import annotations

import ctypes
import shlex
from dataclasses import replace
from importlib import metadata
from pathlib import Path

import pytest

from specllm.runtime import build_flags, rebuild
from specllm.runtime.backend import (
    Device,
    _devices,
    _ggml_version,
    inspect_backend,
    parse_features,
)
from specllm.runtime.build_flags import BUILD_RECORD, built_extensions, read_build_record

GIB = 1 << 30


def test_this_build_names_its_version_features_and_a_processor() -> None:
    info = inspect_backend()
    assert info.binding_version == metadata.version("llama-cpp-python")
    assert info.ggml_version
    assert "CPU" in info.system_info
    assert any(device.type == "cpu" and device.total_bytes > 0 for device in info.devices)
    assert info.can_mmap


def test_features_are_those_above_zero() -> None:
    line = "CUDA : ARCHS = 900 | CPU : SSE3 = 1 | AVX512 = 0 | AMX_INT8 = 1 | REPACK = 1 | "
    assert parse_features(line) == {"ARCHS", "SSE3", "AMX_INT8", "REPACK"}
    assert parse_features("") == frozenset()


def test_a_build_that_wrote_its_record_is_known_by_it() -> None:
    """It is in the wheel where scripts/setup or its flags built it; other wheels have none, and nothing is guessed."""
    files = metadata.files("llama-cpp-python") or []
    is_recorded = any(file.name == BUILD_RECORD for file in files)
    info = inspect_backend()
    assert bool(info.compiler) == is_recorded
    assert info.kernels_bytes > 0


@pytest.mark.parametrize(
    ("record", "facts"),
    [
        ('{"compiler": "clang 22.1.8", "cpu": "x86-64-v3"}', {"compiler": "clang 22.1.8", "cpu": "x86-64-v3"}),
        ('{"compiler": 22, "cpu": ""}', {"cpu": ""}),
        ("[]", {}),
        ("{", {}),
        (None, {}),
    ],
)
def test_a_record_that_is_none_says_nothing(tmp_path: Path, record: str | None, facts: dict[str, str]) -> None:
    if record is not None:
        (tmp_path / BUILD_RECORD).write_text(record)
    assert read_build_record(tmp_path) == facts


def test_a_build_for_another_processor_has_its_extensions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LLAMA_CPP_LIB_PATH", str(tmp_path))
    monkeypatch.setattr(build_flags, "processor_extensions", lambda: frozenset({"avx512f"}))
    assert built_extensions() == {"avx512f"}
    (tmp_path / BUILD_RECORD).write_text('{"compiler": "clang 22.1.8", "cpu": "x86-64-v2"}')
    assert built_extensions() == build_flags.wanted_extensions("x86-64-v2")


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
    flags, *words = shlex.split(command)
    assert flags.startswith("CMAKE_ARGS=-DLLAVA_BUILD=OFF ")
    assert flags.endswith(" -DGGML_CUDA=ON")
    assert words[:2] == ["pip", "install"]
    assert command.endswith(f"--no-cache-dir --no-binary llama-cpp-python llama-cpp-python=={rebuild.pinned_version()}")


def test_the_installed_version_is_the_pinned_one() -> None:
    assert rebuild.installed_version() == rebuild.pinned_version()


def test_missing_distributions_have_no_version(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rebuild, "BINDING", "no-such-distribution")
    monkeypatch.setattr(rebuild, "DISTRIBUTION", "no-such-distribution")
    assert rebuild.installed_version() is None
    assert rebuild.pinned_version() is None
