"""What is not edited keeps every byte: encodings, byte order marks, line ends of all kinds, a missing last newline."""

from __future__ import annotations

import codecs
import os
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from specllm.app.text_file import MAX_BYTES, TextFile, read_text_file, split_lines
from specllm.errors import ConfigError


@pytest.fixture
def read(tmp_path: Path):
    def read(data: bytes, encoding: str | None = None, name: str = "file.txt") -> TextFile:
        (tmp_path / name).write_bytes(data)
        return read_text_file(tmp_path / name, encoding)

    return read


TEXT = st.text(alphabet=st.sampled_from("ab \t\r\n\x0b\x0c\x1c\x85\u2028é鲸🌊`"), max_size=40)


@given(text=TEXT)
@example("")
@example("\r")
@example("a\r\nb\nc\rd")
@example("a\n\r\n\r")
def test_lines_and_ends_are_the_text(text: str) -> None:
    lines, ends = split_lines(text)
    assert "".join(line + end for line, end in zip(lines, ends, strict=True)) == text
    assert all(ends[:-1])


@given(text=TEXT, encoding=st.sampled_from(["utf-8", "utf-8-sig", "utf-16", "utf-32"]))
def test_an_edit_that_changes_nothing_changes_no_byte(text: str, encoding: str, tmp_path_factory) -> None:
    path = tmp_path_factory.getbasetemp() / "file"
    data = text.encode(encoding)
    path.write_bytes(data)
    file = read_text_file(path)
    assert file.with_lines(0, len(file.lines), file.lines) == data
    new, _ = split_lines(file.text)
    assert file.with_lines(0, len(file.lines), new) == data
    assert file.decoded(data) == text.removeprefix("\ufeff")


@pytest.mark.parametrize(
    ("old", "first", "last", "new", "expected"),
    [
        (b"a\r\nb\r\n", 0, 2, ["a", "x", "b"], b"a\r\nx\r\nb\r\n"),
        (b"a\r\nb", 0, 2, ["a", "b", "c"], b"a\r\nb\r\nc"),  # no last newline: still none
        (b"a\nb", 1, 2, [], b"a"),
        (b"a\nb\n", 0, 2, [], b""),
        (b"", 0, 0, ["x"], b"x\n"),
        (b"a", 0, 1, ["x", "y"], b"x\ny"),
        (b"a\r\nb\nc\r\n", 0, 3, ["a", "b", "new", "c"], b"a\r\nb\nnew\r\nc\r\n"),  # mixed: each line keeps its own
        (b"a\r\nb\nc\r\n", 0, 3, ["a", "B", "c"], b"a\r\nB\nc\r\n"),  # also one that changed in its place
        (b"a\r\nb\nc\r\nb\nb\n", 3, 4, ["b", "b"], b"a\r\nb\nc\r\nb\nb\nb\n"),  # outside of a region nothing moves
        (b"a\rb\r", 0, 2, ["a", "x"], b"a\rx\r"),
        (b"\n\n\n", 0, 3, ["", "x", ""], b"\nx\n\n"),
    ],
)
def test_line_ends_stay(read, old: bytes, first: int, last: int, new: list[str], expected: bytes) -> None:
    assert read(old).with_lines(first, last, new) == expected


@pytest.mark.parametrize(
    ("data", "encoding", "mark", "is_guessed"),
    [
        (b"plain", "utf-8", b"", False),
        ("wörld 🌊".encode(), "utf-8", b"", False),
        ("wörld".encode("utf-8-sig"), "utf-8", codecs.BOM_UTF8, False),
        ("wörld".encode("utf-16"), "utf-16-le", codecs.BOM_UTF16_LE, False),
        (codecs.BOM_UTF16_BE + "wörld".encode("utf-16-be"), "utf-16-be", codecs.BOM_UTF16_BE, False),
        ("wörld".encode("utf-32"), "utf-32-le", codecs.BOM_UTF32_LE, False),
        ("wörld € “x”".encode("cp1252"), "cp1252", b"", True),
        (b"w\xf6rld \x81", "latin-1", b"", True),
        ("#!/bin/python\n# -*- coding: koi8-r -*-\nд = 1".encode("koi8-r"), "koi8-r", b"", False),
        (b"# coding: nonsense\n\xf6", "cp1252", b"", True),
    ],
)
def test_the_encoding_is_found(read, data: bytes, encoding: str, mark: bytes, is_guessed: bool) -> None:
    file = read(data)
    assert (file.encoding, file.mark, file.is_guessed) == (encoding, mark, is_guessed)
    assert file.with_lines(0, len(file.lines), file.lines) == data


def test_an_encoding_may_be_named(read) -> None:
    data = "д\n".encode("utf-16-le")
    assert read(data, "UTF-16LE").lines == ("д",)
    assert read("д\n".encode("utf-16"), "utf-16").with_lines(0, 1, ["ж"]) == "ж\n".encode("utf-16")
    assert read("д\n".encode("utf-8-sig"), "utf8").mark == codecs.BOM_UTF8
    assert read("д".encode("cp866"), "cp866").lines == ("д",)


@pytest.mark.parametrize(
    ("data", "encoding", "message"),
    [
        (b"\x7fELF\x00\x01", None, "is binary"),
        (b"\x01\xff\xfe", None, "is binary"),
        ("no mark".encode("utf-16-le"), None, "is binary"),
        (codecs.BOM_UTF16_LE + b"\x00\xd8", None, "is not utf-16-le"),
        (codecs.BOM_UTF16_LE + b"a", None, "is not utf-16-le"),
        (b"\xff", "utf-8", "is not utf-8"),
        (b"x", "klingon", "no encoding 'klingon'"),
        (b"x", "base64", "no encoding 'base64'"),
        (b"x" * (MAX_BYTES + 1), None, "has 4,194,305 bytes, more than the 4,194,304"),
    ],
)
def test_what_is_no_text_is_refused(read, data: bytes, encoding: str | None, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as raised:
        read(data, encoding)
    assert raised.value.hint


def test_what_is_no_file_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "nowhere").symlink_to("gone")
    for name, message in [
        ("", "is a folder"), ("pipe", "not a regular file"), ("missing", "No such file"), ("nowhere", "No such file"),
    ]:  # fmt: skip
        with pytest.raises(ConfigError, match=message):
            read_text_file(tmp_path / name)
