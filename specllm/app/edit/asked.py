"""What an instruction asks for that an edit otherwise puts back or doubts, found by its words.

A model changes blanks, quotes and accents by habit. Only somebody who names such a thing wants it changed.
"""

from __future__ import annotations

import re
from typing import Literal

Wish = Literal["indentation", "blanks", "marks", "characters", "less", "name", "stubs"]

_LAYOUT = (
    r"reformat\w*|auto-?format\w*|format (?:the|this|it|code|file|as|with|using)|prettif\w+|prettier|beautif\w+|gofmt|"
    r"clang-format|lint\w*|pep ?8|tidy|clean ?up"
)
_BLANKS = r"white ?-?spac\w+|spac(?:es?|ing)|blanks?|tabs?|tabulat\w+|nbsp|align\w*|trailing|line up"
_INDENTS = r"(?:de|in|out|re|un|mis)-?indent\w*|indent\w*|dedent\w*|outdent\w*"
# For each wish the words that name it, and characters that do (inside of a regular expression's brackets).
_NAMED: dict[Wish, tuple[str, str]] = {
    "indentation": (
        rf"{_INDENTS}|{_BLANKS}|{_LAYOUT}|leading|levels?|(?:un)?-?nest\w*|flatten\w*|top[ -]level|out of|outside|outermost|"
        r"left|right|shift\w*|columns?|unwrap\w*|hoist\w*|margin",
        r"\t",
    ),
    "blanks": (rf"{_INDENTS}|{_BLANKS}|{_LAYOUT}|non-?breaking|\\t", r"\t\u00a0\u2000-\u200a\u202f\u3000"),
    "marks": (
        r"quot\w+|apostrophes?|curly|straight\w*|smart|typograph\w*|\w*dash\w*|hyphen\w*|ellips\w+|ascii|punctuation",
        r"\u00b4\u2010-\u2015\u2018-\u201f\u2026\u2032\u2033\u2212",
    ),
    "characters": (
        r"unicode|normali[sz]\w+|nfk?[cd]|accent\w*|diacritic\w*|combining|zero[ -]width|invisible|ascii|emojis?|joiners?|"
        r"soft hyphens?|variation selectors?|bom|byte order marks?",
        r"\u0300-\u036f\u00ad\u200b-\u200f\u2060\ufe00-\ufe0f\ufeff",
    ),
    "less": (
        r"remov\w+|delet\w+|drop\w*|strip\w*|cut\w*|trim\w*|prun\w+|eras\w+|eliminat\w+|discard\w*|get rid|omit\w*|"
        r"shorte\w+|simplif\w+|condens\w+|compact\w*|clean\w*|clear (?:the|out|all)|de-?dup\w*|duplicates?|merg\w+|"
        r"combin\w+|collaps\w+|inlin\w+|extract\w*|mov\w+|replac\w+|rewrit\w+|rework\w*|refactor\w*|convert\w*|translat\w+|"
        r"summar\w+|reduc\w+|no longer|unused|dead code|truncat\w+|less|fewer|minif\w+|undo|revert\w*|take out|comment out|"
        r"keep only|only keep|just keep|one-?liners?",
        "",
    ),
    "name": (r"\w*names?|paths?|headers?|headings?|titles?|banners?|top|beginning|first line|docstrings?", ""),
    "stubs": (
        r"stub\w*|protocols?|abstract\w*|overload\w*|interfaces?|placeholders?|skeletons?|outlines?|ellips\w+|signatures?|"
        r"elid\w+",
        r"\u2026",
    ),
}
_ASKED = {
    wish: re.compile(rf"(?<!\w)(?:{words})(?!\w)" + (f"|[{characters}]" if characters else ""), re.IGNORECASE)
    for wish, (words, characters) in _NAMED.items()
}
_KEPT = re.compile(
    r"\b(?:keep(?! only)\w*|preserv\w+|retain\w*|leav\w+|without (?:chang|touch|alter|modify|break|affect)\w+|"
    r"(?:do not|don['\u2019]?t|never) (?:change|touch|alter|modify|convert|reformat|strip|break|remove|affect|lose))\b"
    r"[^.,;!\n]*",
    re.IGNORECASE,
)


def wishes(instruction: str) -> frozenset[Wish]:
    """What the instruction names, where it does not say that this is to stay as it is."""
    text = _KEPT.sub("", instruction)
    return frozenset(wish for wish, pattern in _ASKED.items() if pattern.search(text))
