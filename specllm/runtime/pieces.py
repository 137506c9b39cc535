"""A long text in pieces that llama.cpp's tokenizers can take.

Two of their ways to look at a text do not scale. The regular expressions of C++ libraries call themselves once for every
character they match: with GCC's, a word of 26,000 characters overflows a stack of 8 MiB and ends the process. And the
SentencePiece tokenizer copies all its output for every character that it has to spell in bytes: 300,000 emoji take minutes.
"""

from __future__ import annotations

import re
from itertools import pairwise

MAX_RUN = 8192  # characters that one match may have: a third of what overflows the stack
LINES_FROM = 4096  # characters; pieces of whole lines have at least so many

# One of llama.cpp's regular expressions (EXAONE's) takes words with single blanks between them as one match.
_RUNS = re.compile(r"(?:\w ?)+|[^ \n]+|\s+")
_LINES = re.compile(rf"(?s:.{{{LINES_FROM},}}?)\n(?!\n)|(?s:.+)\Z")


def pieces(text: str) -> list[str]:
    """The text in one piece, unless it has a run of blanks, or of anything else without a blank or a line end, that is too
    long: that is cut, before a blank where it has one."""
    cuts = [0]
    for run in _RUNS.finditer(text) if len(text) > MAX_RUN else ():
        at = run.start()
        while run.end() - at > MAX_RUN:
            blank = text.rfind(" ", at + 1, at + MAX_RUN)
            at = blank if blank > 0 else at + MAX_RUN
            cuts.append(at)
    return [text[start:end] for start, end in pairwise([*cuts, len(text)])]


def line_pieces(text: str) -> list[str]:
    """The text in pieces of whole lines, each ending with all the newlines that stand together."""
    return _LINES.findall(text) or [text]
