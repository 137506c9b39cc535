"""A half-made set-up: specllm is installed and llama-cpp-python is not yet."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("command", [["generate", "hi"], ["models", "fit", "any.gguf"], ["doctor"]])
def test_what_is_missing_is_named_with_the_next_step(command: list[str], tmp_path: Path, llama_gguf: Path) -> None:
    command = [str(llama_gguf) if word == "any.gguf" else word for word in command]
    hide = "import sys; sys.modules['llama_cpp'] = None; from specllm.cli.main import run; run(sys.argv[1:])"
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "SPECLLM_MODELS_DIR": str(tmp_path)}
    more = ["-m", str(llama_gguf)] if command[0] == "generate" else []
    done = subprocess.run(
        [sys.executable, "-c", hide, *command, *more], capture_output=True, text=True, env=environment, cwd=tmp_path
    )
    assert "a bug in specllm" not in done.stdout + done.stderr
    assert "llama-cpp-python" in done.stdout + done.stderr
    assert "scripts/setup" in done.stdout + done.stderr
