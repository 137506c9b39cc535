"""The smoke decode: a child that may crash, hang or lie."""

from __future__ import annotations

import importlib.util
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from specllm.errors import BackendError
from specllm.runtime import backend, smoke

ROOT = Path(__file__).parents[2]
GOOD = '{"seconds": 0.5, "deviation": 0.0, "devices": []}'


def child(code: str) -> tuple[str, ...]:
    return sys.executable, "-c", code


def failed(command: tuple[str, ...], *, name: str = "cpu", timeout_s: float = 20) -> BackendError:
    with pytest.raises(BackendError) as caught:
        smoke.run_smoke_decode(name, command=command, timeout_s=timeout_s)
    return caught.value


def test_this_build_decodes() -> None:
    report = smoke.run_smoke_decode("cpu")
    assert report.deviation < smoke.TOLERANCE
    assert report.devices == ()
    assert "widths 1 and 32 on CPU" in report.summary


@pytest.mark.parametrize("name", ["SIGILL", "SIGSEGV", "SIGABRT", "SIGKILL"])
def test_a_crashed_child_is_named_by_its_signal(name: str) -> None:
    error = failed(child(f"import os, signal; os.kill(os.getpid(), signal.{name})"))
    assert f": {name} (" in error.message
    assert "scripts/setup --rebuild" in error.hint


def test_an_unknown_signal_has_its_number() -> None:
    assert smoke._reason(-99, "") == "llama.cpp crashed in the smoke decode: signal 99"


def test_windows_exit_codes_are_understood() -> None:
    assert "SIGILL" in smoke._reason(0xC000001D, "")
    assert "SIGSEGV" in smoke._reason(0xC0000005 - 2**32, "")


def test_a_hanging_child_is_ended() -> None:
    assert "within 0.2 s" in failed(child("import time; time.sleep(60)"), timeout_s=0.2).message


def test_a_failing_child_is_quoted() -> None:
    assert failed(child("import sys; sys.exit('a\\nno context')")).message.endswith(": no context")
    assert failed(child("import os; os._exit(7)")).message.endswith("exit code 7")


@pytest.mark.parametrize("said", ["", "ok", "{}", "[]", '{"seconds": "?", "deviation": 0, "devices": []}'])
def test_a_child_that_talks_nonsense_is_not_believed(said: str) -> None:
    assert "makes sense" in failed(child(f"print({said!r})")).message


def test_a_python_that_is_not_there_is_told() -> None:
    assert "could not be started" in failed(("/no/such/python",)).message


def test_a_gpu_build_without_a_gpu_fails() -> None:
    error = failed(child(f"print({GOOD!r})"), name="cuda")
    assert "finds no GPU" in error.message
    assert "SPECLLM_BACKEND=cuda scripts/setup --rebuild" in error.hint


def test_a_missing_library_is_a_failure_and_no_traceback() -> None:
    result = subprocess.run(
        (sys.executable, "-m", "specllm.runtime.backend", "--smoke", "cpu"),
        env=os.environ | {"LLAMA_CPP_LIB_PATH": "/no/such/folder"}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert result.returncode == 1
    assert result.stdout == ""
    lines = result.stderr.splitlines()
    assert [line.partition(":")[0] for line in lines] == ["error", "hint"]
    assert "cannot be loaded" in lines[0]


def test_the_command_says_ok_on_stderr(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(smoke, "run_smoke_decode", lambda name: smoke.SmokeReport(0.012, 0.0, ("CUDA0",)))
    assert backend.main(["--smoke", "cuda"]) == 0
    assert capsys.readouterr() == ("", "smoke decode: ok (widths 1 and 32 on CUDA0, 12 ms)\n")


def test_the_command_outlives_its_child(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    crash = child(f"import os; os.kill(os.getpid(), {int(signal.SIGILL)})")
    run = smoke.run_smoke_decode
    monkeypatch.setattr(smoke, "run_smoke_decode", lambda name: run(name, command=crash))
    assert backend.main(["--smoke", "cpu"]) == 1
    error, hint = capsys.readouterr().err.splitlines()
    assert error.startswith("error: llama.cpp crashed in the smoke decode: SIGILL (")
    assert hint.startswith("hint: ")


def test_a_damaged_smoke_model_is_found_out(tmp_path: Path) -> None:
    path = tmp_path / "smoke.gguf"
    path.write_bytes(smoke.MODEL.read_bytes()[:-5000])
    with pytest.raises(smoke._SmokeFailure, match="does not load"):
        smoke.decode_both_ways("cpu", path)


def test_the_committed_smoke_model_is_what_its_script_makes(tmp_path: Path) -> None:
    spec = importlib.util.spec_from_file_location("make_smoke_model", ROOT / "scripts" / "make_smoke_model.py")
    assert spec
    assert spec.loader
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    assert script.write_smoke_model(tmp_path / "smoke.gguf").read_bytes() == smoke.MODEL.read_bytes()
    assert smoke.MODEL.stat().st_size <= 400_000
