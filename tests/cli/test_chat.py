"""`specllm chat` without a terminal: lines in, answers out, everything else on stderr."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
from functools import partial
from pathlib import Path

import pytest

from tests import synthetic
from tests.cli.conftest import COMMAND, TIMEOUT_S, Result, run, run_all
from tests.synthetic import EOS, IM_END

QUICK = ("--threads", "1", "--seed", "1", "--drafter", "lookup", "-k", "5", "-n", "8",
         "--logit-bias", f"{EOS}=-inf", "--logit-bias", f"{IM_END}=-inf")  # fmt: skip


def chat(model: Path, *arguments: str, **options) -> Result:
    return run("chat", "-m", str(model), *QUICK, *arguments, **options)


def test_lines_are_messages_and_commands(llama_gguf: Path, tmp_path: Path) -> None:
    saved = tmp_path / "talk.jsonl"
    lines = f"hello\r\n\n   \n/tokens\n/save {saved}\n/save {saved}\n/udno\n/undo\n/set top_k 1\nlast"
    piped, given = run_all([
        partial(chat, llama_gguf, stdin=lines),
        partial(chat, llama_gguf, "--message", "hello", "--message", "/undo", "--message", "/set top_k 1",
                "--message", "last"),
    ])  # fmt: skip
    assert piped.stdout == given.stdout
    assert (piped.code, given.code) == (1, 0)  # two lines were wrong; the chat went on
    assert "error: there is no command /udno\nhint: did you mean /undo?" in piped.stderr
    assert f"error: {saved} is there already\nhint: " in piped.stderr
    assert "turn 1   4 asked, 8 answered" in piped.stderr
    assert "taken back  hello" in piped.stderr
    assert "reused 0, read" in piped.stderr
    roles = [json.loads(line)["role"] for line in saved.read_text(encoding="utf-8").splitlines()]
    assert roles == ["user", "assistant"]


def test_what_a_look_hides_is_said(llama_gguf: Path) -> None:
    looks = ["--message", "/color", "--message", "/markdown", "--message", "/color", "--message", "/color"]
    plain, live = run_all([
        partial(chat, llama_gguf, *looks), partial(chat, llama_gguf, "--live", "--message", "/markdown")
    ])  # fmt: skip
    assert plain.stderr.splitlines() == [
        "colours by source are on", "Markdown is on, and hides colours by source", "colours by source are off",
        "colours by source are on, but Markdown hides them",
    ]  # fmt: skip
    assert live.code == 2
    assert "start the chat without it" in live.stderr


def test_json_is_one_document_of_all_turns(llama_gguf: Path) -> None:
    result, text = run_all([
        partial(chat, llama_gguf, "--json", "-s", "be brief", "--message", "one 海", "--message", "two"),
        partial(chat, llama_gguf, "-s", "be brief", "--message", "one 海", "--message", "two", "-q"),
    ])  # fmt: skip
    document = result.document
    first, second = document["result"]["turns"]
    assert (document["command"], document["ok"], result.code) == ("chat", True, 0)
    assert set(first) == {"user", "text", "finish_reason", "stats"}
    assert (first["user"], first["finish_reason"]) == ("one 海", "length")
    assert second["stats"]["n_reused"] == first["stats"]["n_prompt"] + first["stats"]["n_committed"] - 1
    assert document["params"]["system"] == "be brief"
    assert text.stdout.rstrip("\n") == f"{first['text']}\n{second['text']}".rstrip("\n")
    assert "tok/s" not in text.stderr


def test_a_script_ends_at_an_error_with_its_code(llama_gguf: Path, tmp_path: Path) -> None:
    long, unknown, missing, raw = run_all([
        partial(chat, llama_gguf, "-c", "256", "--message", "x" * 400, "--message", "never"),
        partial(chat, llama_gguf, "--message", "/hlep", "--message", "never", "--json"),
        partial(chat, llama_gguf, "--load", str(tmp_path / "missing")),
        partial(chat, llama_gguf, "--overflow", "grow", "--message", "x"),
    ])  # fmt: skip
    assert (long.code, long.stdout) == (1, "")
    assert "error: the message is 4" in long.stderr
    assert unknown.code == 2
    assert unknown.document["error"]["message"] == "there is no command /hlep"
    assert (missing.code, raw.code) == (2, 2)
    assert "missing: No such file" in missing.stderr
    assert "use one of drop, error" in raw.stderr


def test_a_saved_conversation_goes_on(llama_gguf: Path, tmp_path: Path) -> None:
    saved = tmp_path / "a talk.jsonl"
    chat(llama_gguf, "-s", "be brief", "--message", "one", "--message", f"/save {saved}")
    loaded = chat(llama_gguf, "--load", str(saved), "--message", "two", "--message", "/system", "--json")
    assert loaded.document["result"]["turns"][0]["stats"]["n_prompt"] > 60
    assert "loaded 1 turn from" in loaded.stderr
    assert "be brief" in loaded.stderr


def test_what_is_no_utf8_and_what_no_pipe_can_write_do_not_end_it(llama_gguf: Path) -> None:
    """A byte that is no text, an escape sequence, an encoding that has no emoji."""
    result = run("chat", "-m", str(llama_gguf), *QUICK, stdin=None, input=b"caf\xe9 \x1b[31m\nmore\n",
                 env={"PYTHONIOENCODING": "cp1252"})  # fmt: skip
    assert result.code == 0
    assert result.stdout.count("\n") >= 2


def test_sigterm_and_ctrl_c_end_it(synthetic_models: Path) -> None:
    slow = synthetic.write_llama(synthetic_models / "slow_chat.gguf", n_layer=6, n_embd=256)
    for by, code in ((signal.SIGINT, 130), (signal.SIGTERM, -signal.SIGTERM)):
        arguments = [*COMMAND, "chat", "-m", str(slow), *QUICK, "-n", "3000", "--message", "a", "--message", "b"]
        with subprocess.Popen(
            arguments, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        ) as process:
            assert process.stdout
            process.stdout.read(20)
            process.send_signal(by)
            _, stderr = process.communicate(timeout=TIMEOUT_S)
        assert process.returncode == code
        assert b"before Ctrl-C" in stderr
        assert b"Traceback" not in stderr


@pytest.mark.parametrize(
    "arguments", [("--json",), ("-d", "reference", "--message", "a"), ("--live", "--markdown")], ids=" ".join
)
def test_what_makes_no_sense_is_refused_before_anything_is_loaded(arguments: tuple[str, ...]) -> None:
    ours, theirs = pty.openpty()
    result = run("chat", "-m", "nothing", *arguments, stdin=theirs)
    os.close(ours)
    os.close(theirs)
    assert result.code == 2
    assert "hint: " in result.stderr or result.document["error"]["hint"]


def test_only_drafters_that_a_chat_can_have_are_offered() -> None:
    assert "--drafter auto|none|lookup|store|model\n" in run("chat", "--help").stdout
