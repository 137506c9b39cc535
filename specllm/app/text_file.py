"""A text file as bytes and as lines, so that what is not edited keeps every byte: encoding, byte order mark, line ends."""

from __future__ import annotations

import codecs
import difflib
import os
import re
import stat
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from specllm.errors import ConfigError

MAX_BYTES = 4 * 2**20  # a million tokens of code: no context holds that

_LINE_END = re.compile(r"\r\n|\n|\r")
_MARKS = (  # the longer ones first: UTF-32's begins with UTF-16's
    (codecs.BOM_UTF8, "utf-8"), (codecs.BOM_UTF32_LE, "utf-32-le"), (codecs.BOM_UTF32_BE, "utf-32-be"),
    (codecs.BOM_UTF16_LE, "utf-16-le"), (codecs.BOM_UTF16_BE, "utf-16-be"),
)  # fmt: skip
_NOT_IN_TEXT = re.compile(rb"[\x00-\x06\x0e-\x1a\x1c-\x1f]")
_DECLARED = re.compile(rb"^[ \t\f]*#.*?coding[:=][ \t]*([-\w.]+)", re.ASCII)  # PEP 263, in one of the first two lines


@dataclass(frozen=True, slots=True)
class TextFile:
    """What was read: `mark + encode(line + end, ..)` is `data` again."""

    path: Path
    data: bytes
    encoding: str  # Python's name for it, without a byte order mark
    mark: bytes
    lines: tuple[str, ...]
    ends: tuple[str, ...]  # the line end behind each; empty behind a last line that has none
    is_guessed: bool = False  # the encoding is neither UTF-8 nor declared

    @property
    def text(self) -> str:
        """The lines for a model: ends are newlines, a missing last one stays missing."""
        text = "".join(f"{line}\n" for line in self.lines)
        return text.removesuffix("\n") if self.ends and not self.ends[-1] else text

    def decoded(self, data: bytes) -> str:
        """Such a file's bytes as text with its line ends; raises UnicodeDecodeError."""
        return data.removeprefix(self.mark).decode(self.encoding)

    def with_lines(self, first: int, last: int, new: Sequence[str]) -> bytes:
        """The file's bytes with lines `first` up to `last` (from 0, without the last) replaced.

        A line that stays keeps its end, a new one takes the end that most lines have. Raises UnicodeEncodeError.
        """
        usual = self.usual_end
        ends = _aligned(self.lines[first:last], self.ends[first:last], new, usual)
        lines = [*self.lines[:first], *new, *self.lines[last:]]
        ends = [end or usual for end in (*self.ends[:first], *ends, *self.ends[last:])]
        if ends and self.ends and not self.ends[-1]:
            ends[-1] = ""
        text = "".join(f"{line}{end}" for line, end in zip(lines, ends, strict=True))
        return self.mark + text.encode(self.encoding)

    @property
    def usual_end(self) -> str:
        counted = Counter(end for end in self.ends if end)
        return counted.most_common(1)[0][0] if counted else "\n"


def split_lines(text: str) -> tuple[list[str], list[str]]:
    """The lines and what ends each: a line feed, a carriage return or both; nothing else separates lines."""
    lines, ends, at = [], [], 0
    for match in _LINE_END.finditer(text):
        lines.append(text[at : match.start()])
        ends.append(match.group())
        at = match.end()
    if at < len(text):
        lines.append(text[at:])
        ends.append("")
    return lines, ends


def _aligned(old: Sequence[str], ends: Sequence[str], new: Sequence[str], usual: str) -> list[str]:
    """The line end of each new line: that of the old line it is or takes the place of."""
    if all(end in (usual, "") for end in ends):
        return [usual] * len(new)
    aligned = [usual] * len(new)
    for kind, a, a_end, b, b_end in difflib.SequenceMatcher(None, old, new, autojunk=False).get_opcodes():
        if kind in ("equal", "replace"):
            n = min(a_end - a, b_end - b)
            aligned[b : b + n] = [end or usual for end in ends[a : a + n]]
    return aligned


def read_text_file(path: Path, encoding: str | None = None) -> TextFile:
    """Reads a regular file of text; raises ConfigError with the next step for anything else."""
    data = _read(path)
    mark, name, is_guessed = _detected(path, data) if encoding is None else (*_named(data, encoding), False)
    try:
        text = data.removeprefix(mark).decode(name)
        is_same = text.encode(name) == data.removeprefix(mark)
    except UnicodeError as error:
        raise ConfigError(f"{path} is not {name}: {error}", "name its encoding with --encoding") from None
    if not is_same or "\0" in text:
        raise ConfigError(f"{path} is not text in {name}", "name its encoding with --encoding")
    lines, ends = split_lines(text)
    return TextFile(path, data, name, mark, tuple(lines), tuple(ends), is_guessed)


def _read(path: Path) -> bytes:
    try:
        mode = path.stat().st_mode
        if stat.S_ISDIR(mode):
            raise ConfigError(f"{path} is a folder", "name one file")
        if not stat.S_ISREG(mode):
            raise ConfigError(f"{path} is not a regular file", "name a file with text")
        with path.open("rb") as file:
            data = file.read(MAX_BYTES + 1)
    except OSError as error:
        hint = "check the path; to begin a new file, make it empty first" if not os.path.lexists(path) else "check it"
        raise ConfigError(f"cannot read {path}: {error.strerror}", hint) from None
    if len(data) > MAX_BYTES:
        size = path.stat().st_size
        raise ConfigError(
            f"{path} has {size:,} bytes, more than the {MAX_BYTES:,} that a context could ever hold",
            "split it, and edit a part",
        )
    return data


def _named(data: bytes, encoding: str) -> tuple[bytes, str]:
    try:
        name = codecs.lookup(encoding).name
        "".encode(name)  # `base64` and the like are codecs too, but not of text
    except (LookupError, UnicodeError):  # the latter from a name that is no text, and from the codec `undefined`
        raise ConfigError(f"no encoding {encoding!r}", "use a name such as utf-8, cp1252 or utf-16-le") from None
    wide = {"utf-8-sig": "utf-8", "utf-16": "utf-16-le", "utf-32": "utf-32-le"}.get(name, name)
    for mark, marked in _MARKS:
        if data.startswith(mark) and marked.startswith(wide.removesuffix("-le").removesuffix("-be")):
            return mark, marked
    return b"", wide


def _detected(path: Path, data: bytes) -> tuple[bytes, str, bool]:
    """Byte order mark, encoding, and whether that is a guess."""
    for mark, name in _MARKS:
        if data.startswith(mark):
            return mark, name, False
    if b"\0" in data:
        raise ConfigError(f"{path} is binary", "name a file with text; UTF-16 without its mark needs --encoding")
    try:
        data.decode("utf-8")
        return b"", "utf-8", False
    except UnicodeDecodeError:
        if _NOT_IN_TEXT.search(data):
            raise ConfigError(f"{path} is binary", "name a file with text, or its encoding with --encoding") from None
    if declared := _declared(data):
        return b"", declared, False
    try:
        data.decode("cp1252")
        return b"", "cp1252", True
    except UnicodeDecodeError:
        return b"", "latin-1", True  # every byte is a character there, so nothing gets lost


def _declared(data: bytes) -> str | None:
    for line in data.split(b"\n", 2)[:2]:
        if match := _DECLARED.match(line):
            try:
                name = codecs.lookup(match[1].decode("ascii")).name
                data.decode(name)
                return name
            except (LookupError, UnicodeDecodeError):
                return None
    return None
