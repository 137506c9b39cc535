"""The diff: a patch where it is data, and the same lines with colours and marks where somebody looks at it."""

from __future__ import annotations

import difflib
import io
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specllm.ui.edit import _drawn_lines, _marks, draw_diff, patch_bytes, unified_diff

LINES = st.lists(
    st.sampled_from(["a\n", "b\r\n", "\n", "é鲸 🌊\n", "  x = 1\n", "\x0c\n", "\u2028y\n", "z\r"]), max_size=25
)
ENDS = st.sampled_from(["", "last", "last\n"])


@given(old=LINES, new=LINES, old_end=ENDS, new_end=ENDS)
def test_the_diff_is_what_difflib_says(old: list[str], new: list[str], old_end: str, new_end: str) -> None:
    before, after = "".join(old) + old_end, "".join(new) + new_end
    diff = unified_diff("f", before, after)
    split = [[line for line in re.split(r"(?<=\n)", text) if line] for text in (before, after)]
    expected = "".join(
        line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n"
        for line in difflib.unified_diff(*split, "a/f", "b/f")
    )
    assert diff == expected
    assert (diff == "") == (before == after)


@settings(max_examples=25, deadline=None)
@given(old=LINES, new=LINES, old_end=ENDS, new_end=ENDS)
def test_patch_takes_it(old: list[str], new: list[str], old_end: str, new_end: str, tmp_path_factory) -> None:
    if shutil.which("patch") is None:
        pytest.skip("patch is not installed")
    before, after = ("".join(lines) + end for lines, end in ((old, old_end), (new, new_end)))
    if not before or not after or before == after:  # patch removes and makes files where one side is empty
        return
    file: Path = tmp_path_factory.getbasetemp() / "patched"
    file.write_bytes(before.encode())
    subprocess.run(["patch", "--binary", "-s", str(file)], input=unified_diff("f", before, after).encode(), check=True)
    assert file.read_bytes() == after.encode()


@settings(deadline=None)  # the first one imports lexers
@given(old=LINES, new=LINES, old_end=ENDS, new_end=ENDS, name=st.sampled_from(["a.py", "a.md", "a", "a.json"]))
def test_colours_change_no_character(old: list[str], new: list[str], old_end: str, new_end: str, name: str) -> None:
    before, after = "".join(old) + old_end, "".join(new) + new_end
    shown = "".join(f"{text.plain}\n" for text in _drawn_lines(name, before, after)).replace("<U+2028>", "\u2028")
    plain = unified_diff(name, before, after).replace("\r\n", "\n").replace("\x0c", "␌").replace("z\rlast", "z␍last")
    assert shown.replace("␍", "").replace("\r", "") == plain.replace("␍", "").replace("\r", "")


def marked(old: str, new: str) -> tuple[list[str], list[str]]:
    removed, added = _marks([old], [new])
    return [old[a:b] for a, b in removed[0]], [new[a:b] for a, b in added[0]]


def test_the_words_that_changed_are_marked() -> None:
    assert marked("    return a - b\n", "    return a + b\n") == (["-"], ["+"])
    assert marked("def add(a, b):\n", "def add(a: int, b):\n") == ([], [":", " ", "int"])
    assert marked("x = 1\n", "completely different(words)\n") == ([], [])  # all of it changed: no marks


def test_marks_are_found_over_several_lines() -> None:
    old, new = ["a = one(\n", "    two)\n"], ["a = one(\n", "    two,\n", "    three)\n"]
    removed, added = _marks(old, new)
    assert removed == [[], []]
    assert [[line[a:b] for a, b in marks] for line, marks in zip(new, added, strict=True)] == [
        [], [","], ["    ", "three"],
    ]  # fmt: skip


def test_colours_and_marks_are_drawn_on_a_terminal_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    def drawn(**environment: str) -> str:
        class Screen(io.StringIO):
            def isatty(self) -> bool:
                return True

        monkeypatch.setattr(sys, "stdout", Screen())
        for name in ("NO_COLOR", "COLORTERM"):
            monkeypatch.delenv(name, raising=False)
        for name, value in {"TERM": "xterm-256color", **environment}.items():
            monkeypatch.setenv(name, value)
        draw_diff("a\x1b[2J.py", "x = 1\x1b]0;title\x07\n", "x = 2\n")
        return sys.stdout.getvalue()  # type: ignore[attr-defined]

    coloured = drawn()
    assert "\x1b[1;31m" in coloured
    assert "\x1b]0" not in coloured
    assert "␛[2J.py" in coloured
    for plain in (drawn(NO_COLOR="1"), drawn(TERM="dumb")):
        assert plain == "--- a/a␛[2J.py\n+++ b/a␛[2J.py\n@@ -1 +1 @@\n-x = 1␛]0;title␇\n+x = 2\n"


def test_a_patch_is_in_the_encoding_of_its_file() -> None:
    assert patch_bytes("ä", "cp1252") == b"\xe4"
    assert patch_bytes("ä", "utf-16-le") == patch_bytes("ä", "utf-8") == "ä".encode()


def test_a_name_cannot_break_the_header() -> None:
    assert unified_diff("/x/a\nb", "1", "2").startswith("--- a/x/a?b\n+++ b/x/a?b\n@@ -1 +1 @@\n")


def drawn(before: str, after: str, *, has_colour: bool = True) -> list[str]:
    return [text.plain for text in _drawn_lines("a.txt", before, after, has_colour=has_colour)][3:]


@pytest.mark.parametrize("has_colour", [True, False])
@pytest.mark.parametrize(
    ("before", "after", "shown"),
    [
        ("\ta\n", "    a\n", ["-\u2192\ta", "+    a"]),
        ("a \t \n", "a\n", ["-a\u00b7\u2192\t\u00b7", "+a"]),
        ("a\u00a0b\n", "a b\n", ["-a<U+00A0>b", "+a b"]),
        ("a\u3000b\u2009\n", "c\n", ["-a<U+3000>b<U+2009>", "+c"]),
        ("a\u200bb\ufeff\u00ad\n", "ab\n", ["-a<U+200B>b<U+FEFF><U+00AD>", "+ab"]),
        ("e\u0301\n", "\u00e9\n", ["-e<U+0301>", "+\u00e9"]),
        ("\u212b\n", "\u00c5\n", ["-<U+212B>", "+\u00c5"]),
        ("\u1112\u1161\n", "\ud558\n", ["-<U+1112><U+1161>", "+\ud558"]),
        ("\u2764\ufe0f\n", "\u2764\n", ["-\u2764<U+FE0F>", "+\u2764"]),
        ("\U0001f468\u200d\U0001f467 a\n", "\U0001f468\u200d\U0001f467 b\n",
         ["-\U0001f468\u200d\U0001f467 a", "+\U0001f468\u200d\U0001f467 b"]),  # what differs can be seen
        ("a\r\n", "a\n", ["-a\u240d", "+a"]),
        ("a\r\n", "b\r\n", ["-a", "+b"]),
        ("\tx \na\n", "\tx \nb\n", [" \tx ", "-a", "+b"]),  # nothing is marked in what stays
    ],
)  # fmt: skip
def test_what_cannot_be_seen_is_drawn_where_it_changes(
    before: str, after: str, shown: list[str], has_colour: bool
) -> None:
    assert drawn(before, after, has_colour=has_colour) == shown
    assert "\u2192" not in unified_diff("a.txt", before, after)
