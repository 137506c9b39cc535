"""The doctor on healthy and on broken installations."""

from __future__ import annotations

import io
import json
import os
import re
import subprocess
import sys
from dataclasses import replace
from importlib import metadata
from pathlib import Path

import pytest
from rich.text import Text

from specllm.app.doctor import use_case as doctor
from specllm.app.doctor.diagnosis import Check, Diagnosis
from specllm.errors import BackendError
from specllm.kernels.loader import Kernels
from specllm.ui.doctor import print_checks
from tests.app.doctor.doctors import GPU_BUILD, PLAIN_BUILD, TERMINAL, found, install

pytestmark = pytest.mark.usefixtures("quick_smoke_decode")


def test_nothing_is_loaded_where_the_smoke_decode_crashes(llama_gguf: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def crash(_: str) -> None:
        raise BackendError("llama.cpp crashed in the smoke decode: SIGILL", "scripts/setup --rebuild")

    install(llama_gguf)
    monkeypatch.setattr(doctor, "run_smoke_decode", crash)
    checks = found()
    assert checks["smoke decode"] == Check(
        "smoke decode", "fail", "llama.cpp crashed in the smoke decode: SIGILL", "scripts/setup --rebuild"
    )
    assert checks["pair"].status == "warn"
    assert "target" not in checks


def test_a_missing_library_fails_and_the_rest_is_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing() -> None:
        raise BackendError("llama-cpp-python cannot be loaded", "scripts/setup --rebuild")

    monkeypatch.setattr(doctor, "inspect_backend", missing)
    checks = found()
    assert checks["llama.cpp"].status == "fail"
    assert "smoke decode" not in checks
    assert "terminal" in checks


def test_a_broken_models_file_fails(llama_gguf: Path) -> None:
    install(llama_gguf)
    (Path(os.environ["SPECLLM_CONFIG_DIR"]) / "models.toml").write_text("defualt = 1\n")
    check = found()["models.toml"]
    assert check.status == "fail"
    assert check.fix


def test_amx_in_a_virtual_machine_is_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "is_virtual_machine", lambda: True)
    monkeypatch.setattr(doctor, "unused_extensions", lambda features: [])
    assert doctor.check_build(PLAIN_BUILD).status == "ok"
    check = doctor.check_build(replace(PLAIN_BUILD, features=frozenset({"AMX_INT8"})))
    assert check.status == "warn"
    assert "scripts/setup --rebuild" in check.fix


def test_instructions_the_build_leaves_out_are_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "unused_extensions", lambda features: ["AVX512"])
    check = doctor.check_build(PLAIN_BUILD)
    assert check.status == "warn"
    assert "also has AVX512" in check.fact


def test_an_idle_gpu_and_a_missing_one_are_warnings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(doctor.shutil, "which", lambda name: None)
    monkeypatch.setattr(doctor, "NVIDIA_DRIVER", tmp_path / "version")
    assert doctor.check_devices(PLAIN_BUILD).status == "ok"
    assert doctor.check_devices(GPU_BUILD).status == "ok"
    assert "none to be seen" in doctor.check_devices(replace(PLAIN_BUILD, can_offload=True)).fact
    (tmp_path / "version").touch()
    check = doctor.check_devices(PLAIN_BUILD)
    assert check.fix == "SPECLLM_BACKEND=cuda scripts/setup --rebuild"


def test_versions_that_are_missing_or_not_pinned_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "installed_version", lambda: "0.0.1")
    assert doctor.check_libraries().status == "warn"
    monkeypatch.setattr(doctor, "CHECKOUT", Path("/nowhere"))
    monkeypatch.setattr(doctor.metadata, "requires", lambda name: ["numpy>=1", "no-such-library", "x; extra == 'dev'"])
    assert doctor.check_libraries() == Check(
        "libraries", "fail", "missing: no-such-library", "pip install no-such-library"
    )

    def nothing(_: str) -> None:
        raise metadata.PackageNotFoundError

    monkeypatch.setattr(doctor.metadata, "requires", nothing)
    assert doctor.check_libraries().fix == "scripts/setup"


def test_what_a_checkout_needs_is_looked_for_though_it_was_installed_before(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor.metadata, "requires", lambda name: ["numpy>=1"])
    fact = doctor.check_libraries().fact
    assert re.search(r"\bprompt-toolkit \d.*, llguidance \d", fact)


@pytest.mark.parametrize(
    ("changes", "status", "says"),
    [
        ({}, "ok", "100 columns, utf-8, colour"),
        ({"is_terminal": False, "has_colour": False}, "ok", "not a terminal, utf-8, no colour"),
        ({"encoding": "cp1252"}, "warn", "PYTHONUTF8=1"),
        ({"columns": 40}, "warn", "wider"),
    ],
)
def test_the_terminal_is_judged(changes: dict[str, object], status: str, says: str) -> None:
    check = doctor.check_terminal(replace(TERMINAL, **changes))
    assert check.status == status
    assert says in check.fact + check.fix


def test_lines_and_fixes_are_printed_without_escape_codes_in_a_pipe(capsys: pytest.CaptureFixture[str]) -> None:
    checks = [Check("python", "ok", "3.11"), Check("model \x1b[2J", "fail", "gone [red]", "specllm models pull x" * 9)]
    diagnosis = Diagnosis(print_checks(checks))
    assert capsys.readouterr().out.splitlines() == [
        "ok    python        3.11",
        "fail  model \u241b[2J    gone [red]",
        "      fix: " + "specllm models pull x" * 9,
    ]
    assert not diagnosis.is_ok


class Screen(io.StringIO):
    encoding = "utf-8"

    def isatty(self) -> bool:
        return True


def test_on_a_terminal_no_word_of_a_fact_is_torn(monkeypatch: pytest.MonkeyPatch) -> None:
    fact = ", ".join(f"library-{i} {i}.0" for i in range(40))
    for name, value in {"COLUMNS": "80", "NO_COLOR": "1", "TERM": "xterm"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(sys, "stdout", Screen())
    print_checks([Check("libraries", "ok", fact)])
    lines = [Text.from_ansi(line).plain for line in sys.stdout.getvalue().splitlines()]
    assert len(lines) > 1
    assert max(map(len, lines)) <= 80
    assert " ".join("".join(line[20:]) for line in lines).split() == fact.split()


def test_a_diagnosis_counts_its_checks() -> None:
    diagnosis = Diagnosis((Check("a", "ok", "1"), Check("b", "warn", "2", "do")))
    assert diagnosis.as_result() == {
        "is_ok": True, "n_ok": 1, "n_warn": 1, "n_fail": 0,
        "checks": [
            {"name": "a", "status": "ok", "fact": "1", "fix": None},
            {"name": "b", "status": "warn", "fact": "2", "fix": "do"},
        ],
    }  # fmt: skip


def run_doctor(*options: str) -> subprocess.CompletedProcess[str]:
    command = (sys.executable, "-m", "specllm", "doctor", *options)
    return subprocess.run(command, capture_output=True, text=True, check=False, env=dict(os.environ))


def test_the_command_ends_with_0_and_one_document(llama_gguf: Path, draft_gguf: Path) -> None:
    install(llama_gguf, draft_gguf)
    result = run_doctor("--json")
    document = json.loads(result.stdout)
    assert (result.returncode, document["ok"], document["result"]["n_fail"]) == (0, True, 0)
    assert document["command"] == "doctor"
    assert result.stderr == ""


def test_the_command_ends_with_3_and_one_document_when_something_fails(tmp_path: Path) -> None:
    path = tmp_path / "empty.gguf"
    path.touch()
    install(path)
    result = run_doctor("--json")
    document = json.loads(result.stdout)
    assert (result.returncode, document["ok"], document["result"]["is_ok"]) == (3, False, False)
    plain = run_doctor()
    assert plain.returncode == 3
    assert "fail  model target" in plain.stdout
    assert plain.stderr.startswith("error: 2 checks failed: model target, memory\nhint: ")


def test_the_kernels_that_compute_are_named_and_odd_ones_doubted() -> None:
    own = replace(PLAIN_BUILD, kernels=Kernels("avx2", "0123"))
    absent = replace(PLAIN_BUILD, kernels=Kernels(reason="not compiled", is_expected=True))
    odd = replace(PLAIN_BUILD, kernels=Kernels(reason="failed their test: it crashed"))
    checks = [doctor.check_kernels(info) for info in (own, absent, odd)]
    assert [check.status for check in checks] == ["ok", "ok", "warn"]
    assert "avx2" in checks[0].fact
    assert "it crashed" in checks[2].fact
    assert "SPECLLM_KERNELS=off" in checks[2].fix
