"""Which instructions are about line ends, and the commands that follow them."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from specllm.app.edit.ends import command_for_ends, is_about_ends_alone

ALONE = [
    ("Add a final newline.", b"a\nb", b"a\nb\n"),
    ("Add a newline at the end of the file", b"a\n", b"a\n"),
    ("Make sure that the file ends in a newline", b"a", b"a\n"),
    ("remove the final newline", b"a\n\n", b"a\n"),
    ("Remove the newline at EOF", b"a\r\n", b"a"),
    ("Convert to CRLF", b"a\nb\r\nc", b"a\r\nb\r\nc"),
    ("convert the file from CRLF to LF", b"a\r\nb\n", b"a\nb\n"),
    ("Convert to LF from CRLF", b"a\r\n", b"a\n"),
    ("Change all line endings to Windows style", b"a\n", b"a\r\n"),
    ("Windows line endings, please", b"a\n", b"a\r\n"),
    ("Use Unix line-endings", b"a\r\n", b"a\n"),
]


@pytest.mark.parametrize(("instruction", "old", "new"), ALONE)
def test_the_command_does_what_is_asked(tmp_path: Path, instruction: str, old: bytes, new: bytes) -> None:
    assert is_about_ends_alone(instruction)
    command = command_for_ends(instruction, "-i b.txt")
    assert command is not None
    if shutil.which("perl") is None:
        pytest.skip("perl is not installed")
    (tmp_path / "-i b.txt").write_bytes(old)
    for _ in range(1 if "emove" in instruction else 2):
        subprocess.run(["sh", "-c", command], cwd=tmp_path, check=True)
    assert (tmp_path / "-i b.txt").read_bytes() == new


@pytest.mark.parametrize(
    ("instruction", "names_ends"),
    [
        ("Make the parser accept CRLF", True),
        ("Make sure that there is exactly one final newline", True),
        ("Add a missing line to the list", False),
        ("Print a newline", False),
        ("Remove the last line", False),
        ("Add a half line", False),
    ],
)
def test_other_instructions_are_for_the_model(instruction: str, names_ends: bool) -> None:
    command = command_for_ends(instruction, "f")
    assert (command is not None) == names_ends
    assert command is None or not is_about_ends_alone(instruction)
