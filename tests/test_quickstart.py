"""What the quick start runs once everything is set up: the set-up and the command itself are stand-ins that note it."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPTS = Path(__file__).parents[1] / "scripts"
STAND_IN = """#!/bin/sh
printf '%s\\n' "$@" > "$NOTES"
test ! -f stock.py || cp stock.py "$NOTES.stock"
pwd > "$NOTES.folder"
exit "$CODE"
"""


class Started:
    def __init__(self, folder: Path, *question: str, code: int = 0) -> None:
        (folder / "scripts").mkdir()
        (folder / ".venv" / "bin").mkdir(parents=True)
        for name in ("quickstart", "example.py"):
            shutil.copy(SCRIPTS / name, folder / "scripts" / name)
        for file, text in ((folder / "scripts" / "setup", "#!/bin/sh\n"), (folder / ".venv/bin/specllm", STAND_IN)):
            file.write_text(text, encoding="utf-8")
            file.chmod(0o755)
        environment = {"PATH": "/usr/bin:/bin", "NOTES": str(folder / "notes"), "CODE": str(code)}
        done = subprocess.run(
            ["bash", folder / "scripts" / "quickstart", *question],
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        self.code, self.said = done.returncode, done.stderr
        self.arguments = (folder / "notes").read_text(encoding="utf-8").splitlines()
        self.folder = Path((folder / "notes.folder").read_text(encoding="utf-8").strip())
        self.stock = folder / "notes.stock"


def test_it_edits_a_copy_of_the_example_that_is_gone_afterwards(tmp_path: Path) -> None:
    started = Started(tmp_path)
    command, file, instruction, *options = started.arguments
    assert (started.code, command, file, options) == (0, "edit", "stock.py", ["--dry-run"])
    assert f'$ specllm edit stock.py "{instruction}" --dry-run' in started.said
    assert started.stock.read_bytes() == (SCRIPTS / "example.py").read_bytes()
    assert not started.folder.exists()


def test_a_question_is_asked_instead(tmp_path: Path) -> None:
    started = Started(tmp_path, "What is", "2 * 3?")
    assert (started.code, started.arguments) == (0, ["generate", "What is 2 * 3?"])


@pytest.mark.parametrize("question", [[], ["hi"]], ids=["edit", "question"])
def test_it_ends_with_what_to_try_next(tmp_path: Path, question: list[str]) -> None:
    said = Started(tmp_path, *question).said
    _, _, further = said.partition("What to try next")
    assert further.count("  specllm ") == 3
    assert all(len(line) < 80 for line in said.splitlines())


def test_a_failure_is_its_own(tmp_path: Path) -> None:
    started = Started(tmp_path, code=3)
    assert started.code == 3
    assert "What to try next" not in started.said
    assert not started.folder.exists()


def test_the_example_works() -> None:
    done = subprocess.run([sys.executable, SCRIPTS / "example.py"], capture_output=True, text=True, check=True)
    assert done.stdout.endswith("to order: stapler\n")
