"""Which files below a folder belong into a store: those that git would not ignore."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

from pathspec import GitIgnoreSpec

_NEVER = {".git", ".hg", ".svn", "__pycache__", "node_modules"}


class Rules:
    """What the .gitignore files above and inside a folder say; the innermost that says anything decides, as in git."""

    def __init__(self, specs: tuple[tuple[Path, GitIgnoreSpec], ...] = ()) -> None:
        self._specs = specs

    @classmethod
    def above(cls, path: Path) -> Rules:
        """Of the folders from the top of the repository down to `path`; none where they ignore `path` itself: whoever
        names an ignored folder wants it."""
        rules, is_ignored = cls._down_to(path)
        return cls() if is_ignored else rules

    @classmethod
    def ignore(cls, path: Path) -> bool:
        """Whether git, or `store add` of a folder around it, would pass over the file at this absolute path."""
        return cls._down_to(path)[1] or not _NEVER.isdisjoint(path.parts)

    @classmethod
    def _down_to(cls, path: Path) -> tuple[Rules, bool]:
        """The rules that hold beside `path`, and whether they ignore it or a folder that it is in."""
        above = [path.parent, *path.parent.parents]
        top = next((i for i, folder in enumerate(above) if (folder / ".git").exists()), None)
        rules = cls()
        if top is None or (path / ".git").exists():
            return rules, False
        for folder, below in pairwise([*reversed(above[: top + 1]), path]):
            rules = rules.inside(folder)
            if rules.ignores(below, is_folder=below.is_dir()):
                return rules, True
        return rules, False

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
    """`root`, or where it is a folder the files in it that git would not ignore, and folders that cannot be read; links are
    not followed."""
    if not root.is_dir():
        yield root
        return
    above = Rules.above(root)
    folders = [(root, above.inside(root))]
    while folders:
        folder, rules = folders.pop()
        try:
            entries = sorted(os.scandir(folder), key=lambda entry: entry.name)
        except PermissionError:
            yield folder
            continue
        except OSError:  # gone by now
            continue
        for entry in entries:
            path, is_folder = folder / entry.name, entry.is_dir(follow_symlinks=False)
            if entry.name in _NEVER or rules.ignores(path, is_folder=is_folder):
                continue
            if is_folder:
                folders.append((path, rules.inside(path)))
            elif entry.is_file(follow_symlinks=False):
                yield path
