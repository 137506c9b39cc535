"""What a draft model that is only supposed would bring here."""

from __future__ import annotations

from dataclasses import replace

import pytest

from specllm.app.bench.simulate import Supposed, break_even, simulate
from specllm.app.bench.use_case import simulate_draft
from specllm.decoding.cost import CostModel
from specllm.errors import ConfigError
from tests.app.bench.benches import Silent


def test_a_simulated_speedup_is_the_formula():
    cost = CostModel({1: 1.0, 2: 1.2, 4: 1.5})
    supposed = Supposed.parse("accept=0.5, draft_cost=0.1")
    answer = simulate(cost, supposed)
    assert [one["draft_length"] for one in answer["lengths"]] == [1, 3]
    assert answer["lengths"][0]["speedup"] == pytest.approx(1.5 / 1.3)
    assert answer["lengths"][1]["speedup"] == pytest.approx(1.875 / 1.8)
    assert (answer["best_draft_length"], answer["best_speedup"]) == (1, pytest.approx(1.5 / 1.3))
    assert answer["lengths"][0]["break_even_acceptance"] == pytest.approx(0.3)
    assert break_even(CostModel({1: 1.0, 2: 2.5}), 1, 0.0) is None
    assert simulate(CostModel({1: 1.0, 2: 2.5}), supposed)["best_draft_length"] == 0


@pytest.mark.parametrize("text", ["", "accept=x", "accept=1.5", "draft_cost=0.2", "accept=0.5,other=1", "accept=nan"])
def test_a_supposition_that_means_nothing_is_refused(text):
    with pytest.raises(ConfigError):
        Supposed.parse(text)


def test_a_simulation_needs_no_prompt_and_no_draft_model(request_of):
    request = replace(request_of(), prompts=(), draft_model=None)
    plan, result = simulate_draft(request, Supposed(0.8, 0.1), Silent())
    assert plan.draft_model is None
    assert result["simulation"]["lengths"]
