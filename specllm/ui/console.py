"""Text on a terminal or into a pipe: what a model says is shown, never obeyed."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable, Iterable
from typing import TextIO

from rich.cells import cell_len

# Control characters and bidirectional overrides change what a terminal does or how a line reads; models and prompts
# come from strangers. Newline and tab are text. The rest is drawn as a Unicode control picture or as <U+XXXX>.
_SHOWN = {code: chr(0x2400 + code) for code in range(0x20) if code not in (0x09, 0x0A)}
_SHOWN[0x7F] = "\u2421"
_SHOWN |= {code: f"<U+{code:04X}>" for code in (*range(0x80, 0xA0), *range(0x202A, 0x202F), *range(0x2066, 0x206A))}


MAX_SHOWN = 4096  # characters of a note: a screen and a half

_RED, _LOUD, _RESET = "\x1b[31m", "\x1b[1;31m", "\x1b[0m"
_clear: Callable[[], None] | None = None


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


def shown(text: str) -> str:
    """What somebody else worded (a model file, llama.cpp, the system), as a person is shown it: harmless, and not endless."""
    more = f" .. ({len(text):,} characters)" if len(text) > MAX_SHOWN else ""
    return f"{harmless(text[:MAX_SHOWN])}{more}"


def clears_for_notes(clear: Callable[[], None] | None) -> None:
    """What takes the status line away before a note is printed; None once there is none."""
    global _clear
    _clear = clear


def write_note(message: str, *, style: str = "") -> None:
    """One line for the person on stderr, in that colour where there are some. Notes, warnings, errors and log lines all
    pass here: what they quote is shown, never obeyed."""
    if _clear is not None:
        _clear()
    line = shown(message)
    print(f"{style}{line}{_RESET}" if style and has_colour(sys.stderr) else line, file=sys.stderr, flush=True)


def write_warning(text: str, *, is_loud: bool = False) -> None:
    """One line of warning on stderr, whoever worded it; a loud one stands out where there is colour."""
    write_note(f"warning: {text}", style=_LOUD if is_loud else "")


def write_error(message: str, hint: str) -> None:
    """What went wrong and the next step."""
    write_note(f"error: {message}", style=_RED)
    if hint:
        write_note(f"hint: {hint}")
