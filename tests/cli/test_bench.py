"""`specllm bench` as a user meets it: one document or a table, and exit codes that say what was found."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path

import pytest
from rich.cells import cell_len

from specllm.ui import bench as ui
from tests.cli.conftest import Result, run, run_all

PROMPTS = [
    {"id": "a", "category": "code", "prompt": "def it(self): return self.it", "expected": "the end and the end"},
    {"id": "b", "category": "code", "prompt": "def the(other): return other"},
    {"id": "c", "category": "chat", "prompt": "hello there"},
]


@pytest.fixture
def bench_of(tmp_path: Path, llama_gguf: Path, close_draft_gguf: Path):
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text("\n".join(map(json.dumps, PROMPTS)), encoding="utf-8")
    models = ("-m", str(llama_gguf), "--draft-model", str(close_draft_gguf), "--threads", "1")

    def bench(*arguments: str) -> Result:
        return run("bench", *models, "--prompts", str(prompts), "-n", "16", "--arms", "lookup:4,model:3", *arguments)

    return bench


def test_a_document_has_a_row_for_each_category_and_arm(bench_of) -> None:
    result = bench_of("--json", "--check")
    assert (result.code, result.stderr) == (0, "")
    document = result.document
    assert (document["schema"], document["command"], document["ok"]) == (1, "bench", True)
    assert document["host"]["processor"]
    assert document["models"]["draft_model"]["name"] == "close_draft"
    assert [arm["name"] for arm in document["params"]["arms"]] == ["none", "lookup:4", "model:3"]
    rows = {(row["category"], row["arm"]): row for row in document["result"]["rows"]}
    assert list(rows) == [(c, arm) for c in ("code", "chat", "all") for arm in ("none", "lookup:4", "model:3")]
    assert rows["all", "model:3"]["n_prompts"] == 3
    assert rows["all", "none"]["speedup"] == 1
    assert rows["chat", "model:3"]["speedup_low"] is None
    assert document["result"]["differences"] == []
    assert document["result"]["labels"] == ["the model's own output", "greedy", "cold drafters"]


def test_a_table_in_a_pipe_is_aligned_text_with_its_labels(bench_of) -> None:
    plain, forced = run_all([partial(bench_of, "--limit", "2"), partial(bench_of, "--forced")])
    assert (plain.code, plain.stderr) == (0, "")
    lines = plain.stdout.splitlines()
    assert lines[0] == "the model's own output, greedy, cold drafters"
    assert lines[1].split() == ["category", "arm", "tok/s", "speed-up", "[95", "%]", "tok/forward", "accepted"]
    assert len(lines) == 1 + 1 + 9 + 1
    assert "\x1b" not in plain.stdout
    assert forced.stdout.startswith("forced output, greedy")
    assert "(forced output)" in forced.stdout.splitlines()[-1]
    assert forced.stderr == "2 prompts have no expected text and are left out\n"


def test_slower_than_before_is_exit_code_3(bench_of, tmp_path: Path) -> None:
    document = bench_of("--json").document
    for name, factor, code in (("fast", 1e9, 3), ("slow", 1e-9, 0)):  # far beyond any noise
        old = json.loads(json.dumps(document))
        for row in old["result"]["rows"]:
            for key in ("speedup", "speedup_low", "speedup_high"):
                row[key] = row[key] and row[key] * factor
        file = tmp_path / f"{name}.json"
        file.write_text(json.dumps(old), encoding="utf-8")
        result = bench_of("--json", "--compare", str(file))
        assert result.code == code
        assert result.document["ok"] is (code == 0)
        slower = result.document["result"]["comparison"]["slower"]
        assert {one["category"] for one in slower} == ({"code", "all"} if code else set())
        assert ("slower than before" in result.stderr) is bool(code)


def test_documents_and_arms_that_make_no_sense_are_exit_code_2(bench_of, tmp_path: Path) -> None:
    other = tmp_path / "other.json"
    other.write_text('{"schema": 1, "command": "generate", "result": {}}', encoding="utf-8")
    results = run_all([
        partial(bench_of, "--compare", str(other)), partial(bench_of, "--arms", "magic"), partial(bench_of, "--runs", "0"),
        partial(bench_of, "--prompts", str(tmp_path / "none")), partial(bench_of, "--simulate", "accept=2"),
        partial(bench_of, "--check", "-t", "1"),
    ])  # fmt: skip
    assert [result.code for result in results] == [2] * 6
    assert all(result.stderr.startswith("error: ") and "hint: " in result.stderr for result in results)


def test_a_prompt_that_fails_is_told(bench_of) -> None:
    result = bench_of("--ctx", "32")
    assert result.code == 0
    assert "failed: a (code): the prompt is" in result.stderr


def test_a_simulation_tells_the_best_length_and_where_drafts_begin_to_pay(bench_of) -> None:
    words = ("--simulate", "accept=0.9,draft_cost=0.01")
    shown, printed = run_all([partial(bench_of, *words, "--json"), partial(bench_of, *words)])
    simulation = shown.document["result"]["simulation"]
    assert (simulation["accept"], simulation["draft_cost"]) == (0.9, 0.01)
    lengths = [
        one["draft_length"] for one in simulation["lengths"]
    ]  # of the measured widths; with the kernels they are fewer
    assert (lengths[0], lengths) == (1, sorted(set(lengths)))
    assert {3, 15} <= set(lengths)
    assert "rows" not in shown.document["result"]
    lines = printed.stdout.splitlines()
    assert lines[1].split() == ["draft", "length", "speed-up", "pays", "from"]
    assert lines[-1].startswith(("best: ", "plain decoding is faster"))


# ---- words -----------------------------------------------------------------------------------------------------------


def row(category: str, arm: str, mean: float, low: float | None = None, high: float | None = None) -> dict[str, object]:
    return {
        "category": category, "arm": arm, "speedup": mean, "speedup_low": low, "speedup_high": high, "n_prompts": 9,
        "decode_tok_per_s": 1234.5, "tokens_per_forward": 12.34, "acceptance_rate": 0.987,
    }  # fmt: skip


def result_of(*rows: dict[str, object], **parts: object) -> dict[str, object]:
    defaults = {"labels": ["cold drafters"], "failures": [], "differences": None, "is_interrupted": False}
    return {**defaults, "rows": rows, **parts}


@pytest.mark.parametrize(
    ("interval", "says"),
    [((1.1, 1.4), "surely faster"), ((0.7, 0.9), "surely slower"), ((0.9, 1.2), "no sure difference with 9 prompts"),
     ((None, None), "one prompt tells nothing")],
)  # fmt: skip
def test_the_verdict_claims_what_the_interval_allows(interval, says) -> None:
    line = ui.verdict(result_of(row("all", "none", 1.0), row("all", "auto", 1.0, *interval)))
    assert line.startswith("auto: ")
    assert says in line


def test_the_verdict_names_a_better_arm_and_what_was_forced() -> None:
    rows = (row("all", "none", 1.0), row("all", "auto", 1.2, 1.1, 1.3), row("all", "lookup", 1.5, 1.4, 1.6))
    line = ui.verdict(result_of(*rows, labels=["forced output", "learned drafters"]))
    assert line.endswith("best arm: lookup, 1.50 x (forced output, learned drafters)")


def test_the_table_fits_80_columns_on_a_terminal(monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    monkeypatch.setattr(ui, "is_terminal", lambda stream: True)
    monkeypatch.setattr(ui, "has_colour", lambda stream: False)
    monkeypatch.setenv("COLUMNS", "80")
    ui.print_bench(result_of(row("summarization", "lookup:127", 10.23, 10.12, 11.38), row("all", "none", 1.0)))
    lines = capsys.readouterr().out.splitlines()
    assert max(map(cell_len, lines)) <= 80
    shown = next(line for line in lines if "summarization" in line)
    for part in ("lookup:127", "1234.5", "10.23 [10.12-11.38]", "12.34", "99%"):
        assert part in shown


def test_defects_come_before_near_ties(capsys) -> None:
    tie = {
        "kind": "near tie",
        "prompt": "a",
        "arm": "auto",
        "position": 3,
        "plain_text": "x",
        "arm_text": "y",
        "gap": 0.1,
        "gap_in_blocks": 0.2,
    }
    defect = {**tie, "kind": "defect", "gap": 4.0, "gap_in_blocks": 3.0, "arm_text": "\x1b[2J"}
    ui.print_bench(result_of(row("all", "none", 1.0), differences=[tie, defect]))
    lines = capsys.readouterr().err.splitlines()
    assert [line.partition(":")[0] for line in lines] == ["defect", "near tie"]
    assert "4.000 apart, in its blocks 3.000" in lines[0]
    assert "\x1b" not in lines[0]
