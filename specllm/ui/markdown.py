"""Markdown as it streams: every block is drawn once it is complete and never touched again.

That way nothing flickers, a resize cannot tear what is there, and the text stays in the scrollback.
"""

from __future__ import annotations

import sys

from rich.console import Console, ConsoleOptions, RenderResult
from rich.markdown import Heading, Markdown

from specllm.ui.console import harmless


class _Heading(Heading):
    """Stands where the text below it begins: in a wide window the middle is far away."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield self.text


class _Markdown(Markdown):
    elements = {**Markdown.elements, "heading_open": _Heading}  # noqa: RUF012


class MarkdownStream:
    """Told text as it comes; returns what can be drawn, with the terminal's colours in it."""

    def __init__(self) -> None:
        self._held = ""  # the source of the block that may still grow
        self._is_first = True

    def push(self, text: str) -> str:
        """The blocks that `text` completes: all but the last one of the whole lines so far."""
        self._held += text
        if "\n" not in text:
            return ""
        whole = self._held[: self._held.rfind("\n") + 1]
        n_lines = _start_of_last_block(whole)
        if not n_lines:
            return ""
        lines = self._held.split("\n")
        done, self._held = "\n".join(lines[:n_lines]), "\n".join(lines[n_lines:])
        return self._drawn(done)

    def finish(self) -> str:
        """What is left."""
        rest, self._held = self._held, ""
        return self._drawn(rest) if rest.strip() else ""

    def _drawn(self, source: str) -> str:
        console = Console(file=sys.stdout, highlight=False)
        console.width -= 1  # the last column is the status line's trouble
        with console.capture() as captured:
            console.print(_Markdown(harmless(source), hyperlinks=False))
        gap, self._is_first = "" if self._is_first else "\n", False
        return gap + captured.get().lstrip("\n")  # rich puts some between blocks of its own


def _start_of_last_block(text: str) -> int:
    """The line on which the last top-level block begins."""
    starts = [token.map[0] for token in Markdown(text).parsed if token.level == 0 and token.map and token.nesting >= 0]
    return starts[-1] if starts else 0
