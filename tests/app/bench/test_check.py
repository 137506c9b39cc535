"""Answers held against those of plain decoding: near ties are told from defects."""

from __future__ import annotations

import pytest

from specllm.app.bench.check import Difference
from specllm.app.bench.use_case import run_bench
from specllm.runtime.llama import LlamaModel
from tests.app.bench.benches import Silent


def test_equal_answers_have_no_differences(request_of):
    result = run_bench(request_of(is_checked=True), Silent())
    assert (result.differences, result.n_defects) == ([], 0)
    assert run_bench(request_of(max_tokens=4), Silent()).differences is None


def test_check_finds_a_forward_that_lies(request_of, monkeypatch):
    honest, progress, lies = LlamaModel.forward, Silent(), []

    def lying(self, tokens, *, logits="all"):
        rows = honest(self, tokens, logits=logits)
        is_measured = bool(progress.steps)  # behind calibration and warm-up
        if is_measured and logits == "all" and len(tokens) > 1 and not lies:
            rows = rows.copy()
            rows[0, 300] = rows.max() + 10
            lies.append(len(tokens))
        return rows

    monkeypatch.setattr(LlamaModel, "forward", lying)
    result = run_bench(request_of(is_checked=True, arms=("model:3",), runs=2), progress)
    assert (len(lies), result.n_defects) == (1, 1)
    difference = result.differences[0]
    assert (difference["arm"], difference["run"], difference["kind"]) == ("model:3", 0, "defect")
    assert difference["arm_token"] == 300
    assert min(difference["gap"], difference["gap_in_blocks"]) > 0.3
    assert difference["plain_text"]


@pytest.mark.parametrize(
    ("gaps", "kind"),
    [((0.0, 0.5), "near tie"), ((0.29, 0.31), "near tie"), ((0.5, 0.0), "near tie"), ((0.31, 0.31), "defect"),
     ((None, None), "defect")],
)  # fmt: skip
def test_a_difference_is_a_near_tie_only_where_one_of_the_gaps_is_small(gaps, kind):
    assert Difference("a", "auto", 0, 3, 1, 2, *gaps).kind == kind
    assert Difference("a", "auto", 0, 3, 1, 2, *gaps, is_width_independent=True).kind == "defect"


@pytest.mark.parametrize(
    ("single", "wide", "gaps"),
    [(-0.1, 0.1, (0.1, 0.1)),  # nearly equal at every width
     (-1.0, 0.05, (1.0, 0.05))],  # clear token by token
)  # fmt: skip
def test_a_flip_that_only_the_width_of_a_block_makes_is_a_near_tie(request_of, monkeypatch, single, wide, gaps):
    """The second likeliest token is so far ahead of the likeliest."""
    honest = LlamaModel.forward

    def tipped(self, tokens, *, logits="all"):
        rows = honest(self, tokens, logits=logits)
        if logits == "all" and len(rows):
            rows = rows.copy()
            for row in rows:
                second, first = row.argsort()[-2:]
                row[second] = row[first] + (wide if len(rows) > 2 else single)
        return rows

    monkeypatch.setattr(LlamaModel, "forward", tipped)
    result = run_bench(request_of(is_checked=True, arms=("model:3",)), Silent())
    (difference,) = result.differences
    assert difference["kind"] == "near tie"
    assert (difference["gap"], difference["gap_in_blocks"]) == pytest.approx(gaps, abs=1e-4)
