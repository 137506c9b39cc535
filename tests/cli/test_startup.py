"""`--version` and `--help` import nothing heavy, and the shell can complete."""

from __future__ import annotations

import subprocess
import sys
from functools import partial

import pytest

from specllm import __version__
from tests.cli.conftest import COMMAND, run, run_all
from tests.test_architecture import FENCED, GROUND, ROOMS

# What takes time to import and is of no use here: every library but the one that reads options, every room but `cli`.
HEAVY = sorted(
    (FENCED.keys() - {"typer"}) | {f"specllm.{room}" for room in ROOMS.keys() - GROUND - {"cli", "__main__"}}
)


@pytest.mark.parametrize("arguments", [["--version"], ["--help"], ["generate", "-h"]], ids=" ".join)
def test_nothing_heavy_is_imported_to_say_what_there_is(arguments: list[str]) -> None:
    code = (
        "import sys, specllm.__main__ as entry\n"
        f"sys.argv = ['specllm', *{arguments}]\n"
        "try:\n    entry.main()\n"
        f"except SystemExit as done:\n    print(done.code, [m for m in {HEAVY} if m in sys.modules], file=sys.stderr)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stderr == "0 []\n"
    assert done.stdout.startswith(f"specllm {__version__}\n" if arguments == ["--version"] else "Usage: specllm")


def test_the_help_has_a_heading_for_every_group() -> None:
    result = run("generate", "--help", env={"COLUMNS": "80"})
    headings = [line for line in result.stdout.splitlines() if line.endswith(":") and not line.startswith(" ")]
    assert headings == [
        "Arguments:", "Request:", "Models:", "Drafting:", "Sampling:", "Structured output:", "Machine:",
        "Output:", "Other options:",
    ]  # fmt: skip
    assert max(map(len, result.stdout.splitlines())) <= 80


def test_the_shell_completes_options_choices_and_models() -> None:
    def complete(line: str) -> list[str]:
        words = line.split(" ")
        result = run(env={"_SPECLLM_COMPLETE": "complete_bash", "COMP_WORDS": line, "COMP_CWORD": str(len(words) - 1)})
        return result.stdout.split()

    options, drafters, models = run_all([
        partial(complete, "specllm generate --draft-l"),
        partial(complete, "specllm generate --drafter l"),
        partial(complete, "specllm generate --model qwen2.5-coder-1.5b"),
    ])  # fmt: skip
    assert options == ["--draft-length"]
    assert drafters == ["lookup"]
    assert set(models) == {"qwen2.5-coder-1.5b", "qwen2.5-coder-1.5b-instruct"}


def test_the_completion_script_is_shown() -> None:
    shell = subprocess.run(
        ["bash", "-c", '"$@"; true', "bash", *COMMAND, "--show-completion"], capture_output=True, text=True, check=True
    )
    assert "_SPECLLM_COMPLETE=complete_bash" in shell.stdout
