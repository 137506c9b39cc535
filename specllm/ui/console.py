"""Text on a terminal or into a pipe: what a model says is shown, never obeyed."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterable
from typing import TextIO

from rich.cells import cell_len

# Control characters and bidirectional overrides change what a terminal does or how a line reads; models and prompts
# come from strangers. Newline and tab are text. The rest is drawn as a Unicode control picture or as <U+XXXX>.
_SHOWN = {code: chr(0x2400 + code) for code in range(0x20) if code not in (0x09, 0x0A)}
_SHOWN[0x7F] = "\u2421"
_SHOWN |= {code: f"<U+{code:04X}>" for code in (*range(0x80, 0xA0), *range(0x202A, 0x202F), *range(0x2066, 0x206A))}


def harmless(text: str) -> str:
    """The text with everything a terminal would obey made visible."""
    return text.translate(_SHOWN)


def is_terminal(stream: TextIO) -> bool:
    """Whether a person looks at the stream in a terminal that can move its cursor."""
    return stream.isatty() and os.environ.get("TERM", "") != "dumb"


def has_colour(stream: TextIO) -> bool:
    """Colour only on a terminal, and never with NO_COLOR set (https://no-color.org)."""
    return is_terminal(stream) and not os.environ.get("NO_COLOR")


def joined(parts: Iterable[str], stream: TextIO, *, n_spare: int = 0) -> str:
    """The parts on one line; on a terminal without the last ones if they do not fit, most important first. There,
    `n_spare` columns are for something else.

    Between them is a dot where the stream's encoding has one.
    """
    left = list(parts)
    try:
        " · ".encode(stream.encoding or "ascii")
        separator = " · "
    except (UnicodeEncodeError, LookupError):
        separator = " | "
    columns = shutil.get_terminal_size().columns - n_spare if stream.isatty() else None
    while columns is not None and len(left) > 1 and cell_len(separator.join(left)) > columns:
        left.pop()
    return separator.join(left)


def write_note(message: str) -> None:
    """One line for the person on stderr."""
    print(message, file=sys.stderr, flush=True)


def write_warning(text: str, *, is_loud: bool = False) -> None:
    """One line of warning on stderr, whoever worded it; a loud one stands out where there is colour."""
    line = f"warning: {harmless(text)}"
    write_note(f"\x1b[1;31m{line}\x1b[0m" if is_loud and has_colour(sys.stderr) else line)
