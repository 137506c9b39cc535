"""`--logprobs`, `--exact` and structured output where commands take them."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path

from tests.cli.conftest import QUICK, run, run_all

SCHEMA = {"type": "object", "additionalProperties": False, "required": ["a"], "properties": {"a": {"type": "boolean"}}}
TALK = ("--threads", "1", "--seed", "1", "--drafter", "lookup", "-k", "5")


def test_log_probabilities_go_into_the_document_and_the_trace(tmp_path: Path, llama_gguf: Path) -> None:
    trace = tmp_path / "trace.jsonl"
    command = partial(run, "generate", "def it(self): self.it", "-m", str(llama_gguf), *QUICK, "-n", "20", "-t", "1")
    drafted, plain, without, nowhere, many = run_all([
        partial(command, "--logprobs", "3", "--json", "--exact", "--trace", str(trace)),
        partial(command, "--logprobs", "3", "--json", "-k", "0"),
        partial(command, "--json"),
        partial(command, "--logprobs", "3"),
        partial(command, "--logprobs", "21", "--json"),
    ])  # fmt: skip
    records, expected = drafted.document["result"]["logprobs"], plain.document["result"]["logprobs"]
    assert len(records) == drafted.document["result"]["stats"]["n_committed"]
    assert [record["token"] for record in records] == [record["token"] for record in expected]
    assert all(len(record["raw"]["best"]) == 3 and record["raw"]["logprob"] < 0 for record in records)
    assert {"width_by_cells", "measuring_s"} <= drafted.document["result"]["exact"].keys()
    assert not {"exact", "logprobs"} & without.document["result"].keys()
    lines = [json.loads(line) for line in trace.read_text(encoding="utf-8").splitlines()]
    assert [record for line in lines for record in line["logprobs"]] == records
    assert run("replay", str(trace), "--json").document["result"]["logprobs"] == records
    assert (nowhere.code, many.code) == (2, 2)
    assert "--logprobs has nowhere to go" in nowhere.stderr
    assert "use --logprobs with 0" in many.document["error"]["hint"]


def test_chat_and_bench_keep_to_a_structure(tmp_path: Path, llama_gguf: Path) -> None:
    prompts = tmp_path / "rows.jsonl"
    prompts.write_text(json.dumps({"id": "a", "prompt": "give it", "schema": SCHEMA}), encoding="utf-8")
    talk = partial(run, "chat", "-m", str(llama_gguf), *TALK, "--json-schema", json.dumps(SCHEMA))
    bench = partial(
        run, "bench", "-m", str(llama_gguf), "--threads", "1", "--arms", "lookup:4,lookup:4+exact", "--check"
    )
    whole, cut, wrong, measured, chosen = run_all([
        partial(talk, "--message", "one", "--message", "two", "-q"),
        partial(talk, "--message", "one", "-n", "2"),
        partial(run, "chat", "-m", "missing.gguf", "--regex", "(", "--message", "one"),
        partial(bench, "--prompts", str(prompts), "-n", "40"),
        partial(bench, "--prompts", str(prompts), "-n", "3", "--choice", "yes", "--json"),
    ])  # fmt: skip
    assert whole.code == 0
    assert all(json.loads(line)["a"] in (True, False) for line in whole.stdout.splitlines())
    assert cut.code == 1
    assert "before it was complete" in cut.stderr
    assert wrong.code == 2
    assert "the regular expression cannot be used" in wrong.stderr
    assert (measured.code, measured.stderr) == (0, "")
    assert "valid by their schemas: 3 of 3 answers; asking the grammar took at most" in measured.stdout
    assert "lookup:4+exact" in measured.stdout
    assert [sample["is_valid"] for sample in chosen.document["result"]["samples"]] == [False] * 3


def test_the_bytes_of_a_character_that_is_split_over_tokens_are_in_the_log_probabilities(llama_gguf: Path) -> None:
    """Each token of an emoji is U+FFFD as text; together their bytes are the character."""
    choice = ("--choice", "🙂é", "--logprobs", "2", "--json")
    result = run("generate", "hi", "-m", str(llama_gguf), *QUICK, *choice, "-t", "0").document["result"]
    records = result["logprobs"]
    assert result["text"] == "🙂é"
    assert bytes(byte for record in records for byte in record["bytes"]).decode().startswith("🙂é")
    assert "\ufffd" in {record["text"] for record in records}
    for record in records:
        for one in (record, *record["raw"]["best"], *record["sampled"]["best"]):
            assert bytes(one["bytes"]).decode("utf-8", "replace") == one["text"]


def test_a_control_token_is_a_stop_string(llama_gguf: Path) -> None:
    bias = ("--logit-bias", "3=100")  # <|im_start|>, which is no end of generation, comes first
    command = partial(run, "generate", "hi", "-m", str(llama_gguf), *QUICK, *bias, "-n", "8", "--json")
    stopped, going_on = run_all([partial(command, "--stop", "<|im_start|>"), command])
    assert (stopped.document["result"]["finish_reason"], stopped.document["result"]["text"]) == ("stop", "")
    assert stopped.document["result"]["stats"]["n_committed"] == 1
    assert going_on.document["result"]["finish_reason"] == "length"
