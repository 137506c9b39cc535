"""Instructions about line ends and the final newline: an edit keeps both as they were, so no model's answer follows them."""

from __future__ import annotations

import re
import shlex

_WORD = re.compile(r"[a-z0-9]+")
_FINAL = {"final", "trailing", "last", "missing", "end", "ends", "ending", "eof"}
_ENDS = re.compile(r"\b(crlf|lf)\b|\bline[ -]?(ends?|endings?|terminators?)\b")
_WANTED = re.compile(r"(?<!\bfrom )(?<!\bof )\b(crlf|windows|dos|lf|unix)\b")
_LESS = {"remove", "delete", "drop", "strip", "without"}
# An instruction of these words alone leaves a model nothing to do.
_ENDS_ALONE = _FINAL | _LESS | set(_WORD.findall(
    "a add all an and any append at change character convert crlf dos endings ensure feed file from has have in insert into "
    "it its lf line make needs newline of please put should style sure switch terminators text that the this to unix use "
    "windows with"
))  # fmt: skip


def command_for_ends(instruction: str, name: str) -> str | None:
    """The command for the file `name` that does what the instruction says about line ends; None where it says nothing."""
    text = instruction.lower()
    words = set(_WORD.findall(text))
    if _ENDS.search(text):
        is_crlf = (_WANTED.findall(text) or ["lf"])[-1] in ("crlf", "windows", "dos")
        code = r"s/\r?\n/\r\n/" if is_crlf else r"s/\r\n/\n/"
    elif "newline" in words and words & _FINAL:
        code = r"s/\r?\n\z// if eof" if words & _LESS else r"s/(?<!\n)\z/\n/ if eof"
    else:
        return None
    file = f"./{name}" if name.startswith("-") else name
    return f"perl -pi -e '{code}' {shlex.quote(file)}"


def is_about_ends_alone(instruction: str) -> bool:
    return set(_WORD.findall(instruction.lower())) <= _ENDS_ALONE
