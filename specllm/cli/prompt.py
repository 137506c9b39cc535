"""Where a prompt comes from: words, a file, a pipe."""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Sequence
from pathlib import Path

from specllm.errors import ConfigError

STDIN = "-"


def read_prompt(words: Sequence[str], file: Path | None) -> str:
    """The words, then the file, then what is piped in (`-`, or any pipe on stdin), with empty lines between them."""
    parts = [" ".join(word for word in words if word != STDIN)]
    if file is not None and str(file) != STDIN:
        parts.append(_decoded(_read_file(file), str(file)))
    if STDIN in words or str(file) == STDIN or _is_piped():
        parts.append(_decoded(sys.stdin.buffer.read(), "the piped text"))
    prompt = "\n\n".join(part for part in parts if part.strip())
    if not prompt:
        raise ConfigError("there is no prompt", 'give one: specllm generate "...", --prompt-file FILE, or pipe it in')
    return prompt


def _is_piped() -> bool:
    """Whether stdin is a pipe or a file; a terminal, /dev/null or a closed stdin is none."""
    try:
        mode = os.fstat(sys.stdin.fileno()).st_mode
    except (AttributeError, OSError, ValueError):
        return False
    return stat.S_ISFIFO(mode) or stat.S_ISREG(mode)


def _read_file(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}", "check --prompt-file") from None


def _decoded(data: bytes, name: str) -> str:
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ConfigError(f"{name} is not UTF-8 (byte {error.start})", "convert it: iconv -f latin1 -t utf-8") from None
