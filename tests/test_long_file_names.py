"""Whatever writes a file of the user's takes the longest name that file systems allow, 255 bytes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from specllm.app.chat.transcript import Transcript, save
from specllm.app.trace.writer import TraceWriter
from specllm.models.disk import write_whole
from specllm.ui.report import write_report


def save_twice(path: Path) -> None:
    for may_replace in (False, True):
        save(path, Transcript(None, [], "hello"), "m", may_replace=may_replace)


def trace(path: Path) -> None:
    with TraceWriter(path, str):
        pass


WRITERS: dict[str, Callable[[Path], None]] = {
    "a conversation": save_twice,
    "a trace": trace,
    "a report": lambda path: write_report({}, path),
    "settings": lambda path: write_whole(path, b"x"),
}


@pytest.mark.parametrize("writer", WRITERS)
@pytest.mark.parametrize("name", ["n" * 255, "🌊" * 63 + "abc"], ids=["letters", "waves"])
def test_a_file_is_written_under_the_longest_name(writer: str, name: str, tmp_path: Path) -> None:
    WRITERS[writer](tmp_path / name)
    assert [path.name for path in tmp_path.iterdir() if path.name != "home"] == [name]
