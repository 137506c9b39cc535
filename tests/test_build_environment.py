"""The work behind scripts/setup, apart from compiling."""

from __future__ import annotations

import importlib.util
import itertools
import os
import subprocess
import sys
import tomllib
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType

import pytest

from specllm.runtime import build_flags

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("build_environment", ROOT / "scripts" / "build_environment.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def test_a_ninja_line_tells_the_files_and_then_the_time_left(script: ModuleType) -> None:
    clock = Clock()
    progress = script.Progress(clock)
    assert progress.read("  Configuring CMake...") is None
    assert progress.read("[0/80] starting") == "0 of 80 files"
    clock.now = 30.0
    assert progress.read("  [20/80] cc -c a.c") == "20 of 80 files, about 1:30 left"
    clock.now = 120.0
    assert progress.read("[80/80] cc -o all") == "80 of 80 files"


def test_a_make_line_tells_the_share(script: ModuleType) -> None:
    clock = Clock()
    progress = script.Progress(clock)
    assert progress.read("[  0%] Building C object") == "0 %"
    clock.now = 10.0
    assert progress.read("[ 50%] Building C object") == "50 %, about 0:10 left"


def test_nothing_is_silent_for_five_seconds_in_a_pipe(script: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    clock = Clock()
    spoke_at = [0.0]
    status = script.Status(clock)  # its thread does not run: the test says when it draws
    with status.job("llama.cpp", "building"):
        while clock.now < 60:
            clock.now += script.REDRAW_S
            status.show()
            if capsys.readouterr().err:
                spoke_at.append(clock.now)
    assert max(b - a for a, b in itertools.pairwise(spoke_at)) <= 5.0
    assert len(spoke_at) < 20  # and it is no flood


def test_jobs_side_by_side_share_the_line(script: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    clock = Clock()
    status = script.Status(clock)
    with status.job("llama.cpp", "building") as tell, status.job("models", "fetching") as other:
        tell("3 of 80 files")
        other("5 MB of 9 MB")
        clock.now = 65.0
        status.show()
    assert capsys.readouterr().err.splitlines()[-1] == "setup: 1:05 llama.cpp 3 of 80 files; models 5 MB of 9 MB"


def test_a_venv_without_pip_is_made_again(
    script: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    venv = tmp_path / ".venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", venv], check=True)
    monkeypatch.setattr(script, "VENV", venv)
    monkeypatch.setattr(script, "PYTHON", venv / "bin" / "python")
    script.make_venv(script.Status())
    assert "it is not whole" in capsys.readouterr().err
    assert subprocess.run([venv / "bin" / "python", "-m", "pip", "--version"], capture_output=True).returncode == 0
    script.make_venv(script.Status())
    assert capsys.readouterr().err == ""  # what is whole is left alone


def test_a_failing_command_is_quoted_with_the_way_out(script: ModuleType) -> None:
    code = "import sys; print('\\n'.join(map(str, range(99)))); sys.exit('no such compiler')"
    with pytest.raises(script.Failed) as caught:
        script.run([sys.executable, "-c", code], hint="install one")
    assert caught.value.message.endswith("  98\n  no such compiler")
    assert "  9\n" not in caught.value.message  # the last lines only
    assert caught.value.hint == "install one"


def test_a_failure_beside_the_build_is_not_lost(script: ModuleType) -> None:
    def fail() -> None:
        raise script.Failed("no index", "look at the connection")

    done = []
    with pytest.raises(script.Failed, match="no index"), script.meanwhile(lambda: done.append("packages"), fail):
        done.append("build")
    assert sorted(done) == ["build", "packages"]


def test_compiler_and_sources_are_taken_by_their_digest(
    script: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every call of pip that fetches what is compiled or compiles names a file of pinned digests."""
    pinned = []

    def pip(command: str, *arguments: str | Path, **options: object) -> None:
        assert "--require-hashes" in arguments
        pinned.append(Path(arguments[arguments.index("-r") + 1]).read_text())
        for option in {"--target", "--wheel-dir"} & set(arguments):
            Path(arguments[arguments.index(option) + 1]).mkdir()

    monkeypatch.setattr(script, "pip", pip)
    killed, running = tmp_path / "wheels" / "building.old", tmp_path / "wheels" / "building.now"
    for folder in (killed, running):
        folder.mkdir(parents=True)
    os.utime(killed, (0, 0))
    monkeypatch.setenv("SPECLLM_WHEELS_DIR", str(tmp_path / "wheels"))
    script.compile_missing(script.Status(), "0.3.36", "cpu", "zig", wheels=tmp_path / "wheels" / "key", library=None)
    assert pinned == [
        f"{build_flags.ZIG_REQUIREMENT} --hash=sha256:{build_flags.ZIG_SHA256}\n",
        f"llama-cpp-python==0.3.36 --hash=sha256:{build_flags.SOURCES_SHA256}\n",
    ]
    left = {path.name for path in (tmp_path / "wheels").iterdir()}
    assert left == {"key", running.name}  # nothing half made, and somebody else's is left alone


def test_kernels_that_do_not_compile_are_told_and_stop_nothing(
    script: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    compiler = script.kernels.named_compiler("sh -c 'echo out of registers >&2; exit 1' --")
    script.build_kernels(script.Status(), script.Tools({}, compiler), tmp_path / "kernels.so")
    script.build_kernels(script.Status(), script.Tools({}, None), tmp_path / "kernels.so")
    said = capsys.readouterr().err
    assert "out of registers" in said
    assert "no C++ compiler for specllm's kernels" in said
    assert list(tmp_path.iterdir()) == []


def test_the_binding_is_pinned_to_one_version(script: ModuleType) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert [name for name in project["dependencies"] if name.startswith(f"{script.BINDING}==")]


@pytest.mark.parametrize(
    ("variables", "said"),
    [
        ({"SPECLLM_BACKEND": "quantum"}, "SPECLLM_BACKEND=quantum is not a backend"),
        ({"SPECLLM_CPU": "pentium"}, "SPECLLM_CPU"),
    ],
)
def test_a_wrong_variable_is_an_error_before_anything_is_made(
    script: ModuleType, variables: dict[str, str], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(script.Failed, match=said):
        script.set_up(script.Status(), [], is_rebuilt=False)


def test_models_that_cannot_be_fetched_keep_nothing_from_being_installed(
    script: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Offline the build in the cache is installed and tested; only then the failure is told."""
    done: list[str] = []

    def run(command: Sequence[str | Path], **options: object) -> None:
        done.append("smoke" if "--smoke" in command else "pull")
        if "pull" in command:
            raise script.Failed("no such host", "try again")

    def pip(command: str, *arguments: object, **options: object) -> None:
        done.append(command)

    key = tmp_path / "wheels" / "key"
    key.mkdir(parents=True)
    (key / "llama.whl").touch()
    venv = tmp_path / ".venv"
    venv.mkdir()
    monkeypatch.setenv("SPECLLM_WHEELS_DIR", str(key.parent))
    for name, stand_in in {"VENV": venv, "make_venv": lambda status: None, "run": run, "pip": pip}.items():
        monkeypatch.setattr(script, name, stand_in)
    monkeypatch.setattr(script.build_flags, "build_key", lambda *facts: "key")
    monkeypatch.setattr(script.kernels, "IS_SUPPORTED", False)
    with pytest.raises(script.Failed, match="no such host"):
        script.set_up(script.Status(), ["a-model"], is_rebuilt=False)
    assert done == ["install", "install", "pull", "install", "install", "smoke"]
    assert (venv / "setup-stamp").exists()
