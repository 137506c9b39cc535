"""Which files below a folder belong into a store: text that git would not ignore and that does not look like a secret.

What looks like a secret is a short list of names and forms, no promise: whoever keeps secrets elsewhere should not add them.
"""

from __future__ import annotations

import contextlib
import math
import os
import re
from collections import Counter
from collections.abc import Iterator
from fnmatch import fnmatchcase
from itertools import pairwise
from pathlib import Path

from pathspec import GitIgnoreSpec

_NEVER = {".git", ".hg", ".svn", "__pycache__", "node_modules"}
_SECRET_NAMES = (
    ".env", ".env.*", "*.env", "*.pem", "*.key", "*.p12", "*.pfx", "*.jks", "*.keystore", "*.kdbx", "*.ppk", "*.tfstate",
    "*.tfvars", "id_rsa*", "id_dsa*", "id_ecdsa*", "id_ed25519*", ".netrc", "_netrc", ".npmrc", ".pypirc", ".pgpass",
    ".htpasswd", ".git-credentials", "credentials", "credentials.json", "credentials.ini", "secrets.json", "secrets.ini",
    "secrets.toml", "secrets.yml", "secrets.yaml", "service[-_]account*.json",
)  # fmt: skip
_HARMLESS_NAMES = ("*.example", "*.sample", "*.template")
_SECRET_TEXT = re.compile(
    r"-----BEGIN [A-Z ]*PRIVATE KEY(?: BLOCK)?-----(?:\s|\\[nr])|\b(?:AKIA|ASIA)[0-9A-Z]{16}\b|\bgh[opsur]_\w{36}"
    r"|\bgithub_pat_\w{22}|\bglpat-[\w-]{20}|\bxox[abeoprs]-[\w-]{10}|\bAIza[\w-]{35}|\bsk-[\w-]{32}|\bsk_live_\w{16}"
    r"|\bhf_[A-Za-z]{34}\b|\beyJ[\w-]{16,}\.eyJ[\w-]{16,}\.[\w-]{16}"
)
_ASSIGNED = re.compile(
    # Bounded, so that a file of nothing but such words is not searched for minutes.
    r"""(?:secret|token|passw(?:or)?d|api_?key|access_?key|private_?key)\w{0,40}["']?\s{0,9}[:=]\s{0,9}["']?"""
    r"""([\w+/=-]{16,999})(?=["'\s,;]|$)""",
    re.IGNORECASE,
)
_RANDOM_BITS, _RANDOM_DIGITS = 3.0, 4  # a character, and in all: 16 random hexadecimal digits have about 3.2, and 10


class Rules:
    """What the .gitignore files above and inside a folder say; the innermost that says anything decides, as in git."""

    def __init__(self, specs: tuple[tuple[Path, GitIgnoreSpec], ...] = ()) -> None:
        self._specs = specs

    @classmethod
    def above(cls, path: Path) -> Rules:
        """Of the folders from the top of the repository down to `path`; none where they ignore `path` itself: whoever
        names an ignored folder wants it."""
        above = [path.parent, *path.parent.parents]
        top = next((i for i, folder in enumerate(above) if (folder / ".git").exists()), None)
        if top is None or (path / ".git").exists():
            return cls()
        rules = cls()
        for folder, below in pairwise([*reversed(above[: top + 1]), path]):
            rules = rules.inside(folder)
            if rules.ignores(below, is_folder=below.is_dir()):
                return cls()
        return rules

    def inside(self, folder: Path) -> Rules:
        """These rules and those that lie in `folder`."""
        lines: list[str] = []
        for file in (folder / ".git" / "info" / "exclude", folder / ".gitignore"):
            with contextlib.suppress(OSError):
                lines += file.read_text(encoding="utf-8", errors="replace").splitlines()
        return Rules((*self._specs, (folder, _spec(lines)))) if lines else self

    def ignores(self, path: Path, *, is_folder: bool) -> bool:
        for folder, spec in reversed(self._specs):
            name = path.relative_to(folder).as_posix() + ("/" if is_folder else "")
            verdict = spec.check_file(name).include
            if verdict is not None:
                return verdict
        return False


def _spec(lines: list[str]) -> GitIgnoreSpec:
    try:
        return GitIgnoreSpec.from_lines(lines)
    except (ValueError, re.error):  # git passes over a pattern that makes no sense
        return GitIgnoreSpec.from_lines([line for line in lines if _is_pattern(line)])


def _is_pattern(line: str) -> bool:
    try:
        GitIgnoreSpec.from_lines([line])
    except (ValueError, re.error):
        return False
    return True


def files_below(root: Path) -> Iterator[Path]:
    """`root`, or where it is a folder the files in it that git would not ignore; links are not followed."""
    if not root.is_dir():
        yield root
        return
    above = Rules.above(root)
    folders = [(root, above.inside(root))]
    while folders:
        folder, rules = folders.pop()
        try:
            entries = sorted(os.scandir(folder), key=lambda entry: entry.name)
        except OSError:  # no permission, or gone by now
            continue
        for entry in entries:
            path, is_folder = folder / entry.name, entry.is_dir(follow_symlinks=False)
            if entry.name in _NEVER or rules.ignores(path, is_folder=is_folder):
                continue
            if is_folder:
                folders.append((path, rules.inside(path)))
            elif entry.is_file(follow_symlinks=False):
                yield path


def has_secret_name(path: Path) -> bool:
    """Whether files of that name usually hold keys or passwords."""
    name = path.name.lower()
    is_secret = any(fnmatchcase(name, pattern) for pattern in _SECRET_NAMES)
    return is_secret and not any(fnmatchcase(name, pattern) for pattern in _HARMLESS_NAMES)


def has_secret(text: str) -> bool:
    """Whether something in the text has the form of a key, or a name like `password` is given a random value."""
    return bool(_SECRET_TEXT.search(text)) or any(_is_random(match[1]) for match in _ASSIGNED.finditer(text))


def _is_random(value: str) -> bool:
    """Names have few digits and words few different letters."""
    bits = -sum(n / len(value) * math.log2(n / len(value)) for n in Counter(value).values())
    return bits > _RANDOM_BITS and len(re.findall(r"\d", value)) >= _RANDOM_DIGITS and not value.isdigit()
