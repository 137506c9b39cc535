"""`--template-var` in every command that renders a chat template, and what is said about templates."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path

from tests.cli.conftest import run, run_all
from tests.synthetic import CHAT_TEMPLATE, write_llama

TEMPLATE = CHAT_TEMPLATE + "{% if enable_thinking is defined and enable_thinking is false %}<think></think>{% endif %}"
OFF = ("--template-var", "enable_thinking=true", "--template-var", "enable_thinking=false")  # the last one counts
TALK = ("--threads", "1", "-t", "0", "-n", "3", "--json")


def test_a_variable_reaches_the_template_in_every_command(tmp_path: Path) -> None:
    model = str(write_llama(tmp_path / "m.gguf", chat_template=TEMPLATE))
    file = tmp_path / "a.txt"
    file.write_text("one\n", encoding="utf-8")
    prompts = tmp_path / "rows.jsonl"
    prompts.write_text(json.dumps({"id": "a", "prompt": "hi"}), encoding="utf-8")
    plain, off, unknown, bad, ours, talked, edited, measured = run_all([
        partial(run, "generate", "hi", "-m", model, *TALK, "-k", "0"),
        partial(run, "generate", "hi", "-m", model, *TALK, "-k", "0", *OFF),
        partial(run, "generate", "hi", "-m", model, *TALK, "-k", "0", "--template-var", "enable_thinkin=false"),
        partial(run, "generate", "hi", "-m", model, *TALK, "-k", "0", "--template-var", "x"),
        partial(run, "generate", "hi", "-m", model, *TALK, "-k", "0", "--template-var", "messages=1"),
        partial(run, "chat", "--message", "hi", "-m", model, *TALK, "-k", "0", *OFF),
        partial(run, "edit", str(file), "change it", "-m", model, *TALK, "-k", "0", *OFF),
        partial(run, "bench", "--prompts", str(prompts), "--arms", "lookup:2", "-m", model, *TALK, *OFF),
    ])  # fmt: skip
    n_plain = plain.document["result"]["stats"]["n_prompt"]
    n_off = off.document["result"]["stats"]["n_prompt"]
    assert n_off > n_plain
    assert off.document["params"]["template_vars"] == {"enable_thinking": False}
    assert talked.document["result"]["turns"][0]["stats"]["n_prompt"] == n_off
    assert measured.document["params"]["template_vars"] == {"enable_thinking": False}
    assert "no variable" not in edited.stderr
    assert (unknown.code, bad.code, ours.code) == (2, 2, 2)
    assert unknown.document["error"]["hint"] == "it looks at enable_thinking"


def test_what_a_template_makes_of_a_request_is_told_once_on_stderr(tmp_path: Path) -> None:
    thinking = str(write_llama(tmp_path / "thinks.gguf", chat_template=TEMPLATE))
    bare = str(write_llama(tmp_path / "bare.gguf", chat_template=None))
    file = tmp_path / "a.txt"
    file.write_text("one\n", encoding="utf-8")
    shape = ("--choice", "yes", "--choice", "no", "-q")
    quick = ("--threads", "1", "-t", "0", "-n", "9", "-k", "0")
    shaped, off, raw, meant, talked, edited = run_all([
        partial(run, "generate", "hi", "-m", thinking, *quick, *shape),
        partial(run, "generate", "hi", "-m", thinking, *quick, *shape, *OFF),
        partial(run, "generate", "hi", "-m", bare, *quick, "-q"),
        partial(run, "generate", "hi", "-m", bare, *quick, "-q", "--raw"),
        partial(run, "chat", "--message", "one", "--message", "two", "-m", thinking, *quick, *shape),
        partial(run, "edit", str(file), "change it", "-m", bare, *quick, "--dry-run"),
    ])  # fmt: skip
    told = "--template-var enable_thinking=false"
    assert [text.count(told) for text in (shaped.stderr, off.stderr, talked.stderr)] == [1, 0, 1]
    assert shaped.stderr.startswith("warning: the answer begins at once")
    assert [text.count("has no chat template") for text in (raw.stderr, meant.stderr)] == [1, 0]
    assert edited.code != 70
