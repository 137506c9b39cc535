"""`specllm store`: data on stdout, all else on stderr, one JSON document, Ctrl-C."""

from __future__ import annotations

import json
import signal
import subprocess
import time
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from specllm.app.store.stores import store_folder
from specllm.cli.store import app
from specllm.errors import ConfigError
from tests.cli.conftest import COMMAND


@pytest.fixture
def project(tmp_path: Path) -> Path:
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "a.py").write_text("def first(one):\n    return one + 1\n")
    (folder / ".env").write_text("A=1\n")
    return folder


def run(*arguments: str | Path) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def result_of(*arguments: str | Path) -> dict[str, object]:
    document = json.loads(run(*arguments, "--json").stdout)
    assert document["ok"]
    assert document["command"] == f"store {arguments[0]}"
    return document["result"]


def test_a_store_from_its_first_file_to_its_end(project: Path, llama_gguf: Path) -> None:
    added = run("add", project, "-m", llama_gguf)
    assert added.stdout == ""
    assert "default: 1 files (1 new)" in added.stderr
    assert f"left out: 1 that look like secrets: {project / '.env'}" in added.stderr
    listing = run("list").stdout.splitlines()
    assert len(listing) == 2
    assert listing[1].startswith("default  files          1")
    told = run("stats").stdout
    assert f"from {project}" in told
    folder = run("path").stdout.strip()
    assert [file.suffix for file in Path(folder).iterdir() if file.suffix] == [".index"]
    gone = run("rm", "default")
    assert gone.stdout == ""
    assert not Path(folder).exists()
    assert "no stores yet" in run("list").stderr


def test_each_command_has_a_document(project: Path, llama_gguf: Path) -> None:
    added = result_of("add", project, "-m", llama_gguf, "--store", "mine")
    assert added["n_new"] == 1
    assert added["skipped"] == {"secret": [str(project / ".env")]}
    (store,) = result_of("list")["stores"]  # type: ignore[misc]
    assert store == result_of("stats", "mine")
    assert store["parts"][0]["roots"] == [str(project)]
    assert result_of("path", "mine") == result_of("rm", "mine")
    assert result_of("list") == {"stores": []}


@pytest.mark.parametrize("command", ["stats", "path", "rm"])
def test_a_store_that_is_not_there_is_an_error(command: str) -> None:
    error = run(command, "missing").exception
    assert isinstance(error, ConfigError)
    assert error.hint == "specllm store add PATH.. --store missing"


def test_ctrl_c_in_a_large_folder_leaves_no_store_and_no_traceback(tmp_path: Path, llama_gguf: Path) -> None:
    """250 files of 200 kB take several seconds to read."""
    folder = tmp_path / "large"
    folder.mkdir()
    text = "".join(f"value_{number} = {number}\n" for number in range(10_000))
    for number in range(250):
        (folder / f"{number}.py").write_text(text)
    command = [*COMMAND, "store", "add", str(folder), "-m", str(llama_gguf)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    lock = store_folder("default") / "lock"
    while not lock.exists() and process.poll() is None:
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    stdout, stderr = process.communicate(timeout=30)
    assert (process.returncode, stdout, stderr) == (130, "", "error: interrupted\n")
    assert [file.name for file in lock.parent.iterdir()] == ["lock"]
    assert "no stores yet" in run("list").stderr
