"""Anything odd about the kernels: ggml's own compute, and the reason is said."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from pathlib import Path

import llama_cpp
import pytest

from specllm.errors import BackendError, ConfigError
from specllm.kernels import build, loader
from specllm.kernels.loader import Libraries

FOLDER = Path(llama_cpp.llama_cpp._lib._name).parent


@pytest.fixture
def libraries() -> Libraries:
    found = Libraries.find(FOLDER)
    assert found is not None
    return found


def test_off_loads_nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("SPECLLM_KERNELS", "off")
    kernels = loader.install(tmp_path / "nowhere", tmp_path / "nothing.so")
    assert kernels.name == ""
    assert "off" in kernels.reason


def test_a_mode_that_does_not_exist_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPECLLM_KERNELS", "fast")
    with pytest.raises(ConfigError, match="fast") as raised:
        loader.install(FOLDER)
    assert "auto" in raised.value.hint


def odd_libraries(tmp_path: Path) -> dict[str, Path]:
    garbage = tmp_path / "garbage.so"
    garbage.write_bytes(b"\x7fELF and no more")
    return {"not compiled": tmp_path / "nothing.so", "do not load": garbage}


def test_auto_computes_with_stock_and_says_so_where_something_is_odd(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("SPECLLM_KERNELS", "auto")
    with caplog.at_level(logging.WARNING, "specllm.kernels"):
        kernels = loader.install(FOLDER, odd_libraries(tmp_path)["do not load"])
    assert kernels.instruction_set == ""
    assert "do not load" in kernels.reason
    assert [kernels.reason in record.getMessage() for record in caplog.records] == [True]


def test_auto_says_nothing_where_the_kernels_were_never_compiled(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("SPECLLM_KERNELS", "auto")
    with caplog.at_level(logging.WARNING, "specllm.kernels"):
        assert "not compiled" in loader.install(FOLDER, odd_libraries(tmp_path)["not compiled"]).reason
    assert caplog.records == []


@pytest.mark.parametrize("reason", ["not compiled", "do not load"])
def test_on_is_an_error_where_there_is_no_library(reason: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("SPECLLM_KERNELS", "on")
    with pytest.raises(BackendError, match=reason) as raised:
        loader.install(FOLDER, odd_libraries(tmp_path)[reason])
    assert "SPECLLM_KERNELS=off" in raised.value.hint


def test_a_llama_cpp_without_a_cpu_library_of_its_own_stays_stock(library_path: Path, tmp_path: Path) -> None:
    assert "CPU library" in loader.install(tmp_path, library_path).reason


def test_other_sources_than_the_compiled_ones_are_noticed(library_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build, "sources_digest", lambda: "of others")
    assert "other sources" in loader.install(FOLDER, library_path).reason


def test_the_test_is_good_with_every_instruction_set(
    library_path: Path, libraries: Libraries, sets: list[object]
) -> None:
    for kernels in sets:
        assert loader.run_test(libraries, library_path, kernels.name) == ""  # type: ignore[attr-defined]


@pytest.mark.parametrize("n_bytes", [100, 4096, 300_000])
def test_a_library_that_was_cut_off_is_a_reason_and_no_crash(
    n_bytes: int, library_path: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("SPECLLM_KERNELS", "auto")
    cut = tmp_path / "cut.so"
    cut.write_bytes(library_path.read_bytes()[:n_bytes])
    assert "failed their test" in loader.install(FOLDER, cut).reason


@pytest.mark.parametrize("name", ["SIGKILL", "SIGTERM", "SIGINT"])
def test_a_test_that_somebody_ended_is_made_again(
    name: str, libraries: Libraries, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    program = tmp_path / "ended"
    program.write_text(f"#!/bin/sh\nkill -{name[3:]} $$\n")
    program.chmod(0o755)
    library = tmp_path / "any.so"
    library.write_bytes(b"")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "executable", str(program))
        assert name in loader.test_once(libraries, library, "")
    monkeypatch.setattr(loader, "run_test", lambda *arguments: "")
    assert loader.test_once(libraries, library, "") == ""


def test_other_files_beside_the_sources_change_nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    native = tmp_path / "native"
    native.mkdir()
    (native / "a.cpp").write_text("int a;")
    monkeypatch.setattr(build, "NATIVE", native)
    before = build.sources_digest()
    (native / ".a.cpp.swp").write_text("")
    (native / ".#a.cpp").symlink_to("nowhere")
    (native / "notes").mkdir()
    assert build.sources_digest() == before
    (native / "a.cpp").write_text("int b;")
    assert build.sources_digest() != before


def test_an_instruction_set_that_is_not_there_fails_the_test(library_path: Path, libraries: Libraries) -> None:
    assert "instruction set" in loader.run_test(libraries, library_path, "neon")


@pytest.mark.parametrize("is_read_only", [False, True])
def test_the_result_of_the_test_is_kept_until_a_file_changes(
    is_read_only: bool, libraries: Libraries, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("SPECLLM_CACHE_DIR", str(tmp_path / "cache"))
    library = tmp_path / "any.so"
    library.write_bytes(b"")
    if is_read_only:
        (tmp_path / "tested").write_text("a file, so no folder can be made here")
    answers = iter(["bad", "good"])
    monkeypatch.setattr(loader, "run_test", lambda *arguments: next(answers))
    assert loader.test_once(libraries, library, "") == "bad"
    assert loader.test_once(libraries, library, "") == "bad"
    os.utime(library, ns=(1, 1))
    assert loader.test_once(libraries, library, "") == "good"
    assert (tmp_path / "cache").exists() == is_read_only


def test_a_crash_in_the_test_is_a_reason_and_no_crash(libraries: Libraries, tmp_path: Path) -> None:
    program = tmp_path / "crash"
    program.write_text("#!/bin/sh\nkill -SEGV $$\n")
    program.chmod(0o755)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "executable", str(program))
        assert "SIGSEGV" in loader.run_test(libraries, tmp_path / "any.so", "")


def test_another_ggml_is_refused(library_path: Path, libraries: Libraries, tmp_path: Path) -> None:
    """The version is read from ggml's library: here the one that the kernels want is made to differ."""
    native = library_path.read_bytes()
    version = b"0.25.3\0"
    assert version in native
    other = tmp_path / "other.so"
    other.write_bytes(native.replace(version, b"0.25.2\0"))
    assert "the version of ggml" in loader.run_test(libraries, other, "")


def test_the_build_names_the_compilers_words(tmp_path: Path) -> None:
    with pytest.raises(build.BuildFailed, match="no such compiler"):
        build.build(build.named_compiler("sh -c 'echo no such compiler >&2; exit 1' --"), tmp_path / "out.so")
    assert list(tmp_path.iterdir()) == []
    assert (
        subprocess.run([sys.executable, "-m", "specllm.kernels.build", "--help"], capture_output=True).returncode == 0
    )
