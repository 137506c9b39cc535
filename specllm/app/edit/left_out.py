"""Finds the line of a new text that stands for old lines which are gone: `# ... rest of the class is the same ...`.

The evidence is a new remark where old lines were deleted. How many must be missing depends on what the remark says: one that
speaks of existing, other or unchanged code needs little, a comment in words that nobody here knows needs a whole run of lines
that became that comment and nothing else.
"""

from __future__ import annotations

import difflib
import re
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

from specllm.app.edit.asked import Wish

_COMMENT = re.compile(
    r"#(?![!\[]|(?:include|define|undef|if\w*|el\w+|endif|pragma|error|import|using)\b)|//|/\*|\*(?=\s|/|$)|<!--|\{/\*|"
    r"--(?!\w)|;|%|\"{3}|'{3}|['\"!](?=\s)|@?rem\b|::|\{#|\(\*|=begin|dnl\b|\.\.(?= )",
    re.IGNORECASE,
)
_NO_CODE = re.compile(r"(?:pass|return|\.{3}|[{}()\[\];,]+)\s*(?=#|//|/\*)")  # in front of a comment
_ELLIPSIS = re.compile(r"\.{3}|\u2026")
_ELIDED = re.compile(r"[:>{]\s*(?:\.{3}|\u2026)\s*(?:[}<]\S*)?$")  # def f(): ...   <p>...</p>   f() { ... }
_PROSE = re.compile(r"[\w\s.,'\u2019\u2026()\[\]<>*_-]+:?")  # what a remark without comment marks is made of
_CALL = re.compile(r"\w[(\[]")
_WORD = re.compile(r"[^\W_]+(?:['\u2019][^\W_]+)?|\w+")
_NAME = re.compile(r"\w*(?:_|\d|[a-z][A-Z])\w*")  # an identifier says nothing about the remark

# Words that speak of text which is elsewhere, what such text is called, and words that say nothing.
_ELSEWHERE = re.compile(
    r"rest|remain(?:s|ing|der)?|existing|others?|previous(?:ly)?|original(?:ly)?|un(?:changed|modified|touched|altered)|intact|"
    r"same|identical|omit(?:ted)?|elided|truncated|abbreviated|skipped|snip(?:ped)?|brevity|everything|keep|kept|leave|left|"
    r"stays?|before|above|below|etc|continues?|continued|follow(?:s|ing)?|changes?|preceding|earlier|further|additional|more"
)
_TEXT = re.compile(
    r"code|contents?|text|files?|lines?|class(?:es)?|functions?|methods?|implementations?|sections?|parts?|logic|body|bodies|"
    r"definitions?|declarations?|imports?|tests?|entry|entries|items?|rows?|fields?|propert(?:y|ies)|styles?|rules?|routes?|"
    r"handlers?|helpers?|elements?|keys?|values?|options?|cases?|config(?:uration)?s?|settings?|document|markup|html|data|"
    r"modules?|scripts?|components?|templates?|blocks?|statements?|param(?:eter)?s?|variables?|constants?|attributes?|"
    r"columns?|steps?|targets?|lists?|paragraphs?|chapters?|comments?|pages?|program|source|structure|checks?|types?|details"
)
_NOTHING = re.compile(
    r"the|an?|of|is|are|was|were|be|been|as|in|it|its|they|stuff|things?|to|for|with|that|this|these|and|or|your|our|my|all|"
    r"any|no|not|will|would|should|can|goes?|go|from|on|at|by|else|here|there|now|just|needed|exactly|add|put|insert"
)
_MANY = 100  # lines whose likeness is looked at on each side


@dataclass(frozen=True, slots=True)
class _Remark:
    is_comment: bool  # by its marks
    has_ellipsis: bool
    n_elsewhere: int = 0  # words about text that is elsewhere
    share: float = 0.0  # of those and of words for such text, among the words that say something
    is_bare: bool = False  # an ellipsis and nothing else

    @property
    def is_plain(self) -> bool:
        """It speaks of left-out text and of little else."""
        return self.n_elsewhere > 0 and self.share >= 0.7

    @property
    def is_vague(self) -> bool:
        return self.n_elsewhere > 0 and self.share >= (0.3 if self.has_ellipsis else 0.5)


@dataclass(slots=True)
class _Hunk:
    """Neighbouring changes: old and new lines, the latter by their place."""

    old: list[str]
    new: list[int]


def left_out(old: Sequence[str], new: Sequence[str], asked: Collection[Wish] = ()) -> int | None:
    """The first new line, from 0, that stands for text which is gone; None where none does."""
    before = [line.strip() for line in old if line.strip()]
    places = [n for n, line in enumerate(new) if line.strip()]
    after = [new[n].strip() for n in places]
    more = Counter(after) - Counter(before)  # than there were
    is_usual = any(map(_ELIDED.search, before))  # stubs: that is how their bodies are written
    remarks = {n: remark for n, line in enumerate(after) if line in more and (remark := _remark_in(line))}
    remarks = {n: remark for n, remark in remarks.items() if not (is_usual and _ELIDED.search(after[n]))}
    if not remarks:
        return None
    changes = [change for change in difflib.SequenceMatcher(None, before, after).get_opcodes() if change[0] != "equal"]
    for group in _neighbours(changes):
        joined = _hunk(before, group)
        for change in group:
            single = _hunk(before, [change])
            for n in single.new:
                if n in remarks and _stands_for_text(remarks[n], single, joined, after, remarks, asked):
                    return places[n]
    return None


def _neighbours(changes: Sequence[tuple[str, int, int, int, int]]) -> Iterator[list[tuple[str, int, int, int, int]]]:
    """Changes with at most two equal lines between them: a brace or a `return` may well be equal by chance."""
    group: list[tuple[str, int, int, int, int]] = []
    for change in changes:
        if group and change[1] - group[-1][2] > 2:
            yield group
            group = []
        group.append(change)
    if group:
        yield group


def _hunk(before: Sequence[str], changes: Sequence[tuple[str, int, int, int, int]]) -> _Hunk:
    return _Hunk([line for _, a, a_end, _, _ in changes for line in before[a:a_end]],
                 [n for _, _, _, b, b_end in changes for n in range(b, b_end)])  # fmt: skip


def _stands_for_text(
    remark: _Remark,
    single: _Hunk,
    joined: _Hunk,
    after: Sequence[str],
    remarks: Collection[int],
    asked: Collection[Wish],
) -> bool:
    if remark.is_bare:
        return "stubs" not in asked and _n_lost(joined, after, remarks) >= (1 if remark.is_comment else 2)
    if remark.has_ellipsis and (remark.is_plain or (remark.is_vague and _n_lost(joined, after, remarks) >= 1)):
        return True
    if all(n in remarks or _COMMENT.match(after[n]) for n in single.new):  # they became remarks and nothing else
        n_gone = len(_code(single.old))
        is_known = (remark.is_plain and n_gone >= 2 - remark.is_comment) or (remark.is_vague and n_gone >= 2)
        if is_known or (remark.is_comment and n_gone >= 3 and "less" not in asked):
            return True
    whole = _Hunk(_code(joined.old), joined.new)
    return remark.is_plain and (_n_lost(whole, after, remarks) >= 2 or _n_unlike(whole, after) >= 3)


def _code(lines: Sequence[str]) -> list[str]:
    return [line for line in lines if not _COMMENT.match(line)]


def _n_lost(hunk: _Hunk, after: Sequence[str], remarks: Collection[int]) -> int:
    """How many more lines went than came, comments and remarks aside."""
    return len(hunk.old) - sum(n not in remarks and not _COMMENT.match(after[n]) for n in hunk.new)


def _n_unlike(hunk: _Hunk, after: Sequence[str]) -> int:
    """Old lines that no new one resembles; 0 where there are too many to look."""
    new = [after[n] for n in hunk.new]
    if len(hunk.old) > _MANY or len(new) > _MANY:
        return 0
    return sum(not difflib.get_close_matches(line[:200], new, n=1) for line in hunk.old)


def _remark_in(line: str) -> _Remark | None:
    """What the line says, where it is a comment, an ellipsis, or prose in the place of code."""
    line = _NO_CODE.sub("", line, count=1)
    is_comment = bool(_COMMENT.match(line))
    has_ellipsis = bool(_ELLIPSIS.search(line))
    words = [
        word
        for word in _WORD.findall(_COMMENT.sub("", line[:300], count=1))
        if not _NAME.fullmatch(word) and not word.isdecimal()
    ]
    words = [word.lower() for word in words]
    if not is_comment:
        if _ELIDED.search(line) or (has_ellipsis and not words):
            return _Remark(False, True, is_bare=True)
        is_marked = has_ellipsis or line[0] in "[(<*_"
        if len(words) < (2 if is_marked else 3) or not _PROSE.fullmatch(line) or _CALL.search(line):
            return None
    telling = [word for word in words if not _NOTHING.fullmatch(word)]
    elsewhere = sum(bool(_ELSEWHERE.fullmatch(word)) for word in telling)
    known = elsewhere + sum(bool(_TEXT.fullmatch(word)) for word in telling)
    remark = _Remark(is_comment, has_ellipsis, elsewhere, known / max(len(telling), 1), has_ellipsis and not words)
    return remark if is_comment or remark.is_plain else None
