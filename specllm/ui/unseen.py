"""Draws what a line has and a reader does not see: tabs, blanks at its end, unusual blanks, characters without width."""

from __future__ import annotations

import re
import unicodedata

from rich.text import Text

_STYLE = "reverse"
# Soft hyphen, joiners, marks of direction, byte order mark. What joins emoji is left out: it shows in how they look.
_NO_WIDTH = "\u00ad\u034f\u061c\u180e\u200b\u200c\u200e\u200f\u2060-\u2064\ufeff"
_JOINS = "\u200d\ufe00-\ufe0f"
_UNSEEN = re.compile(rf"\t| +(?=[ \t]*$)|[^\S \t]|[{_NO_WIDTH}]")
_NOT_ASCII = re.compile(r"[^\x00-\x7f]")


def look(line: str) -> str:
    """What two lines have in common that look the same."""
    text = unicodedata.normalize("NFC", re.sub(f"[{_NO_WIDTH}{_JOINS}]", "", line))
    return " ".join(text.split())


def revealed(line: str, shown: Text, *, has_twin: bool) -> Text:
    """`shown`, which is `line` without its end, with marks for what cannot be seen.

    `has_twin`: another line looks the same, so that the way characters are composed and the line's end are drawn too.
    """
    drawn, at = Text(), 0
    for match in re.finditer(f"{_UNSEEN.pattern}|{_NOT_ASCII.pattern}" if has_twin else _UNSEEN, shown.plain):
        mark = _mark(match.group())
        if mark != match.group():
            drawn.append_text(shown[at : match.start()])
            drawn.append(mark, _STYLE)
            at = match.end()
    drawn.append_text(shown[at:])
    if has_twin and line.endswith("\r\n"):
        drawn.append("\u240d", _STYLE)
    return drawn


def _mark(found: str) -> str:
    if found == "\t":
        return "\u2192\t"
    if found[0] == " ":
        return "\u00b7" * len(found)
    is_seen = not _UNSEEN.match(found) and not re.match(f"[{_JOINS}]", found)
    is_whole = unicodedata.normalize("NFC", found) == found and not unicodedata.combining(found)
    is_part = "\u1100" <= found <= "\u11ff"  # of a Korean syllable
    return found if is_seen and is_whole and not is_part else f"<U+{ord(found):04X}>"
