"""Benchmarks whose prompts have a schema: every arm keeps to it, and somebody else judges that."""

from __future__ import annotations

import json

import pytest

from specllm.app.bench import validation
from specllm.app.bench.use_case import run_bench
from specllm.app.bench.validation import problem
from specllm.app.prompts.reading import read_prompts
from specllm.config import StructureConfig
from specllm.errors import ConfigError
from tests.app.bench.benches import Silent, prompt

SCHEMA = {
    "type": "object", "additionalProperties": False, "required": ["kind", "list"],
    "properties": {
        "kind": {"enum": ["the thing", "the other"]},
        "list": {"type": "array", "items": {"type": "boolean"}, "minItems": 2, "maxItems": 3},
    },
}  # fmt: skip


def test_every_answer_is_valid_and_that_of_plain_decoding(request_of):
    rows = [prompt("a", schema=json.dumps(SCHEMA)), prompt("b")]
    request = request_of(*rows, arms=("lookup:4", "model:3", "auto"), max_tokens=80, is_checked=True)
    result = run_bench(request, Silent())
    assert result.failures == result.differences == []
    texts = {(sample.prompt_id, sample.tokens) for sample in result.samples}
    assert len(texts) == 2
    bound = [sample for sample in result.samples if sample.prompt_id == "a"]
    assert all(sample.is_valid and sample.problem is None for sample in bound)
    assert all(0 < sample.constraint_s < sample.metrics.decode_s for sample in bound)
    assert all(sample.metrics.accepted_by_source["grammar"] for sample in bound if sample.arm != "none")
    assert {sample.is_valid for sample in result.samples if sample.prompt_id == "b"} == {None}
    overall = {row["arm"]: row for row in result.result()["rows"] if row["category"] == "all"}
    for row in overall.values():
        assert (row["n_valid"], row["n_invalid"], row["valid_share"]) == (1, 0, 1.0)
        assert 0 < row["constraint_share"] < 1


def test_a_cut_answer_is_not_valid_and_says_why(request_of):
    result = run_bench(request_of(prompt(schema=json.dumps(SCHEMA)), max_tokens=5), Silent())
    assert [sample.is_valid for sample in result.samples] == [False] * 3
    assert all(sample.problem.startswith("no JSON: ") for sample in result.samples)
    assert result.result()["rows"][-1]["valid_share"] == 0


def test_a_structure_for_all_prompts_yields_to_a_prompts_own(request_of):
    own = prompt("own", schema=json.dumps(SCHEMA))
    structure = StructureConfig(kind="regex", text="(it|the){3}")
    result = run_bench(request_of(own, prompt("other"), structure=structure, max_tokens=80), Silent())
    assert [sample.is_valid for sample in result.samples] == [True] * 3 + [None] * 3
    assert all(sample.constraint_s is not None for sample in result.samples)
    assert result.params()["structure"]["text"] == "(it|the){3}"


def test_a_schema_that_cannot_be_compiled_fails_its_prompt_alone(request_of):
    bad = prompt("bad", schema='{"type": "strin"}')
    result = run_bench(request_of(bad, prompt("good", schema=json.dumps(SCHEMA)), max_tokens=80), Silent())
    assert [failure["prompt"] for failure in result.failures] == ["bad"]
    assert {sample.prompt_id for sample in result.samples} == {"good"}


def test_a_forced_answer_is_bound_by_nothing(request_of):
    forced = prompt(expected="the end and the end", schema=json.dumps(SCHEMA))
    result = run_bench(request_of(forced, is_forced=True), Silent())
    assert {sample.is_valid for sample in result.samples} == {None}
    with pytest.raises(ConfigError, match="a forced answer"):
        request_of(forced, is_forced=True, structure=StructureConfig(kind="json_object"))


def test_without_the_judge_nothing_is_loaded(request_of, monkeypatch):
    monkeypatch.setattr(validation, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match="jsonschema") as error:
        run_bench(request_of(prompt(schema=json.dumps(SCHEMA)), target="no such file.gguf"), Silent())
    assert "pip install" in error.value.hint
    assert run_bench(request_of(max_tokens=4), Silent()).samples  # nothing to judge


def test_exact_arms_are_arms(request_of):
    result = run_bench(request_of(arms=("model:3", "model:3+exact"), max_tokens=24, is_checked=True), Silent())
    assert [arm.name for arm in result.arms] == ["none", "model:3", "model:3+exact"]
    assert [arm.described()["is_exact"] for arm in result.arms] == [False, False, True]
    assert result.differences == []
    assert result.result()["width_by_cells"]
    assert run_bench(request_of(max_tokens=4), Silent()).result()["width_by_cells"] is None


@pytest.mark.parametrize("name", ["+exact", "none:3+exact", "auto+exactly", "auto+exact+exact"])
def test_an_exact_arm_that_cannot_be_is_refused(request_of, name):
    with pytest.raises(ConfigError):
        run_bench(request_of(arms=(name,)), Silent())


@pytest.mark.parametrize(
    ("text", "schema", "says"),
    [
        ('{"kind": "the thing", "list": [true, false]}', SCHEMA, None),
        ('{"kind": "the thing", "list": [true]}', SCHEMA, r"$.list: [True] is too short"),
        ('{"kind": "a"', SCHEMA, "no JSON: "),
        ("1", {"type": "strin"}, "its schema is none: "),
        ("1", {"$ref": "http://localhost:1/schema.json"}, "its schema cannot be checked: "),
        ('{"type": "object"}', {"$ref": "http://json-schema.org/draft-07/schema#"}, None),
        ('"a"', {"pattern": "("}, "its schema "),
        ('"2020"', {"$schema": "http://json-schema.org/draft-04/schema", "format": "date"}, None),
        ("3", {"$schema": "http://json-schema.org/draft-04/schema", "minimum": 3, "exclusiveMinimum": True}, "$: 3 is"),
        ("[" * 100_000, SCHEMA, "no JSON: "),
    ],
)
def test_a_judge_that_had_no_part_in_it(text, schema, says):
    found = problem(text, json.dumps(schema))
    assert found is None if says is None else found.startswith(says)


def test_a_row_may_bring_its_schema(tmp_path):
    file = tmp_path / "rows.jsonl"
    file.write_text(json.dumps({"id": 1, "prompt": "give it", "schema": SCHEMA}), encoding="utf-8")
    (row,) = read_prompts(file)
    assert (row.category, json.loads(row.schema)) == ("json", SCHEMA)
    file.write_text(json.dumps({"prompt": "give it", "schema": "{}"}), encoding="utf-8")
    with pytest.raises(ConfigError, match="'schema' is a text, not an object"):
        read_prompts(file)
