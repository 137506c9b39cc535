"""Ctrl-C and SIGTERM at any moment: the exit code, the figures so far, one document, no traceback."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from functools import partial
from pathlib import Path

import pytest

from specllm.cli.signals import interrupts_deferred
from tests import synthetic
from tests.cli.conftest import COMMAND, QUICK, Result, run, run_all

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
    at_once = ["typer", "numpy", "llama_cpp", "slow.gguf", "jinja2.sandbox"]
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


# Python runs this before the command: Ctrl-C in the moment in which that function of that module is called.
AT_CALL = """
import importlib.util, os, signal, sys

class Finder:
    def find_spec(self, name, path=None, target=None):
        if name != os.environ["INTERRUPT_IN"].partition(":")[0]:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        load = spec.loader.exec_module
        def exec_module(module):
            load(module)
            function = os.environ["INTERRUPT_IN"].partition(":")[2]
            place = module
            *owner, function = function.split(".")
            for one in owner:
                place = getattr(place, one)
            inner = getattr(place, function)
            def interrupting(*arguments, **options):
                setattr(place, function, inner)
                os.kill(os.getpid(), getattr(signal, os.environ.get("INTERRUPT_BY", "SIGINT")))
                return inner(*arguments, **options)
            setattr(place, function, interrupting)
        spec.loader.exec_module = exec_module
        return spec

sys.meta_path.insert(0, Finder())
"""
# Ctrl-C where the second prompt is read.
AT_PROMPT = """
import os, signal, specllm.app.bench.runner as runner
inner = runner.Runner.answers
def answers(self, case, n_runs):
    for n, sample in enumerate(inner(self, case, n_runs)):
        if case.prompt.id == "two":
            os.kill(os.getpid(), signal.SIGINT)
        yield sample
runner.Runner.answers = answers
"""


def interrupted_in(place: str, folder: Path, *arguments: str, by: str = "SIGINT", **options: str) -> Result:
    (folder / "sitecustomize.py").write_text(AT_CALL, encoding="utf-8")
    path = os.pathsep.join([str(folder), os.environ.get("PYTHONPATH", "")])
    return run(*arguments, env={"PYTHONPATH": path, "INTERRUPT_IN": place, "INTERRUPT_BY": by}, **options)


@pytest.mark.parametrize(
    "place",
    ["specllm.app.learned:save", "specllm.app.generation:Session.close", "specllm.app.host:describe_build",
     "specllm.cli.envelope:_finite", "specllm.app.trace.writer:TraceWriter.end"],
)  # fmt: skip
def test_ctrl_c_behind_the_last_token_costs_nothing(place: str, llama_gguf: Path, tmp_path: Path) -> None:
    """What was finished is told whole, its log probabilities and its trace too."""
    trace = tmp_path / "trace.jsonl"
    result = interrupted_in(
        place, tmp_path, "generate", "-m", str(llama_gguf), *QUICK[:-4], "-n", "30", "--choice", "x" * 9, "--logprobs", "1",
        "--json", "--trace", str(trace), "hello",
    )  # fmt: skip
    answer = result.document["result"]
    assert (answer["text"], answer["finish_reason"]) == ("x" * 9, "stop")
    assert len(answer["logprobs"]) == answer["stats"]["n_committed"]
    assert json.loads(trace.read_text(encoding="utf-8").splitlines()[-1])["end"]["finish_reason"] == "stop"
    assert result.code == 130
    assert result.stderr in ("", "error: interrupted\n")


@pytest.mark.parametrize("by", ["SIGINT", "SIGTERM"])
@pytest.mark.parametrize("place", ["specllm.app.bench.use_case:rows", "specllm.ui.report:page"])
def test_a_bench_tells_what_it_finished(place: str, by: str, llama_gguf: Path, tmp_path: Path) -> None:
    prompts, report = tmp_path / "prompts.jsonl", tmp_path / "report.html"
    rows = [{"id": name, "category": "chat", "prompt": "hello"} for name in ("one", "two")]
    prompts.write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    result = interrupted_in(
        place, tmp_path, "bench", "-m", str(llama_gguf), "--threads", "1", "--prompts", str(prompts), "-n", "8",
        "--arms", "lookup:4", "--json", "--html", str(report), by=by,
    )  # fmt: skip
    document = result.document
    assert {sample["prompt"] for sample in document["result"]["samples"]} == {"one", "two"}
    assert "</html>" in report.read_text(encoding="utf-8")
    assert result.code == {"SIGINT": 130, "SIGTERM": -signal.SIGTERM}[by]


def test_a_chat_tells_the_turn_that_was_complete(llama_gguf: Path, tmp_path: Path) -> None:
    result = interrupted_in(
        "specllm.app.generation:Generation.settle", tmp_path, "chat", "-m", str(llama_gguf), "--threads", "1", "-n", "8",
        "--drafter", "none", "--message", "one", "--message", "two", "--json",
    )  # fmt: skip
    assert (result.code, result.document["ok"]) == (130, False)
    assert [turn["user"] for turn in result.document["result"]["turns"]] == ["one"]


def test_a_bench_counts_prompts_that_every_arm_answered(llama_gguf: Path, tmp_path: Path) -> None:
    """Ctrl-C in the third of four answers: the first prompt is told, the second is not."""
    prompts = tmp_path / "prompts.jsonl"
    rows = [{"id": name, "category": "chat", "prompt": "hello"} for name in ("one", "two")]
    prompts.write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    (tmp_path / "sitecustomize.py").write_text(AT_PROMPT, encoding="utf-8")
    path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    bench = partial(
        run, "bench", "-m", str(llama_gguf), "--threads", "1", "--prompts", str(prompts), "-n", "8", "--arms", "lookup:4",
        env={"PYTHONPATH": path},
    )  # fmt: skip
    as_json, table = run_all([partial(bench, "--json"), bench])
    assert as_json.code == table.code == 130
    found = as_json.document["result"]
    assert found["is_interrupted"]
    assert {sample["prompt"] for sample in found["samples"]} == {"one"}
    assert {row["n_prompts"] for row in found["rows"]} == {1}
    assert "interrupted: only the prompts that were complete are counted" in table.stdout + table.stderr
    assert "lookup:4" in table.stdout


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
