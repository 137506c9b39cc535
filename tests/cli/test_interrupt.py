"""Ctrl-C and SIGTERM at any moment: the exit code, the figures so far, one document, no traceback."""

from __future__ import annotations

import json
import signal
import subprocess
from functools import partial
from pathlib import Path

import pytest

from specllm.cli.signals import interrupts_deferred
from tests import synthetic
from tests.cli.conftest import COMMAND, QUICK, run, run_all

# Python runs this before the command: Ctrl-C so long after a module is imported or a file opened.
AT_EVENT = """
import os, signal, sys, threading

def watch(event, arguments):
    if event in ("import", "open") and str(arguments[0]).endswith(os.environ["INTERRUPT_AT"]):
        os.environ["INTERRUPT_AT"] = "never again"
        threading.Timer(float(os.environ["INTERRUPT_AFTER"]), os.kill, (os.getpid(), signal.SIGINT)).start()

sys.addaudithook(watch)
"""


@pytest.fixture(scope="session")
def slow_gguf(synthetic_models: Path) -> Path:
    """A model that needs a few milliseconds for every token."""
    return synthetic.write_llama(synthetic_models / "slow.gguf", n_layer=6, n_embd=256)


def test_ctrl_c_leaves_one_document_at_any_moment(slow_gguf: Path, tmp_path: Path) -> None:
    """While importing, looking the model up, rendering the prompt, measuring the machine, reading the prompt, generating."""
    (tmp_path / "sitecustomize.py").write_text(AT_EVENT, encoding="utf-8")
    at_once = ["numpy", "llama_cpp", "slow.gguf", "jinja2.sandbox"]
    moments = [(moment, 0.0) for moment in at_once] + [(".json", 0.1), (".partial", 0.05), (".partial", 0.5)]
    results = run_all([
        partial(
            run, "generate", "-m", str(slow_gguf), "--threads", "1", "-n", "3000", "x" * 900, "--json",
            "--trace", str(tmp_path / f"{number}.jsonl"),
            env={"PYTHONPATH": str(tmp_path), "INTERRUPT_AT": event, "INTERRUPT_AFTER": str(after_s)},
        )
        for number, (event, after_s) in enumerate(moments)
    ])  # fmt: skip
    for (event, _), result in zip(moments, results, strict=True):
        assert result.code == 130
        document = result.document
        if event == ".partial":
            assert document["result"]["finish_reason"] == "interrupted"
            assert result.stderr == ""
        else:
            assert document["error"] == {"type": "Interrupted", "message": "interrupted", "hint": ""}
            assert result.stderr == "error: interrupted\n"


@pytest.mark.parametrize("by", [signal.SIGINT, signal.SIGTERM])
def test_what_was_generated_is_kept(slow_gguf: Path, by: signal.Signals, tmp_path: Path) -> None:
    """The text and the trace so far, and the figures about them; a parent sees what ended the command."""
    trace = tmp_path / "trace.jsonl"
    arguments = [*COMMAND, "generate", "-m", str(slow_gguf), *QUICK, "-n", "3000", "x", "--trace", str(trace)]
    with subprocess.Popen(
        arguments, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdout
        first = process.stdout.read(20)
        process.send_signal(by)
        _, stderr = process.communicate(timeout=30)
    assert process.returncode == {signal.SIGINT: 130, signal.SIGTERM: -signal.SIGTERM}[by]
    n_tokens = int(stderr.decode().removeprefix("interrupted after ").partition(" tokens")[0])
    lines = [json.loads(line) for line in trace.read_text(encoding="utf-8").splitlines()]
    assert len(first) == 20
    assert sum(len(line["tokens"]) for line in lines) == n_tokens >= 15
    assert b"Traceback" not in stderr


def test_ctrl_c_inside_imports_waits_for_their_end() -> None:
    with pytest.raises(KeyboardInterrupt):
        deferred_interrupts(1)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_a_second_ctrl_c_does_not_wait() -> None:
    with pytest.raises(KeyboardInterrupt, match="at once"):
        deferred_interrupts(2)


def deferred_interrupts(n: int) -> None:
    with interrupts_deferred():
        try:
            for _ in range(n):
                signal.raise_signal(signal.SIGINT)
        except KeyboardInterrupt:
            raise KeyboardInterrupt("at once") from None
