"""What is put back looks as what the model wrote, and an untouched line is what it was."""

from __future__ import annotations

import unicodedata
from pathlib import PurePath

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specllm.app.edit.asked import wishes
from specllm.app.edit.restore import looks, restored, without_name

LINE = st.text(alphabet="ab{}'\"- \t\u00a0\u3000\u201c\u2019\u2013\u2026\u200b\ufe0f\u00e9e\u0301\ud55c.", max_size=12)
LINES = st.lists(LINE, max_size=12)
ALL = wishes("Reformat; quotes; unicode")


@given(old=LINES, new=LINES)
def test_nothing_visible_is_put_back(old: list[str], new: list[str]) -> None:
    for asked in (frozenset(), frozenset({"marks"}), frozenset({"blanks"}), frozenset({"characters"})):
        lines, changed = restored(old, new, old, asked)
        assert [*map(looks, lines)] == [*map(looks, new)]
        assert changed == [n for n, line in enumerate(new) if lines[n] != line]


@given(old=LINES, new=LINES)
def test_what_was_all_asked_for_is_left_as_it_is(old: list[str], new: list[str]) -> None:
    lines, _ = restored(old, new, old, ALL)
    assert [line.split() for line in lines] == [line.split() for line in new]


def damaged(line: str, unit: int) -> str:
    """As models write it: tabs, typography, accents and the end of the line their own way."""
    line = line.replace("\t", " " * unit).rstrip().replace("\u00a0", " ").replace("\u200b", "")
    return unicodedata.normalize("NFC", line.translate(str.maketrans("\u201c\u2019\u2013", "\"'-")))


@given(
    depths=st.lists(st.integers(0, 4), min_size=2, max_size=20),
    unit=st.sampled_from([2, 4, 8]),
    changed=st.integers(0, 19),
    inner=st.sampled_from(["x", "\u201cit\u2019s\u201d", "a\u00a0b \u2013 e\u0301", "a\u200bb  "]),
)
def test_a_file_with_tabs_and_typography_comes_back(depths: list[int], unit: int, changed: int, inner: str) -> None:
    old = ["\t" * depth + f"{n} {inner}" for n, depth in enumerate(depths)]
    new = [damaged(line, unit) for line in old]
    if (at := changed % len(old)) > 0 and any(depth for n, depth in enumerate(depths) if n != at):
        new[at] = " " * unit * depths[at] + "other"
        old[at] = "\t" * depths[at] + "was this"
    lines, _ = restored(old, new, old, frozenset())
    wanted = [line if damaged(line, unit) == new[n] else "\t" * depths[n] + "other" for n, line in enumerate(old)]
    assert lines == wanted


@pytest.mark.parametrize(
    ("old", "new", "wanted"),
    [
        (["\ta", "\tb"], ["\ta", "\tif b:", "\t\tb"], ["\ta", "\tif b:", "\t\tb"]),  # nested deeper on purpose
        (["    a", "    b"], ["        a", "    b"], ["        a", "    b"]),
        (["a", "b"], ["a", "    c"], ["a", "    c"]),  # a file that says nothing about indentation
        (["\ta"], ["    b"], ["\tb"]),
        (
            ["f:", "\ta", "", "X = \\", "    b"],
            ["f:", "    a2", "", "X = \\", "    b"],
            ["f:", "\ta2", "", "X = \\", "    b"],
        ),
        (["f:", "\ta", "g:", "\tb"], ["f:", "  a", "g:", "  b", "h:", "  c"], ["f:", "\ta", "g:", "\tb", "h:", "\tc"]),
        (["  a", "    b"], ["  a", "\t\tb", "\tc"], ["  a", "    b", "  c"]),
        (["\u00a0\u00a0a"], ["  a"], ["\u00a0\u00a0a"]),
        (["x--"], ["x-"], ["x-"]),  # that shows
        (["'a'"], ['"a"'], ['"a"']),
        (["a  "], ["b"], ["b"]),
        (["", "  ", "a"], ["", "", "a"], ["", "  ", "a"]),
    ],
)
def test_indentation_is_written_as_the_file_writes_it(old: list[str], new: list[str], wanted: list[str]) -> None:
    assert restored(old, new, old, frozenset())[0] == wanted


@pytest.mark.parametrize(
    ("instruction", "asked"),
    [
        ("Rename Config to Settings in the namespace", {"name"}),
        ("Convert tabs to spaces", {"blanks", "indentation", "less"}),
        ("Fix add, but do not touch the quotes", set()),
        ("Fix add. Keep the indentation, and leave trailing blanks alone", set()),
        ("Keep only the first function", {"less"}),
        ("Change the colour of the button", set()),
    ],
)
def test_what_an_instruction_names(instruction: str, asked: set[str]) -> None:
    assert wishes(instruction) == asked


@pytest.mark.parametrize(
    "first", ["import t.py", "# set.py", "# see t.py", "t.py = 1", "# t.py is a test", "open('t.py')", ""]
)
def test_a_line_that_says_more_than_the_name_stays(first: str) -> None:
    assert without_name(["x"], [first, "x"], PurePath("src/t.py")) == [first, "x"]
    assert without_name([], ["# t.py", "x"], PurePath("t.py")) == ["# t.py", "x"]  # a new file may say its name


def test_names_of_all_kinds_are_known() -> None:
    for name in ("__init__.py", ".env", "Makefile", "-x.py", "#a#", "a b.c++", "été.md"):
        for form in ("# {}", "{}", "// src/{}", "<!-- {} -->", "`{}`", "// C:\\src\\{}", "# Path: ./{}"):
            assert without_name(["x"], [form.format(name), "x"], PurePath(name)) == ["x"], form.format(name)
    assert without_name(["x"], ["# my files/t.py", "", "x"], PurePath("my files/t.py")) == ["x"]
