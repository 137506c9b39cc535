"""`specllm models fit`: data on stdout, exit code 3 where the answer is no."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from specllm.app.memory import plan as memory_plan
from specllm.cli import envelope
from specllm.cli.models import app
from specllm.errors import AnswerIsNo, ConfigError


def run(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["fit", *arguments])


def test_every_part_of_target_and_draft_model_is_named(llama_gguf: Path, close_draft_gguf: Path) -> None:
    result = run(str(llama_gguf), "--draft-model", str(close_draft_gguf), "--ctx", "2048")
    assert result.exit_code == 0
    lines = result.stdout.splitlines()
    assert lines[0].split() == ["model", "context", "weights", "KV", "cache", "compute", "logits", "memory"]
    assert [line.split()[:2] for line in lines[1:3]] == [["llama", "2,048"], ["close_draft", "2,048"]]
    assert lines[3].startswith("fits: llama and close_draft need ")


def test_what_does_not_fit_is_no_and_has_a_plan(
    llama_gguf: Path, close_draft_gguf: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    arguments = (str(llama_gguf), "--draft-model", str(close_draft_gguf), "--ubatch", "16", "--ctx", "4096")
    need = json.loads(run(*arguments, "--json").stdout)["result"]["ram_bytes"]
    envelope.forget()
    monkeypatch.setattr(memory_plan, "available_memory_bytes", lambda: need - 1)
    result = run(*arguments)
    assert isinstance(result.exception, AnswerIsNo)
    assert "does not fit: llama and close_draft need" in result.stdout
    assert "  --drafter lookup" in result.stdout
    assert "--drafter lookup" in result.exception.hint
    document = json.loads(run(*arguments, "--json").stdout)
    assert (document["command"], document["ok"], document["result"]["fits"]) == ("models fit", False, False)
    steps = {step["flags"]: step["ram_bytes"] for step in document["result"]["steps"]}
    assert {flags.split()[0] for flags in steps} == {"--ctx", "--draft-ctx", "--drafter"}
    assert max(steps.values()) < need
    for flags in steps:
        assert run(*arguments, *flags.split()).exit_code == 0  # the plan works as it is written


def test_nothing_is_loaded(llama_gguf: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import llama_cpp

    def loaded(*_: object) -> None:
        raise AssertionError

    monkeypatch.setattr(llama_cpp, "llama_model_load_from_file", loaded)
    assert run(str(llama_gguf)).exit_code == 0


def test_a_bad_option_is_a_bad_option(llama_gguf: Path) -> None:
    assert isinstance(run(str(llama_gguf), "--kv-type", "q9").exception, ConfigError)
    assert isinstance(run(str(llama_gguf), "--gpu-layers", "some").exception, ConfigError)
