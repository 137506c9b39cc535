"""Draws an edit: a unified diff, on a terminal with the language's colours and the changed words marked."""

from __future__ import annotations

import contextlib
import difflib
import re
import sys
from collections.abc import Collection, Iterator, Sequence
from typing import Literal

from rich.console import Console
from rich.syntax import Syntax
from rich.text import Text

from specllm.ui.console import harmless, has_colour
from specllm.ui.unseen import look, revealed

CONTEXT_LINES = 3
_NO_NEWLINE = "\\ No newline at end of file\n"
_WORD = re.compile(r"\w+|\s+|.", re.DOTALL)
_MAX_WORDS = 3000  # in one hunk; comparing takes their product
_LEAST_ALIKE = 0.4  # below that everything changed, and marks would be noise
_MOST_COLOURED = 400_000  # characters; highlighting takes a second per megabyte
_SIGN = {"-": "bold red", "+": "bold green"}
_CHANGED = {"-": "bold on #5f0000", "+": "bold on #005f00"}

Hunk = list[tuple[str, int, int, int, int]]  # difflib's opcodes: kind, old first and last line, new first and last


def unified_diff(name: str, before: str, after: str) -> str:
    """A patch from one text to the other, as `patch -p1` and `git apply` take it; empty where they are the same.

    Lines end at line feeds alone, so that carriage returns are part of them.
    """
    return "".join(_plain(name, _lines(before), _lines(after)))


def draw_diff(name: str, before: str, after: str, *, encoding: str = "utf-8", mark: str = "") -> None:
    """The diff on stdout: for eyes on a terminal, else a patch in the file's own encoding, with its byte order mark."""
    if not sys.stdout.isatty():
        sys.stdout.flush()
        sys.stdout.buffer.write(patch_bytes(unified_diff(name, mark + before, mark + after), encoding))
        sys.stdout.buffer.flush()
    elif has_colour(sys.stdout):
        console = Console(file=sys.stdout, highlight=False)
        for text in _drawn_lines(name, before, after):
            console.print(text, soft_wrap=True)
    else:
        for text in _drawn_lines(name, before, after, has_colour=False):
            print(text.plain)


def patch_bytes(diff: str, encoding: str) -> bytes:
    """A patch is read byte by byte; one of a file in UTF-16 or UTF-32 is for eyes, and in UTF-8."""
    return diff.encode("utf-8" if encoding.startswith(("utf-16", "utf-32")) else encoding, errors="replace")


def ask_to_apply() -> Literal["y", "n", "e"]:
    """Asks on the terminal whether to apply what was shown; the end of the input is a no."""
    stream = sys.stderr if sys.stderr.isatty() else sys.stdout
    _forget_keys()
    while True:
        stream.write("apply? [y/n/e] ")
        stream.flush()
        line = sys.stdin.buffer.readline().decode(errors="replace")
        if not line:
            stream.write("\n")
        word = line.strip().lower()
        if word in ("y", "yes"):
            return "y"
        if word in ("e", "edit"):
            return "e"
        if not line or word in ("n", "no", "q", "quit"):
            return "n"
        stream.write("y: apply, n: leave the file as it is, e: open the new text in your editor first\n")


def _forget_keys() -> None:
    """What was typed before the question was there is no answer to it."""
    try:
        import termios
    except ImportError:  # Windows
        return
    with contextlib.suppress(termios.error, OSError, ValueError):
        termios.tcflush(sys.stdin, termios.TCIFLUSH)


def _lines(text: str) -> list[str]:
    return [line for line in re.split(r"(?<=\n)", text) if line]


def _hunks(old: Sequence[str], new: Sequence[str]) -> list[Hunk]:
    return list(difflib.SequenceMatcher(None, old, new).get_grouped_opcodes(CONTEXT_LINES)) if old != new else []


def _header(hunk: Hunk) -> str:
    (_, old_first, _, new_first, _), (_, _, old_last, _, new_last) = hunk[0], hunk[-1]
    return f"@@ -{_range(old_first, old_last)} +{_range(new_first, new_last)} @@"


def _range(first: int, last: int) -> str:
    n = last - first
    start = first + 1 if n else first  # an empty range is named by the line before it
    return str(start) if n == 1 else f"{start},{n}"


def _plain(name: str, old: Sequence[str], new: Sequence[str]) -> Iterator[str]:
    hunks = _hunks(old, new)
    if hunks:
        end = "\t\n" if " " in name else "\n"  # else `patch` takes what is before the space for the name
        yield "".join(f"{line}{end}" for line in _names(name))
    for hunk in hunks:
        yield f"{_header(hunk)}\n"
        for kind, a, a_end, b, b_end in hunk:
            if kind == "equal":
                yield from (_signed(" ", line) for line in old[a:a_end])
            else:
                yield from (_signed("-", line) for line in old[a:a_end])
                yield from (_signed("+", line) for line in new[b:b_end])


def _names(name: str) -> tuple[str, str]:
    """The two header lines; a line break in a name would end its line."""
    relative = name.lstrip("/").replace("\n", "?")
    return f"--- a/{relative}", f"+++ b/{relative}"


def _signed(sign: str, line: str) -> str:
    return f"{sign}{line}" if line.endswith("\n") else f"{sign}{line}\n{_NO_NEWLINE}"


def _drawn_lines(name: str, before: str, after: str, *, has_colour: bool = True) -> Iterator[Text]:
    """The diff for eyes: what cannot be seen is marked in the lines that change."""
    old, new = _lines(before), _lines(after)
    most = _MOST_COLOURED if has_colour else 0
    shown_old, shown_new = _highlighted(name, old, most), _highlighted(name, new, most)
    hunks = _hunks(old, new)
    if hunks:
        for title, style in zip(_names(name), ("bold red", "bold green"), strict=True):
            yield Text(harmless(title), style=style)
    for hunk in hunks:
        yield Text(_header(hunk), style="cyan")
        for kind, a, a_end, b, b_end in hunk:
            if kind == "equal":
                for line in range(a, a_end):
                    yield from _drawn(" ", old[line], shown_old[line])
                continue
            removed, added = _marks(old[a:a_end], new[b:b_end])
            looks = {*map(look, old[a:a_end])} & {*map(look, new[b:b_end])}
            for line in range(a, a_end):
                yield from _drawn("-", old[line], _marked("-", old[line], shown_old[line], removed[line - a], looks))
            for line in range(b, b_end):
                yield from _drawn("+", new[line], _marked("+", new[line], shown_new[line], added[line - b], looks))


def _marked(sign: str, line: str, shown: Text, marks: Sequence[tuple[int, int]], looks: Collection[str]) -> Text:
    for start, end in marks:
        shown.stylize(_CHANGED[sign], start, end)
    return revealed(line, shown, has_twin=look(line) in looks)


def _drawn(sign: str, line: str, shown: Text) -> Iterator[Text]:
    yield Text.assemble((sign, _SIGN.get(sign, "")), shown)
    if not line.endswith("\n"):
        yield Text(_NO_NEWLINE.rstrip(), style="dim")


def _visible(line: str) -> str:
    """One line as it is drawn: one character for each of its own, except for a few that a terminal would obey."""
    return harmless(line.rstrip("\n").removesuffix("\r"))


def _highlighted(name: str, lines: Sequence[str], most: int) -> list[Text]:
    """Each line in the colours it has as a part of the whole text, where that has at most so many characters; the colours
    are those of the user's terminal."""
    visible = [_visible(line) for line in lines]
    code = "\n".join(visible)
    if len(code) <= most:
        syntax = Syntax(
            "", Syntax.guess_lexer(name, code[:2000]), theme="ansi_dark", background_color="default", tab_size=8
        )
        coloured = syntax.highlight(code)
        texts = list(coloured.split("\n", allow_blank=True))
        if [text.plain for text in texts[: len(visible)]] == visible:
            return texts
    return [Text(line) for line in visible]


def _marks(old: Sequence[str], new: Sequence[str]) -> tuple[list[list[tuple[int, int]]], list[list[tuple[int, int]]]]:
    """For each old and each new line the stretches that the other side does not have, where the two are alike at all."""
    removed: list[list[tuple[int, int]]] = [[] for _ in old]
    added: list[list[tuple[int, int]]] = [[] for _ in new]
    a, b = _words(old), _words(new)
    if not a or not b or len(a) + len(b) > _MAX_WORDS:
        return removed, added
    matcher = difflib.SequenceMatcher(None, [word for word, *_ in a], [word for word, *_ in b], autojunk=False)
    if matcher.ratio() < _LEAST_ALIKE:
        return removed, added
    for kind, i, i_end, j, j_end in matcher.get_opcodes():
        if kind != "equal":
            for words, first, last, marks in ((a, i, i_end, removed), (b, j, j_end, added)):
                for word, line, at in words[first:last]:
                    if word != "\n":
                        marks[line].append((at, at + len(word)))
    return removed, added


def _words(lines: Sequence[str]) -> list[tuple[str, int, int]]:
    """Every word with its line and where it begins there, and each line's end as a word."""
    words = []
    for number, line in enumerate(map(_visible, lines)):
        words += [(match.group(), number, match.start()) for match in _WORD.finditer(line)]
        words.append(("\n", number, len(line)))
    return words
