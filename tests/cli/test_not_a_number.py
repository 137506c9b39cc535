"""Models whose weights are no numbers any more, through real llama.cpp."""

from __future__ import annotations

import math
from functools import partial
from pathlib import Path

import pytest

from tests import synthetic
from tests.cli.conftest import QUICK, run, run_all


@pytest.fixture(scope="module")
def nan_gguf(synthetic_models: Path) -> Path:
    return synthetic.write_llama(synthetic_models / "nan.gguf", noise=math.nan)


def test_a_target_without_numbers_is_an_error_with_a_next_step(nan_gguf: Path) -> None:
    generate = ("generate", "-m", str(nan_gguf), *QUICK, "-n", "8", "hello")
    results = run_all([
        partial(run, *generate, *more)
        for more in (["-t", "0"], ["-t", "1"], ["-t", "0.7", "--json-object"], ["-t", "0", "--choice", "yes"])
    ])  # fmt: skip
    for result in results:
        assert result.code == 1
        assert result.stdout == ""
        assert result.stderr.startswith("error: the model computes no numbers here (nan): ")
        assert "hint: check the file with `specllm models verify`" in result.stderr


@pytest.mark.parametrize("choice", [("--drafter", "model", "-k", "3"), ("--drafter", "auto")])
def test_a_draft_model_without_numbers_changes_no_text(
    choice, llama_gguf: Path, nan_gguf: Path, tmp_path: Path
) -> None:
    generate = (
        "generate",
        "-m",
        str(llama_gguf),
        "--draft-model",
        str(nan_gguf),
        "-n",
        "60",
        "-t",
        "0",
        "-q",
        "def it(",
    )
    plain, drafted = (run(*generate, *QUICK[:-4], *more) for more in (("--drafter", "none"), choice))
    assert (plain.code, drafted.code) == (0, 0)
    assert drafted.stdout == plain.stdout
    told = "warning: the draft model is off from here on: it computes no numbers (nan)\n"
    # The controller may see no reason to ask the draft model.
    assert drafted.stderr in ([told, ""] if choice[-1] == "auto" else [told])
