"""Text in a Markdown code block that nothing inside it can close."""

from __future__ import annotations

import re
from pathlib import PurePosixPath

# Only where a code block is not simply marked with the extension.
_LANGUAGES = {
    "bash": "bash", "cc": "cpp", "cjs": "javascript", "cs": "csharp", "cxx": "cpp", "h": "c", "hpp": "cpp", "htm": "html",
    "js": "javascript", "kt": "kotlin", "md": "markdown", "mjs": "javascript", "pl": "perl", "py": "python",
    "pyi": "python", "rb": "ruby", "rs": "rust", "ts": "typescript", "txt": "text", "yml": "yaml",
}  # fmt: skip
_LANGUAGES_BY_NAME = {"Dockerfile": "dockerfile", "Makefile": "makefile"}


def code_block(path: str, text: str, fence: str | None = None) -> str:
    """The text in a block marked with the language of `path`, between fences that are longer than any inside it.

    The text's last line ends with a newline in the block whether it has one or not.
    """
    fence = fence or fence_for(text)
    end = "" if text.endswith("\n") else "\n"
    return f"{opening(path, fence)}{text}{end}{fence}"


def opening(path: str, fence: str) -> str:
    """The block's first line, with its newline."""
    return f"{fence}{language_of(path)}\n"


def fence_for(text: str, *, least: int = 3) -> str:
    """Backticks, at least so many and more than any fence of the text.

    Those behind four spaces are none in Markdown (an example in a docstring), and a longer fence than needed is one that small
    models forget to close.
    """
    longest = max(map(len, re.findall(r"(?:^|[\r\n]) {0,3}(`{3,})", text)), default=0)
    return "`" * max(longest + 1, least)


def longest_run(text: str) -> int:
    """Of backticks, wherever they stand."""
    return max(map(len, re.findall("`+", text)), default=0)


def language_of(path: str) -> str:
    """How Markdown names the language of a file, empty where it cannot be told."""
    file = PurePosixPath(path)
    extension = file.suffix[1:].lower()
    known = _LANGUAGES_BY_NAME.get(file.name) or _LANGUAGES.get(extension)
    return known or (extension if extension.isascii() and extension.isalnum() else "")
