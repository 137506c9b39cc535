"""Markdown as it streams: whole blocks, once."""

from __future__ import annotations

import re

import pytest

from specllm.ui.markdown import MarkdownStream

TEXT = "# Title\n\nsome *text*\nof two lines\n\n- one\n- two\n\n```python\nx = 1\n\ny = 2\n```\n\nthe end"


@pytest.fixture(autouse=True)
def _wide_window(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setenv("TERM", "dumb")


def drawn(*parts: str) -> list[str]:
    """The rows, without blanks at their ends."""
    stream = MarkdownStream()
    text = "".join([*(stream.push(part) for part in parts), stream.finish()])
    return [row.rstrip() for row in re.sub(r"\x1b\[[\d;]*m", "", text).split("\n")]


def test_headings_begin_where_the_text_does() -> None:
    assert drawn("# Title\n\ntext\n\n## Part\n")[::2] == ["Title", "text", "Part"]


@pytest.mark.parametrize("size", [1, 3, 7, len(TEXT)])
def test_it_is_the_same_in_whatever_pieces_it_comes(size: int) -> None:
    rows = drawn(*(TEXT[i : i + size] for i in range(0, len(TEXT), size)))
    assert [row.strip() for row in rows if row] == [
        "Title", "some text of two lines", "• one", "• two", "x = 1", "y = 2", "the end",
    ]  # fmt: skip


def test_a_block_is_drawn_as_soon_as_the_next_one_begins() -> None:
    stream = MarkdownStream()
    assert stream.push("one\n") == ""
    assert stream.push("\n") == ""
    assert stream.push("two") == ""
    assert stream.push("\n").strip() == "one"
    assert stream.finish().strip() == "two"
