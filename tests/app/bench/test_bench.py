"""Benchmarks on tiny real models: what is paired with what, what is counted, and what is told."""

from __future__ import annotations

import json
from collections import defaultdict
from dataclasses import dataclass, field, fields, replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specllm.app.bench.arms import Arm
from specllm.app.bench.runner import Memory, Runner, rotated, side_by_side
from specllm.app.bench.stats import INTERVAL
from specllm.app.bench.use_case import BenchRequest, run_bench, select_prompts
from specllm.app.drafting import new_acceptance
from specllm.config import ContextConfig, DraftConfig, SamplingConfig
from specllm.decoding.protocols import Draft, Round
from specllm.errors import BackendError, ConfigError
from specllm.runtime import interrupt
from specllm.runtime.llama import LlamaModel, Weights
from specllm.runtime.vocab import detokenize
from tests.app.bench.benches import ONE_THREAD, Silent, prompt
from tests.app.sessions import TEXT

SECTION_6 = {
    "category", "arm", "n_prompts", "speedup", "speedup_low", "speedup_high", "decode_tok_per_s", "tokens_per_forward",
    "acceptance_rate", "acceptance_by_position", "zero_accept_share", "ttft_s", "prefill_tok_per_s",
}  # fmt: skip


# ---- pairs -----------------------------------------------------------------------------------------------------------


def test_plain_decoding_always_runs_and_the_runs_of_a_prompt_stand_together(request_of):
    progress = Silent()
    result = run_bench(request_of(prompt("a"), prompt("b"), runs=3), progress)
    order = defaultdict(set)
    for sample in result.samples:
        order[sample.prompt_id, sample.run].add(sample.arm)
    assert list(order) == [(name, run) for name in "ab" for run in range(3)]
    assert all(arms == {"lookup:4", "model:3", "none"} for arms in order.values())
    assert len(progress.steps) == 2 + len(result.samples)


@dataclass
class Steps:
    """An answer that commits so many tokens in each of its steps, and looks at the others when it is its turn."""

    name: int
    steps: list[int]
    others: list[Steps] = field(default_factory=list)
    n_committed: int = 0

    def advance(self) -> bool:
        unfinished = [other for other in self.others if other.steps]
        assert all(self.n_committed <= other.n_committed for other in unfinished)
        self.n_committed += self.steps.pop(0)
        return bool(self.steps)


@given(st.lists(st.lists(st.integers(0, 5), min_size=1, max_size=8), min_size=1, max_size=4))
def test_the_arm_that_has_said_least_goes_on(lengths):
    answers = [Steps(name, steps) for name, steps in enumerate(lengths)]
    for answer in answers:
        answer.others = answers
    assert {answer.name for answer in side_by_side(answers)} == set(range(len(lengths)))
    assert not any(answer.steps for answer in answers)


def test_every_run_begins_with_another_arm():
    assert ["".join(rotated("abc", turn)) for turn in range(4)] == ["abc", "bca", "cab", "abc"]


def test_arms_are_in_the_middle_of_their_answers_at_the_same_time_and_each_begins_once(request_of, monkeypatch):
    honest, progress = LlamaModel.forward, Silent()
    contexts = defaultdict(list)  # by answers that are complete: two arms, so 1 and 3 where a run begins

    def seen(self, tokens, *, logits="all"):
        if progress.steps and logits == "all":
            contexts[len(progress.steps)].append(id(self))
        return honest(self, tokens, logits=logits)

    monkeypatch.setattr(LlamaModel, "forward", seen)
    run_bench(request_of(arms=("lookup:1",), draft_model=None, max_tokens=24, runs=2), progress)
    for run in (contexts[1], contexts[3]):
        assert len(set(run)) == 2
        assert sum(a != b for a, b in pairwise(run)) > len(run) / 2
    assert contexts[1][0] != contexts[3][0]


def test_an_answer_that_fails_in_one_lane_leaves_none_half_made(request_of, monkeypatch):
    honest, progress = LlamaModel.forward, Silent()
    widths = []

    def failing(self, tokens, *, logits="all"):
        if progress.steps and logits == "all" and len(tokens) > 1:
            widths.append(len(tokens))
            if len(widths) == 2:
                raise BackendError("llama_decode failed", "")
        return honest(self, tokens, logits=logits)

    monkeypatch.setattr(LlamaModel, "forward", failing)
    result = run_bench(request_of(prompt("a"), prompt("b")), progress)
    assert [failure["prompt"] for failure in result.failures] == ["a"]
    assert {sample.prompt_id for sample in result.samples} == {"b"}
    assert len({sample.tokens for sample in result.samples}) == 1
    assert not interrupt._n_inside  # no suspended answer waits for Ctrl-C any more


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
        believed, in_code = (new_acceptance(kind)["lookup"].chance(3) for kind in ("prose", "code"))
        assert acceptance["lookup"].chance(3) == believed < in_code
        acceptance["lookup"].observe(seen)
        memory.keep("lookup", "prose", acceptance)
        assert (memory.start("lookup", "prose")["lookup"].chance(3) != believed) is is_kept
        assert memory.start("auto", "prose")["lookup"].chance(3) == believed
        assert memory.start("lookup", "```code```")["lookup"].chance(3) == in_code
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

    def counting(self, session, tokens):
        nonlocal n_read
        n_read += bool(progress.steps)
        return read(self, session, tokens)

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
            "is_exact": False,
    }  # fmt: skip
    missing = {field.name for field in fields(BenchRequest)} - {"target", "draft_model", "sampling", "context", "draft"}
    assert params.keys() >= missing
    assert result.host()["build"]["ggml"]
    assert result.models()["draft_model"]["bytes"] > 0
