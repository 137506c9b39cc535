"""The real command in a process of its own, on tiny models."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gguf
import pytest

from tests.cli.terminal import Terminal

COMMAND = (sys.executable, "-m", "specllm")
TIMEOUT_S = 60
# One thread: those of a computation wait for each other spinning, and elsewhere something always runs. A fixed draft
# length needs no calibration. Options that follow take their place.
QUICK = ("--threads", "1", "--seed", "1", "--raw", "--drafter", "lookup", "-k", "15")


@dataclass(frozen=True)
class Result:
    code: int
    stdout: str
    stderr: str

    @property
    def document(self) -> dict[str, Any]:
        """The one JSON document on stdout."""
        document = json.loads(self.stdout, parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))
        assert self.stdout.count("\n") == 1
        return document


def run(*arguments: str, stdin: Any = subprocess.DEVNULL, **options: Any) -> Result:
    """Runs `specllm ARGUMENTS`; `stdin` may be text to pipe in."""
    source = {"input": stdin.encode()} if isinstance(stdin, str) else {"stdin": stdin}
    options.setdefault("stdout", subprocess.PIPE)
    options["env"] = {**os.environ, **options.pop("env", {})}
    done = subprocess.run(
        [*COMMAND, *arguments], stderr=subprocess.PIPE, timeout=TIMEOUT_S, check=False, **source, **options
    )
    stdout = (done.stdout or b"").decode("utf-8", errors="surrogateescape")
    return Result(done.returncode, stdout, done.stderr.decode("utf-8", errors="surrogateescape"))


def run_all(calls: Sequence[Callable[[], Result]]) -> list[Result]:
    """The results of several independent runs, two at a time."""
    with ThreadPoolExecutor(2) as pool:
        return list(pool.map(lambda call: call(), calls))


@pytest.fixture(scope="session")
def broken_ggufs(synthetic_models: Path, llama_gguf: Path) -> Path:
    """A folder with files that are no model, by their defect."""
    folder = synthetic_models / "broken"
    folder.mkdir()
    whole = llama_gguf.read_bytes()
    (folder / "truncated.gguf").write_bytes(whole[: len(whole) // 2])
    (folder / "header.gguf").write_bytes(whole[:100])
    (folder / "magic.gguf").write_bytes(b"GGUX" + whole[4:])
    (folder / "text.gguf").write_text("once upon a time", encoding="utf-8")
    writer = gguf.GGUFWriter(folder / "architecture.gguf", "perceptron")
    writer.add_block_count(1)
    writer.add_embedding_length(64)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return folder


@pytest.fixture
def terminal(tmp_path: Path) -> Iterator[Terminal]:
    """A terminal of 80 x 24 with a shell in it, that knows `specllm`."""
    screen = Terminal(tmp_path)
    yield screen
    screen.close()
