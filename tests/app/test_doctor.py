"""The doctor on healthy and on broken installations."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from importlib import metadata
from pathlib import Path

import pytest

from specllm.app import doctor, doctor_models
from specllm.app.diagnosis import Check, Diagnosis
from specllm.app.doctor import diagnose
from specllm.errors import BackendError
from specllm.models.disk import sha256_of
from specllm.models.entries import PathSource
from specllm.models.registry import Registry
from specllm.models.store import RecordedDigest, record_digest
from specllm.runtime import memory
from specllm.runtime.backend import BackendInfo, Device
from specllm.runtime.smoke import SmokeReport
from specllm.ui.doctor import Terminal, print_checks
from tests import synthetic

GIB = 1 << 30
TERMINAL = Terminal(is_terminal=True, encoding="utf-8", columns=100, has_colour=True)
PLAIN_BUILD = BackendInfo(
    binding_version="0.3.36",
    ggml_version="1.2 abc",
    system_info="",
    features=frozenset({"AVX", "AVX2"}),
    devices=(Device("CPU", "a processor", "cpu", 4 * GIB, 8 * GIB),),
    can_offload=False,
    can_mmap=True,
    can_mlock=True,
)
GPU_BUILD = replace(
    PLAIN_BUILD, can_offload=True, devices=(Device("CUDA0", "a GPU", "gpu", GIB, 2 * GIB), *PLAIN_BUILD.devices)
)
Install = Callable[..., None]


@pytest.fixture(autouse=True)
def _quick_smoke_decode(monkeypatch: pytest.MonkeyPatch) -> None:
    """No child process for every look; the tests of the command itself have the real one."""
    monkeypatch.setattr(doctor, "run_smoke_decode", lambda backend: SmokeReport(0.01, 0.0, ()))


@pytest.fixture
def install() -> Install:
    """Writes the user's models.toml: a default pair of two files, or one default model."""

    def write(target: Path, draft: Path | None = None) -> None:
        entries = [("target", target)] + ([("draft", draft)] if draft else [])
        lines = [f'default = "{"both" if draft else "target"}"']
        for name, path in entries:
            lines += [f"[models.{name}]", f'sources = [{{ kind = "path", path = {json.dumps(str(path))} }}]']
        if draft:
            lines += ["[pairs.both]", 'target = "target"', 'draft = "draft"']
        file = Path(os.environ["SPECLLM_CONFIG_DIR"]) / "models.toml"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("\n".join(lines) + "\n", encoding="utf-8")

    return write


def found(**options: bool) -> dict[str, Check]:
    """All checks of the doctor by name."""
    return {check.name: check for check in diagnose(TERMINAL, **options)}


def test_a_healthy_pair_passes_every_check(install: Install, llama_gguf: Path, draft_gguf: Path) -> None:
    install(llama_gguf, draft_gguf)
    checks = found()
    assert list(checks) == [
        "python", "libraries", "llama.cpp", "devices", "smoke decode", "model target", "model draft", "memory", "pair",
        "target", "draft model", "rollback", "terminal",
    ]  # fmt: skip
    assert [check for check in checks.values() if check.status == "fail"] == []
    assert f"{synthetic.N_VOCAB} shared tokens" in checks["pair"].fact
    assert "target on CPU" in checks["target"].fact
    assert "ms per token" in checks["draft model"].fact
    assert checks["rollback"].fact.startswith("trim")


def test_a_recurrent_target_is_rolled_back_by_snapshots(install: Install, mamba_gguf: Path) -> None:
    install(mamba_gguf)
    checks = found()
    assert checks["rollback"].fact.startswith("snapshot")
    assert "a rejection costs" in checks["rollback"].fact
    assert "draft model" not in checks


@pytest.mark.parametrize(("name", "kind"), [("lfm2_gguf", "states"), ("gemma3_gguf", "trim")])
def test_kept_states_and_sliding_windows_are_named(
    install: Install, name: str, kind: str, request: pytest.FixtureRequest
) -> None:
    install(request.getfixturevalue(name))
    assert found()["rollback"].fact.startswith(kind)


def test_a_rollback_that_leaves_traces_fails(
    install: Install, llama_gguf: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    right = memory.Trim.to
    install(llama_gguf)
    monkeypatch.setattr(memory.Trim, "to", lambda self, n_past: right(self, n_past + 1))
    check = found()["rollback"]
    assert check.status == "fail"
    assert "are off by" in check.fact


def test_a_cache_that_refuses_to_drop_is_a_warning(
    install: Install, llama_gguf: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(llama_gguf)
    monkeypatch.setattr(memory.llama_cpp, "llama_memory_seq_rm", lambda *_: False)
    check = found()["rollback"]
    assert (check.status, check.fix) == ("warn", "use --drafter none with it, or another target")


def test_missing_models_are_a_warning_with_the_command() -> None:
    checks = found()
    names = [name for name in checks if name.startswith("model ")]
    assert len(names) == 2  # the shipped default pair
    for name in names:
        assert checks[name].status == "warn"
        assert checks[name].fix == f"specllm models pull {name.removeprefix('model ')}"
    assert "memory" not in checks


def test_a_draft_model_that_is_not_there_leaves_the_target_to_look_at(install: Install, llama_gguf: Path) -> None:
    install(llama_gguf, llama_gguf.with_name("gone.gguf"))
    checks = found()
    assert checks["model draft"].status == "warn"
    assert checks["target"].status == "ok"
    assert "pair" not in checks


def test_a_truncated_model_fails(install: Install, llama_gguf: Path, tmp_path: Path) -> None:
    path = tmp_path / "short.gguf"
    path.write_bytes(llama_gguf.read_bytes()[:-999])
    install(path)
    checks = found()
    assert checks["model target"].status == "fail"
    assert "truncated" in checks["model target"].fact
    assert checks["memory"].status == "fail"
    assert "target" not in checks


def test_a_file_of_another_size_than_promised_fails(llama_gguf: Path) -> None:
    model = replace(Registry.load().model("smollm2-135m-instruct"), bytes=5)
    folder = Path(os.environ["SPECLLM_MODELS_DIR"])
    folder.mkdir(parents=True)
    (folder / model.file).write_bytes(llama_gguf.read_bytes())
    registry = Registry(models={model.name: model}, default=model.name)
    (check,) = doctor_models.check_files(registry, is_full=False, progress=doctor.NoProgress())
    assert check.status == "fail"
    assert "instead of 5" in check.fact


def test_digests_are_compared_with_what_was_recorded(llama_gguf: Path) -> None:
    digest, n_bytes = sha256_of((llama_gguf,)), llama_gguf.stat().st_size
    model = replace(
        Registry.load().model("gemma-3-270m"), sources=(PathSource(path=llama_gguf),), sha256=digest, bytes=n_bytes
    )
    registry = Registry(models={model.name: model}, default=model.name)

    def check(*, is_full: bool = False) -> Check:
        (one,) = doctor_models.check_files(registry, is_full=is_full, progress=doctor.NoProgress())
        return one

    assert "not looked at" in check().fact
    record_digest(model, RecordedDigest(sha256=digest, bytes=n_bytes))
    assert digest[:12] in check().fact
    assert "as promised" in check(is_full=True).fact
    record_digest(model, RecordedDigest(sha256=digest, bytes=n_bytes + 1))
    assert check().status == "fail"
    record_digest(model, RecordedDigest(sha256="0" * 64, bytes=n_bytes))
    assert check().status == "fail"


def test_a_full_look_finds_a_changed_file(install: Install, llama_gguf: Path, tmp_path: Path) -> None:
    path = tmp_path / "copy.gguf"
    path.write_bytes(llama_gguf.read_bytes())
    install(path)
    assert "recorded now" in found(is_full=True)["model target"].fact
    with path.open("r+b") as file:
        file.seek(-1, os.SEEK_END)
        file.write(b"\x55")
    assert found()["model target"].status == "ok"
    assert found(is_full=True)["model target"].status == "fail"


def test_vocabularies_that_do_not_match_fail(install: Install, llama_gguf: Path, tmp_path: Path) -> None:
    install(llama_gguf, synthetic.write_llama(tmp_path / "other.gguf", extra_tokens=200))
    checks = found()
    assert checks["pair"].status == "fail"
    assert checks["pair"].fix


def test_too_little_memory_loads_nothing(
    install: Install, llama_gguf: Path, draft_gguf: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(llama_gguf, draft_gguf)
    monkeypatch.setattr(doctor_models, "available_memory_bytes", lambda: 1000)
    checks = found()
    assert checks["memory"].status == "warn"
    assert "1 kB are free" in checks["memory"].fact
    assert "target" not in checks
    monkeypatch.setattr(doctor_models, "available_memory_bytes", lambda: None)
    assert "not known" in found()["memory"].fact


def test_nothing_is_loaded_where_the_smoke_decode_crashes(
    install: Install, llama_gguf: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
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


def test_a_broken_models_file_fails(install: Install, llama_gguf: Path) -> None:
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


def test_a_draft_model_off_the_targets_gpu_is_a_warning(llama_gguf: Path) -> None:
    located = doctor_models.LocatedModel(name="tiny", path=llama_gguf, model=None, sampling={})
    target = doctor_models._Measured(0.010, -1, "trim")

    def speed(*measured: doctor_models._Measured) -> Check:
        return doctor_models._speed("draft model", located, list(measured), GPU_BUILD)

    assert speed(target).fact == "tiny on CUDA0, 10.0 ms per token"
    assert speed(target, doctor_models._Measured(0.002, 3, "trim")).status == "ok"
    assert speed(target, doctor_models._Measured(0.002, 0, "trim")).fix == "use --draft-gpu-layers all"
    assert "cannot pay" in speed(target, doctor_models._Measured(0.011, -1, "trim")).fact


@pytest.mark.parametrize(("kind", "says"), [("none", "take tokens back:"), ("replay", "only start over")])
def test_a_target_without_rollback_is_a_warning(llama_gguf: Path, kind: str, says: str) -> None:
    located = doctor_models.LocatedModel(name="tiny", path=llama_gguf, model=None, sampling={})
    check = doctor_models._rollback(located, doctor_models._Measured(0.01, 0, kind))
    assert (check.status, check.fix) == ("warn", "use --drafter none with it, or another target")
    assert says in check.fact


def test_versions_that_are_missing_or_not_pinned_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "installed_version", lambda: "0.0.1")
    assert doctor.check_libraries().status == "warn"
    monkeypatch.setattr(doctor.metadata, "requires", lambda name: ["numpy>=1", "no-such-library", "x; extra == 'dev'"])
    assert doctor.check_libraries() == Check(
        "libraries", "fail", "missing: no-such-library", "pip install no-such-library"
    )

    def nothing(_: str) -> None:
        raise metadata.PackageNotFoundError

    monkeypatch.setattr(doctor.metadata, "requires", nothing)
    assert doctor.check_libraries().fix == "scripts/setup"


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


def test_the_command_ends_with_0_and_one_document(install: Install, llama_gguf: Path, draft_gguf: Path) -> None:
    install(llama_gguf, draft_gguf)
    result = run_doctor("--json")
    document = json.loads(result.stdout)
    assert (result.returncode, document["ok"], document["result"]["n_fail"]) == (0, True, 0)
    assert document["command"] == "doctor"
    assert result.stderr == ""


def test_the_command_ends_with_3_and_one_document_when_something_fails(install: Install, tmp_path: Path) -> None:
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
