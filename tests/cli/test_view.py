"""What the screen says, without a screen."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from specllm.decoding.metrics import Metrics
from specllm.decoding.protocols import Draft, Round
from specllm.ui.chat import figures
from specllm.ui.console import harmless
from specllm.ui.generate import Answer, Chunk, colour_legend, stats_line, stats_rows, status_line
from specllm.ui.status import may_end_at_margin


class Finished(Answer):
    """An answer that only has figures."""

    def __init__(self, metrics: Metrics, *, strategy: str = "lookup k=3", reason: str | None = "stop") -> None:
        self._metrics, self._strategy, self._reason = metrics, strategy, reason

    def __iter__(self) -> Iterator[Sequence[Chunk]]:
        return iter(())

    @property
    def metrics(self) -> Metrics:
        return self._metrics

    @property
    def strategy(self) -> str:
        return self._strategy

    @property
    def finish_reason(self) -> str | None:
        return self._reason

    def interrupt(self) -> None:
        self._reason = "interrupted"


class Room:
    n_context, n_ctx = 100, 4096


def metrics(
    n_rounds: int, *, n_draft: int = 3, n_accepted: int = 2, seconds: float = 0.1, plain_s: float | None = None
) -> Metrics:
    """Figures after rounds that are all alike."""
    figures = Metrics(n_prompt=1000, prefill_s=0.4)
    for _ in range(n_rounds):
        draft = Draft(tuple(range(n_draft)), "lookup")
        figures.add(Round((*draft.tokens[:n_accepted], 99), draft, 0.0, seconds, 0.0, plain_s=plain_s))
    return figures


def test_the_stats_line_names_every_number() -> None:
    line = stats_line(Finished(metrics(50)))
    assert line == "150 tokens · 30.0 tok/s · lookup 67% accepted · TTFT 0.50 s · 3.00 tok/forward"


@pytest.mark.parametrize(
    ("answer", "line"),
    [
        (Finished(metrics(2, n_draft=0, n_accepted=0), strategy="plain decoding"),
         "2 tokens · 10.0 tok/s · plain decoding · TTFT 0.50 s"),
        (Finished(metrics(2, n_draft=0, n_accepted=0)), "2 tokens · 10.0 tok/s · lookup drafted nothing · TTFT 0.50 s"),
        (Finished(metrics(1), reason="length"), "3 tokens, cut · lookup 67% accepted · TTFT 0.50 s · 3.00 tok/forward"),
        (Finished(metrics(1), reason="interrupted"),
         "interrupted after 3 tokens · lookup 67% accepted · TTFT 0.50 s · 3.00 tok/forward"),
        (Finished(metrics(0), reason="interrupted"), "interrupted while reading the prompt, 1,000 tokens"),
    ],
)  # fmt: skip
def test_the_stats_line_says_how_it_ended(answer: Finished, line: str) -> None:
    assert stats_line(answer) == line


@given(
    st.integers(1, 300), st.integers(1, 15), st.floats(0.002, 5), st.sampled_from(["model", "lookup", "reference"]),
    st.none() | st.floats(0.001, 15),
)  # fmt: skip
def test_what_matters_most_of_the_stats_line_fits_a_terminal(
    n_rounds: int, n_draft: int, seconds: float, source: str, plain_s: float | None
) -> None:
    figures = metrics(n_rounds, n_draft=n_draft, n_accepted=min(2, n_draft), seconds=seconds, plain_s=plain_s)
    answer = Finished(figures, strategy=f"{source} k=3", reason="length")
    assert cell_len(stats_line(answer).partition(" \u00b7 TTFT")[0]) <= 80
    assert cell_len(status_line(answer).rpartition(" \u00b7 ")[0]) <= 80  # tokens per forward go first


@pytest.mark.parametrize(
    ("plain_s", "speed"),
    [(0.37, "30.0 tok/s, 3.7 x plain"), (0.2, "30.0 tok/s, 2.0 x plain"), (0.09, "30.0 tok/s, 0.90 x plain"),
     (0.1, "30.0 tok/s, 1.00 x plain"), (None, "30.0 tok/s")],
)  # fmt: skip
def test_the_speed_stands_beside_plain_decodings_where_that_is_known(plain_s: float | None, speed: str) -> None:
    answer = Finished(metrics(50, plain_s=plain_s))
    assert stats_line(answer).split(" \u00b7 ")[1] == speed
    assert status_line(answer).split(" \u00b7 ")[1] == speed
    assert ("plain decoding would make" in dict(stats_rows(answer.metrics))) == (plain_s is not None)


@pytest.mark.parametrize(
    ("strategy", "said"),
    [("auto: lookup off, model off (would lose 19%)", "drafting left off: would lose 19%"),
     ("auto: lookup off", "drafting left off"),
     ("lookup: lookup off, exact: up to 3", "drafting left off"),
     ("lookup k=15", "lookup drafted nothing"),
     ("plain decoding", "plain decoding")],
)  # fmt: skip
def test_an_answer_without_drafts_says_why(strategy: str, said: str) -> None:
    answer = Finished(metrics(50, n_draft=0, n_accepted=0, plain_s=0.1), strategy=strategy)
    assert stats_line(answer).split(" \u00b7 ")[2] == said
    assert cell_len(stats_line(answer).partition(" \u00b7 TTFT")[0]) <= 80
    assert list(figures(answer, Room()))[1] == said


def test_before_the_first_token_the_status_is_about_the_prompt() -> None:
    assert status_line(Finished(metrics(0))) == " reading the prompt, 1,000 tokens, 0.4 s"


def test_the_table_has_rows_about_drafts_only_where_there_were_some() -> None:
    drafted, plain = dict(stats_rows(metrics(4))), dict(stats_rows(metrics(4, n_draft=0, n_accepted=0)))
    assert drafted["acceptance rate"] == "66.7% of the drafted"
    assert drafted["acceptance by position"] == "100% 100% 0%"
    assert drafted["mean accepted draft length"] == "2.00 tokens"
    assert drafted["tokens per forward"] == "3.00 (plain decoding: 1.00)"
    assert set(drafted) - set(plain) == {
        "drafted", "accepted", "acceptance rate", "acceptance by position", "mean accepted draft length", "zero-accept share",
    }  # fmt: skip


def test_the_colours_are_explained() -> None:
    assert colour_legend(metrics(4)) == "colours: \x1b[36m8 tokens accepted from lookup\x1b[0m, 4 the target's own"
    assert colour_legend(metrics(4, n_accepted=0)) == ""


def test_what_a_terminal_would_obey_is_shown() -> None:
    assert harmless("a\tb\n") == "a\tb\n"
    assert harmless("\x1b[31m\x07\r\x7f") == "␛[31m␇␍␡"
    assert harmless("\x9b2J\u202etxt.exe\u2066") == "<U+009B>2J<U+202E>txt.exe<U+2066>"
    assert harmless("naïve 海 🌊 👩‍🚀") == "naïve 海 🌊 👩‍🚀"


@given(st.text())
def test_nothing_that_is_shown_controls_a_terminal(text: str) -> None:
    shown = harmless(text)
    assert not any(character < " " or "\x7f" <= character <= "\x9f" for character in shown if character not in "\t\n")
    assert harmless(shown) == shown


@pytest.mark.parametrize(
    ("text", "is_at_margin"),
    [
        ("", False), ("1234567", False), ("12345678", True), ("123456789", False), ("1234567812345678", True),
        ("鲸鱼鲸", False), ("鲸鱼鲸鱼", True), ("1鲸鱼鲸", False), ("1鲸鱼鲸鱼", False), ("1鲸鱼鲸鱼345678", True),
        ("\t", False), ("1\t", False), ("\t8", True),
        ("1234👍🏽", True), ("123456👍🏽", True), ("1👍🏽", False), ("e\u0301234567", False), ("e\u03012345678", True),
    ],
)  # fmt: skip
def test_the_right_margin_is_known(text: str, is_at_margin: bool) -> None:
    """In a window of eight columns; where terminals disagree about the width, both answers count."""
    assert may_end_at_margin(text, 8) == is_at_margin
