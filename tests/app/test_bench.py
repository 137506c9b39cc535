"""Benchmarks on tiny real models: what is paired with what, what is counted, and what is told."""

from __future__ import annotations

import json
import math
from collections import defaultdict
from dataclasses import fields, replace
from pathlib import Path

import pytest

from specllm.app.bench import BenchRequest, run_bench, select_prompts, simulate_draft
from specllm.app.bench_arms import Arm, Memory, Runner, Sample, rotated
from specllm.app.bench_check import Difference
from specllm.app.bench_compare import compare, read_document
from specllm.app.bench_simulate import Supposed, break_even, simulate
from specllm.app.bench_stats import INTERVAL, Speedup, k_over_time, rows, speedups, t_quantile, total
from specllm.app.prompts.reading import BenchPrompt
from specllm.config import ContextConfig, DraftConfig, SamplingConfig
from specllm.decoding.cost import CostModel
from specllm.decoding.metrics import Metrics
from specllm.decoding.protocols import Draft, Round
from specllm.errors import ConfigError
from specllm.runtime.llama import LlamaModel, Weights
from specllm.runtime.vocab import detokenize

TEXT = "def it(self):\n    return self.the(it)\n\n\ndef other(self):\n    return self.the(other)\n\n\ndef "
ONE_THREAD = ContextConfig(threads=1, kv_type="f32", flash_attention="off")
SECTION_6 = {
    "category", "arm", "n_prompts", "speedup", "speedup_low", "speedup_high", "decode_tok_per_s", "tokens_per_forward",
    "acceptance_rate", "acceptance_by_position", "zero_accept_share", "ttft_s", "prefill_tok_per_s",
}  # fmt: skip


class Silent:
    """Keeps the order of the answers."""

    def __init__(self) -> None:
        self.steps: list[str] = []

    def notice(self, text: str) -> None:
        pass

    def step(self, n_done: int, n_answers: int, what: str) -> None:
        assert 0 <= n_done <= n_answers
        self.steps.append(what)


def prompt(name: str = "a", text: str = TEXT, **values) -> BenchPrompt:
    return BenchPrompt(id=name, category=values.pop("category", "code"), prompt=text, **values)


@pytest.fixture
def request_of(llama_gguf, close_draft_gguf):
    """A request for the tiny pair with fixed lengths, which need no timing to be told apart."""

    def make(*prompts: BenchPrompt, **values) -> BenchRequest:
        defaults = {
            "target": str(llama_gguf), "draft_model": str(close_draft_gguf), "arms": ("lookup:4", "model:3"),
            "max_tokens": 24, "context": ONE_THREAD,
        }  # fmt: skip
        return BenchRequest(prompts=prompts or (prompt(),), **{**defaults, **values})

    return make


# ---- pairs -----------------------------------------------------------------------------------------------------------


def test_plain_decoding_always_runs_and_every_run_begins_with_another_arm(request_of):
    progress = Silent()
    result = run_bench(request_of(prompt("a"), prompt("b"), runs=3), progress)
    order = defaultdict(list)
    for sample in result.samples:
        order[sample.prompt_id, sample.run].append(sample.arm)
    assert list(order) == [(name, run) for name in "ab" for run in range(3)]  # a prompt's runs stand together
    assert [arms[0] for arms in order.values()] == ["none", "lookup:4", "model:3"] * 2
    assert all(sorted(arms) == ["lookup:4", "model:3", "none"] for arms in order.values())
    assert len(progress.steps) == 2 + len(result.samples)


def test_arms_take_turns_in_their_order():
    arms = [Arm.parse(name, DraftConfig()) for name in ("none", "auto", "lookup")]
    assert [arm.name for arm in rotated(arms, 4)] == ["auto", "lookup", "none"]


def test_every_arm_gives_the_same_text(request_of):
    result = run_bench(request_of(arms=("auto", "lookup", "model", "lookup:4", "model:3")), Silent())
    assert len({sample.tokens for sample in result.samples}) == 1
    assert len(result.samples) == 6
    drafted = {sample.arm: sample.metrics.n_drafted for sample in result.samples}
    assert drafted["none"] == 0 < drafted["model:3"]


@pytest.mark.parametrize("architecture", ["llama", "mamba"])
def test_the_same_prompt_twice_is_drafted_alike(request_of, mamba_gguf, llama_gguf, architecture):
    """Fault 31: nothing of the first time helps the second."""
    target = {"llama": llama_gguf, "mamba": mamba_gguf}[architecture]
    result = run_bench(request_of(prompt("a"), prompt("b"), runs=2, target=str(target)), Silent())
    counts = defaultdict(set)
    for sample in result.samples:
        metrics = sample.metrics
        counts[sample.arm].add((metrics.n_drafted, metrics.n_accepted, metrics.n_rounds, sample.tokens))
    assert {arm: len(seen) for arm, seen in counts.items()} == {"none": 1, "lookup:4": 1, "model:3": 1}
    assert len({sample.tokens for sample in result.samples}) == 1
    assert all(n_drafted for n_drafted, *_ in counts["model:3"])


def test_drafters_start_cold_unless_learned_is_wanted(tmp_path):
    seen = Round((1, 2), Draft((1,), "lookup", (3,)), 0, 1, 0)
    for memory, is_kept in ((Memory(), False), (Memory(tmp_path / "none.json"), True)):
        acceptance = memory.start("lookup", "prose")
        believed = acceptance["lookup"].chance(3)
        acceptance["lookup"].observe(seen)
        memory.keep("lookup", "prose", acceptance)
        assert (memory.start("lookup", "prose")["lookup"].chance(3) != believed) is is_kept
        assert memory.start("auto", "prose")["lookup"].chance(3) == believed
        assert memory.start("lookup", "```code```")["lookup"].chance(3) == believed
    assert not list(tmp_path.iterdir())


def test_the_prompt_is_read_cold_and_counts_for_every_arm(request_of):
    long = prompt("long", TEXT * 8)
    result = run_bench(request_of(prompt("short"), long, runs=2), Silent())
    of_long = [sample.metrics for sample in result.samples if sample.prompt_id == "long"]
    assert len(of_long) == 6
    assert all(metrics.n_reused == 0 and metrics.n_prompt > 300 for metrics in of_long)
    reading_s = [metrics.prefill_s for metrics in of_long]
    assert max(reading_s) - min(reading_s) < 0.5 * min(reading_s)  # one reading, and each drafter's begin
    assert all(metrics.ttft_s > metrics.prefill_s for metrics in of_long)


def test_a_prompt_that_was_read_before_is_read_again(request_of):
    result = run_bench(request_of(prompt("a", TEXT * 8), prompt("b", TEXT * 8)), Silent())
    reading_s = {sample.prompt_id: sample.metrics.prefill_s for sample in result.samples}
    assert 0.2 < reading_s["b"] / reading_s["a"] < 5  # not a hundredth: the cache was empty


@pytest.mark.parametrize(("architecture", "n_readings"), [("llama", 1), ("mamba", 6)])
def test_only_a_target_that_cannot_drop_tokens_reads_the_prompt_for_every_answer(
    request_of, llama_gguf, mamba_gguf, monkeypatch, architecture, n_readings
):
    n_read, read = 0, Runner.read

    def counting(self, tokens):
        nonlocal n_read
        n_read += bool(progress.steps)
        return read(self, tokens)

    monkeypatch.setattr(Runner, "read", counting)
    progress = Silent()
    target = {"llama": llama_gguf, "mamba": mamba_gguf}[architecture]
    run_bench(request_of(target=str(target), runs=2), progress)
    assert n_read == n_readings


def test_every_answer_starts_from_the_calibration(request_of):
    result = run_bench(request_of(arms=("auto", "model")), Silent())
    cost = result.drafting.target_cost
    assert cost.drift == 1.0
    assert {str(width): cost.seconds(width) for width in cost.widths} == result.verify_s_by_width


# ---- arms ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["", "lookup:", "lookup:0", "lookup:x", "none:3", "nonsense", "model:999"])
def test_an_arm_that_cannot_be_is_refused(name):
    with pytest.raises(ConfigError) as error:
        Arm.parse(name, DraftConfig())
    assert error.value.hint


def test_the_arm_model_needs_a_draft_model_and_is_left_out_by_default(request_of):
    with pytest.raises(ConfigError, match="draft model"):
        run_bench(request_of(draft_model=None, arms=("model",)), Silent())
    result = run_bench(request_of(draft_model=None, arms=None, max_tokens=8), Silent())
    assert [arm.name for arm in result.arms] == ["none", "auto", "lookup"]


def test_what_contradicts_itself_is_refused(request_of):
    for wrong in ({"runs": 0}, {"is_forced": True}, {"is_checked": True, "sampling": {"temperature": 0.5}},
                  {"is_checked": True, "is_forced": True}):  # fmt: skip
        with pytest.raises(ConfigError):
            request_of(**wrong)


# ---- failures --------------------------------------------------------------------------------------------------------


def test_a_prompt_that_fails_is_a_failed_row_and_the_others_go_on(request_of):
    context = replace(ONE_THREAD, n_ctx=256)
    prompts = (prompt("huge", TEXT * 20, category="edit"), prompt("fits"))
    result = run_bench(request_of(*prompts, context=context), Silent())
    assert [(row["prompt"], row["category"], row["type"]) for row in result.failures] == [
        ("huge", "edit", "ContextFull")
    ]
    assert {sample.prompt_id for sample in result.samples} == {"fits"}
    assert {row["category"] for row in result.result()["rows"]} == {"code", "all"}


def test_where_everything_fails_there_are_no_rows(request_of):
    result = run_bench(request_of(prompt("huge", TEXT * 20), context=replace(ONE_THREAD, n_ctx=256)), Silent())
    assert (result.result()["rows"], len(result.failures)) == ([], 1)


def test_ctrl_c_leaves_the_prompts_that_are_complete(request_of):
    class Impatient(Silent):
        def step(self, n_done, n_answers, what):
            if n_done == 4:
                raise KeyboardInterrupt

    result = run_bench(request_of(prompt("a"), prompt("b")), Impatient())
    assert result.is_interrupted
    assert {sample.prompt_id for sample in result.samples} == {"a"}
    assert len(result.samples) == 3


# ---- forced ----------------------------------------------------------------------------------------------------------


def test_a_forced_answer_is_what_is_expected(request_of, llama_gguf):
    expected = "the other thing ends in something else, and the other thing ends in something"
    result = run_bench(request_of(prompt(expected=expected), is_forced=True, max_tokens=200), Silent())
    weights = Weights(llama_gguf, is_vocab_only=True)
    assert [detokenize(weights.vocab, sample.tokens) for sample in result.samples] == [expected] * 3
    weights.close()
    assert all(sample.metrics.n_committed == len(sample.tokens) for sample in result.samples)
    assert "forced output" in result.labels()
    lookup = next(sample for sample in result.samples if sample.arm == "lookup:4")
    assert lookup.metrics.n_accepted > 0  # its second half is a copy of the first


def test_a_forced_answer_is_cut_at_the_limit(request_of):
    result = run_bench(request_of(prompt(expected="one two three four"), is_forced=True, max_tokens=3), Silent())
    assert {len(sample.tokens) for sample in result.samples} == {3}


def test_prompts_without_an_expected_text_are_left_out_of_a_forced_run_and_counted(tmp_path):
    file = tmp_path / "prompts.jsonl"
    lines = [{"prompt": "a"}, {"prompt": "b", "expected": "c"}, {"prompt": "d"}]
    file.write_text("\n".join(map(json.dumps, lines)), encoding="utf-8")
    chosen, n_left_out = select_prompts(file, None, is_forced=True)
    assert ([one.prompt for one in chosen], n_left_out) == (["b"], 2)
    assert len(select_prompts(file, 2)[0]) == 2


# ---- check -----------------------------------------------------------------------------------------------------------


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
    assert difference["gap"] > 0.3
    assert difference["plain_text"]


@pytest.mark.parametrize(("gap", "kind"), [(0.0, "near tie"), (0.29, "near tie"), (0.31, "defect"), (None, "defect")])
def test_a_difference_is_a_near_tie_only_where_the_gap_is_small(gap, kind):
    assert Difference("a", "auto", 0, 3, 1, 2, gap).kind == kind


def test_a_flip_between_nearly_equal_tokens_is_called_a_near_tie(request_of, monkeypatch):
    """The two likeliest tokens made nearly equal at every width; wide blocks then prefer the second."""
    honest = LlamaModel.forward

    def tied(self, tokens, *, logits="all"):
        rows = honest(self, tokens, logits=logits)
        if logits == "all" and len(rows):
            rows = rows.copy()
            for row in rows:
                second, first = row.argsort()[-2:]
                row[second] = row[first] + (0.1 if len(rows) > 1 else -0.1)
        return rows

    monkeypatch.setattr(LlamaModel, "forward", tied)
    result = run_bench(request_of(is_checked=True, arms=("model:3",)), Silent())
    assert [difference["kind"] for difference in result.differences] == ["near tie"]
    assert result.differences[0]["gap"] == pytest.approx(0.1, abs=1e-4)


# ---- statistics ------------------------------------------------------------------------------------------------------


def sample(name: str, arm: str, run: int, tpot_s: float, category: str = "code", n: int = 11) -> Sample:
    """`n` tokens, one a round, the first one free of charge for the speed."""
    metrics = Metrics(n_prompt=101, prefill_s=1.0)
    made = [Round((5,), Draft((), "none"), 0.0, tpot_s, 0.0) for _ in range(n)]
    for one in made:
        metrics.add(one)
    return Sample(name, category, arm, run, (5,) * n, tuple(made), metrics, "length")


def test_an_interval_on_known_numbers():
    speedup = Speedup.of([1.0, 2.0, 4.0])
    half = 4.303 * math.log(2) / math.sqrt(3)
    assert speedup.mean == pytest.approx(2.0)
    assert speedup.low == pytest.approx(2 * math.exp(-half))
    assert speedup.high == pytest.approx(2 * math.exp(half))
    assert Speedup.of([1.5]) == Speedup(pytest.approx(1.5), None, None)
    assert Speedup.of([]) == Speedup(None)


@pytest.mark.parametrize(
    ("freedom", "quantile"), [(1, 12.706), (10, 2.228), (30, 2.042), (31, 2.0395), (60, 2.0003), (1000, 1.9623)]
)
def test_quantiles_are_those_of_the_tables(freedom, quantile):
    assert t_quantile(freedom) == pytest.approx(quantile, abs=0.0005)


def test_a_speedup_is_the_median_of_ratios_within_a_run():
    """The machine slows down threefold after the first run: ratios across runs would be nonsense."""
    samples = [sample("a", arm, run, tpot_s) for run, scale in enumerate((1, 3, 3)) for arm, tpot_s in
               (("none", 0.2 * scale), ("auto", (0.05 if run == 2 else 0.1) * scale))]  # fmt: skip
    assert speedups(samples) == {("a", "none"): pytest.approx(1), ("a", "auto"): pytest.approx(2)}


def test_rows_are_by_category_and_arm_and_over_all():
    samples = [sample("a", "auto", 0, 0.1), sample("a", "none", 0, 0.2), sample("b", "none", 0, 0.2, "chat"),
               sample("b", "auto", 0, 0.4, "chat", n=31)]  # fmt: skip
    table = {(row["category"], row["arm"]): row for row in rows(samples)}
    assert list(table) == [(category, arm) for category in ("code", "chat", "all") for arm in ("none", "auto")]
    assert table["code", "auto"]["speedup"] == pytest.approx(2)
    assert table["chat", "auto"]["speedup"] == pytest.approx(0.5)
    assert table["code", "auto"]["speedup_low"] is None
    assert table["all", "auto"]["speedup"] == pytest.approx(1)
    assert table["all", "auto"]["speedup_low"] < 0.01
    assert table["all", "auto"]["decode_tok_per_s"] == pytest.approx(
        40 / (1 + 12)
    )  # tokens over seconds, not a mean of speeds
    assert table["all", "none"]["prefill_tok_per_s"] == pytest.approx(100)
    assert table["all", "none"]["ceiling"] == pytest.approx(100 / 5)
    assert table["all", "auto"]["ttft_s"] == pytest.approx((1.1 + 1.4) / 2)
    assert table["all", "auto"]["n_prompts"] == 2


def test_sums_have_every_figure_of_the_metrics():
    round = Round((1, 2, 9), Draft((1, 2, 3), "model"), 0.1, 0.2, 0.3)
    one = Metrics(n_prompt=10, n_reused=2, prefill_s=1.0)
    one.add(round)
    both = total([one, one])
    for field in fields(Metrics):
        value, expected = getattr(both, field.name), getattr(one, field.name)
        if field.name == "n_reused":
            continue
        assert value == (expected + expected), field.name
    assert both.prefill_tok_per_s == pytest.approx(one.prefill_tok_per_s)


def test_one_answer_of_each_arm_shows_its_lengths_over_time():
    drafting = Round((1, 2, 9), Draft((1, 2, 3), "model"), 0.1, 0.2, 0.3)
    auto = replace(sample("b", "auto", 0, 0.1), rounds=(drafting, Round((4,), Draft((), "none"), 0, 1, 0)))
    shown = k_over_time(
        [sample("a", "none", 0, 0.1), sample("b", "none", 0, 0.1, n=20), sample("a", "auto", 0, 0.1), auto]
    )
    assert shown["auto"] == {"prompt": "b", "lengths": [3, 0], "accepted": [2, 0], "sources": ["model", "none"]}
    assert shown["none"]["prompt"] == "b"


# ---- the document ----------------------------------------------------------------------------------------------------


def test_rows_have_the_names_of_the_design_and_shares_add_up(request_of):
    result = run_bench(request_of(), Silent()).result()
    json.dumps(result, allow_nan=False)
    for row in result["rows"]:
        assert row.keys() >= SECTION_6
        assert sum(row["share_by_source"].values()) == pytest.approx(1)
        assert row["draft_share"] + row["verify_share"] + row["rest_share"] == pytest.approx(1)
    drafting = next(row for row in result["rows"] if row["arm"] == "model:3")
    lengths = {int(length): n for length, n in drafting["accepted_lengths"].items()}
    n_drafting = sum(drafting["drafted_lengths"].values())
    assert sum(lengths.values()) == n_drafting
    accepted = sum(length * n for length, n in lengths.items())
    assert accepted / n_drafting == pytest.approx(drafting["mean_accepted_draft"])
    assert {"1", "4", "16"} <= result["verify_s_by_width"].keys()
    assert result["draft_cost"]["token_s"] > 0
    assert result["interval"] == INTERVAL


def test_every_effective_parameter_is_recorded(request_of):
    """Fault 3."""
    result = run_bench(request_of(sampling={"top_k": 7}, runs=2), Silent())
    params = result.params()
    for config, not_here in (
        (SamplingConfig, set()),
        (ContextConfig, set()),
        (DraftConfig, {"drafter", "draft_length"}),
    ):
        assert params.keys() >= {field.name for field in fields(config)} - not_here
    assert (params["temperature"], params["top_k"], params["threads"], params["max_tokens"], params["runs"]) == (
        0,
        7,
        1,
        24,
        2,
    )
    assert params["n_ctx"] % 256 == 0 < params["n_ctx"]
    assert params["prompts"] == ["a"]
    assert params["arms"][1] == {
        "name": "lookup:4", "drafter": "lookup", "draft_length": 4, "most_drafted": 4, "is_controlled": False,
    }  # fmt: skip
    missing = {field.name for field in fields(BenchRequest)} - {"target", "draft_model", "sampling", "context", "draft"}
    assert params.keys() >= missing
    assert result.host()["build"]["ggml"]
    assert result.models()["draft_model"]["bytes"] > 0


# ---- comparison ------------------------------------------------------------------------------------------------------


def document(*speeds: tuple[str, str, float, float | None, float | None], **parts) -> dict:
    table = [
        {"category": category, "arm": arm, "speedup": mean, "speedup_low": low, "speedup_high": high}
        for category, arm, mean, low, high in speeds
    ]
    return {"schema": 1, "command": "bench", "host": {}, "models": {}, "params": {}, "result": {"rows": table}, **parts}


def test_slower_is_an_interval_below_the_old_one():
    old = document(("code", "auto", 1.5, 1.4, 1.6), ("chat", "auto", 1.0, 0.9, 1.1), ("all", "auto", 1.2, 1.1, 1.3))
    new = document(("code", "auto", 1.3, 1.2, 1.39), ("chat", "auto", 0.85, 0.8, 0.91), ("all", "auto", 1.5, 1.4, 1.6))
    found = compare(old, new)
    assert [(one.category, one.arm) for one in found.slower] == [("code", "auto")]
    assert (found.n_compared, found.warnings) == (3, [])
    assert compare(new, new).slower == []


def test_what_cannot_be_compared_and_what_has_changed_is_told():
    old = document(
        ("code", "auto", 1.5, None, None), ("chat", "auto", 1.0, 0.9, 1.1), host={"processor": "A"}, params={"runs": 1}
    )
    new = document(("code", "auto", 1.1, 1.0, 1.2), host={"processor": "B"}, params={"runs": 2})
    warnings = "\n".join(compare(old, new).warnings)
    for part in ('processor was "A", is "B"', "runs was 1, is 2", "code auto: no interval", "chat auto is not in"):
        assert part in warnings


@pytest.mark.parametrize("text", ["", "[]", '{"command": "generate"}', '{"command": "bench", "schema": 2}',
                                  '{"command": "bench", "schema": 1, "result": {"simulation": {}}}'])  # fmt: skip
def test_documents_of_another_kind_are_refused(tmp_path: Path, text):
    file = tmp_path / "old.json"
    file.write_text(text, encoding="utf-8")
    with pytest.raises(ConfigError):
        read_document(file)


# ---- simulation ------------------------------------------------------------------------------------------------------


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
