"""From a model's reply to the new lines: one code block, whole, or an error. Nothing is guessed."""

from __future__ import annotations

import re
from collections.abc import Sequence

from specllm.app.text_file import split_lines
from specllm.errors import BadReply

_FENCE = re.compile(r" {0,3}(`{3,})([^`]*)$")
_AGAIN = "say the instruction in other words, or use a larger model"


def lines_of_reply(reply: str) -> list[str]:
    """The lines inside the one code block of a reply that is whole, not cut at a token limit.

    Blocks nest: a fence with a language inside the block opens another one, and the next bare fence of its length closes that.
    Small models close a block of four backticks with three: as the last line that is its end, unless it ends a block inside.
    Raises BadReply where there is no block, more than one, or one that does not end.
    """
    lines, _ = split_lines(reply)
    blocks: list[list[str]] = []
    open_fences: list[int] = []  # lengths, the outermost first
    for line in lines:
        n, language = _fence(line)
        if not open_fences:
            if n:
                open_fences.append(n)
                blocks.append([])
            continue
        if n >= open_fences[-1] and not language:
            open_fences.pop()
            if not open_fences:
                continue
        elif n >= open_fences[0] and language:
            open_fences.append(n)
        blocks[-1].append(line)
    if not blocks:
        raise BadReply("the reply holds no code block", _AGAIN)
    if open_fences:
        end = _short_end(blocks[-1])
        if end is None:
            raise BadReply("the reply's code block does not end", _AGAIN)
        del blocks[-1][end:]
    if len(blocks) > 1:
        raise BadReply(f"the reply holds {len(blocks)} code blocks and no way to tell which is meant", _AGAIN)
    return blocks[0]


def _fence(line: str) -> tuple[int, str]:
    """The length of the fence that the line is, 0 where it is none, and its language."""
    match = _FENCE.match(line)
    return (len(match[1]), match[2].strip()) if match else (0, "")


def _short_end(block: Sequence[str]) -> int | None:
    """Which line is the last with something in it, where that is a bare fence and no block inside is open there."""
    last = max((n for n, line in enumerate(block) if line.strip()), default=0)
    if not block or not _fence(block[last])[0] or _fence(block[last])[1]:
        return None
    open_fence = 0
    for line in block[:last]:
        n, language = _fence(line)
        if not open_fence:
            open_fence = n
        elif n >= open_fence and not language:
            open_fence = 0
    return None if open_fence else last
