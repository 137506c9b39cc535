"""Structured output from the command line: what is accepted, what is refused, and how a cut answer is told."""

from __future__ import annotations

import json
import re
from functools import partial
from pathlib import Path

from tests.cli.conftest import QUICK, run, run_all

SCHEMA = {
    "type": "object", "additionalProperties": False, "required": ["kind", "yes"],
    "properties": {"kind": {"enum": ["alpha", "beta"]}, "yes": {"type": "boolean"}},
}  # fmt: skip
REFUSED = [
    (["--json-schema", '{"type": "strin"}'], "Invalid type: strin"),
    (["--json-schema", "missing.json"], r"cannot read missing.json: No such file(.|\n)*check --json-schema"),
    (["--regex", r"[^\s\S]"], "allows no text"),
    (["--choice", "a", "--choice", ""], "a choice is empty"),
    (["--grammar", "BAD"], "unknown name"),
    (["--grammar", "DEEP"], "nested deeper"),
    (["--json-schema", "DEEPER"], "nested deeper"),
    (
        ["--json-schema", '{"type": "object", "properties": {"n": {"$ref": "#"}}, "required": ["n"]}'],
        "no finite answer",
    ),
    (["--json-object", "--regex", "a"], "--json-object and --regex exclude each other"),
]


def test_an_answer_in_each_structure(tmp_path: Path, llama_gguf: Path) -> None:
    schema, lark, gbnf = tmp_path / "schema.json", tmp_path / "rules.lark", tmp_path / "rules.gbnf"
    schema.write_text(json.dumps(SCHEMA), encoding="utf-8")
    lark.write_text('start: ("ab" | "é")~3', encoding="utf-8")
    gbnf.write_text('root ::= ("ab" | "é") ("ab" | "é") ("ab" | "é")', encoding="utf-8")
    asked = {
        r'\{"kind": "(alpha|beta)", "yes": (true|false)\}': [
            ["--json-schema", str(schema)], ["--json-schema", json.dumps(SCHEMA, indent=1), "-k", "0"],
        ],
        r"[ab]{3}日": [["--regex", "[ab]{3}日"]],
        r"(yes|no, no)": [["--choice", "yes", "--choice", "no, no", "-d", "none"]],
        r"(ab|é){3}": [["--grammar", str(lark)], ["--grammar", str(gbnf)]],
    }  # fmt: skip
    pairs = [(pattern, options) for pattern, several in asked.items() for options in several]
    command = partial(run, "generate", "hi", "-m", str(llama_gguf), *QUICK, "-n", "200")
    for (pattern, options), result in zip(pairs, run_all([partial(command, *o) for _, o in pairs]), strict=True):
        assert result.code == 0, (options, result)
        assert re.fullmatch(pattern, result.stdout), (options, result.stdout)


def test_what_is_asked_for_is_recorded_and_a_cut_answer_is_a_failure(tmp_path: Path, llama_gguf: Path) -> None:
    command = partial(run, "generate", "hi", "-m", str(llama_gguf), *QUICK, "--json-schema", json.dumps(SCHEMA))
    whole, cut, shown = run_all(
        [partial(command, *options) for options in (["--json"], ["--json", "-n", "5"], ["-n", "5"])]
    )
    assert (whole.code, whole.document["ok"]) == (0, True)
    assert json.loads(whole.document["result"]["text"]).keys() == {"kind", "yes"}
    assert whole.document["result"]["finish_reason"] == "stop"
    assert whole.document["params"]["structure"]["kind"] == "json_schema"
    assert json.loads(whole.document["params"]["structure"]["text"]) == SCHEMA
    assert whole.document["result"]["stats"]["accepted_by_source"]["grammar"] > 10
    assert (cut.code, cut.document["ok"], cut.document["result"]["finish_reason"]) == (1, False, "length")
    assert whole.document["result"]["text"].startswith(cut.document["result"]["text"])
    assert shown.code == 1
    assert whole.document["result"]["text"].startswith(shown.stdout)
    assert "error: the answer was cut after 5 tokens, before it was complete\nhint: allow more with -n" in shown.stderr


def test_what_cannot_be_used_is_refused_before_anything_is_generated(tmp_path: Path, llama_gguf: Path) -> None:
    files = {"BAD": "start: nope", "DEEP": "root ::= " + "(" * 5000 + '"a"' + ")" * 5000, "DEEPER": "[" * 200_000}
    for name, text in files.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    command = partial(run, "generate", "hi", "-m", str(llama_gguf), *QUICK, "--json")
    calls = [
        partial(command, *(str(tmp_path / option) if option in files else option for option in options))
        for options, _ in REFUSED
    ]
    for (options, says), result in zip(REFUSED, run_all(calls), strict=True):
        assert result.code == 2, (options, result)
        error = result.document["error"]
        assert error["type"] == "ConfigError"
        assert re.search(says, error["message"] + "\n" + error["hint"]), (options, error)
        assert error["hint"]
        assert "Traceback" not in result.stderr
