"""What stands beside an answer of a chat: figures that are whole, or not there."""

from __future__ import annotations

import io
import sys
from dataclasses import dataclass

import pytest

from specllm.decoding.metrics import Metrics
from specllm.decoding.protocols import Draft, Round
from specllm.ui.chat import ChatView, figures
from specllm.ui.generate import status_line


class Screen(io.StringIO):
    encoding = "utf-8"

    def isatty(self) -> bool:
        return True


@dataclass
class Made:
    """An answer, and the room for it."""

    metrics: Metrics
    strategy: str = "auto: lookup 3-31, model off (would lose 18%)"
    finish_reason: str | None = None
    n_context: int = 1234
    n_ctx: int = 8192


@pytest.fixture
def answer() -> Made:
    metrics = Metrics(n_prompt=1037, n_reused=412)
    for _ in range(30):
        metrics.add(Round((1, 2, 3), Draft((1, 2, 4), "lookup"), 0.0, 0.1, 0.0, plain_s=0.3))
    return Made(metrics)


@pytest.mark.parametrize("columns", range(40, 110, 3))
def test_the_status_line_has_no_figure_cut_in_two(answer: Made, columns: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.setattr(sys, "stderr", Screen())
    shown = ChatView(answer)._status(answer)
    assert len(shown) < columns  # the last column is free
    parts = shown.removeprefix(" ").split(" \u00b7 ")
    assert parts == list(figures(answer, answer))[: len(parts)]
    assert len(status_line(answer)) < columns
