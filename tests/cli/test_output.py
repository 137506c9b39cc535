"""What a generation leaves behind: text on stdout, figures on stderr, a document, a trace."""

from __future__ import annotations

import json
import os
import threading
from functools import partial
from pathlib import Path

import pytest

from specllm.app.trace.writer import TraceWriter
from specllm.decoding.metrics import Metrics
from specllm.decoding.protocols import Draft, Round
from specllm.errors import StorageError
from tests.cli.conftest import QUICK, run, run_all
from tests.synthetic import FIRST_BYTE

EMOJI = "🌊".encode()


def always(text: bytes) -> list[str]:
    """Options that make the model say one of these bytes at every position."""
    return [word for byte in set(text) for word in ("--logit-bias", f"{FIRST_BYTE + byte}=100")]


def test_a_document_says_all_that_made_the_text(llama_gguf: Path, close_draft_gguf: Path) -> None:
    arguments = ["generate", "-m", str(llama_gguf), "--draft-model", str(close_draft_gguf), *QUICK, "-n", "40", "hi"]
    plain, drafted = run_all([
        partial(run, *arguments, "-k", "0", "--json", "-t", "0"),
        partial(run, *arguments, "-d", "model", "-k", "4", "--json", "-t", "0", "--stats", "--confidence", "0"),
    ])  # fmt: skip
    assert (plain.code, drafted.code) == (0, 0)
    assert plain.stderr == ""
    assert "acceptance rate" in drafted.stderr
    document, result = drafted.document, drafted.document["result"]
    assert list(document) == ["schema", "command", "ok", "host", "models", "params", "result"]
    assert (document["schema"], document["command"], document["ok"]) == (1, "generate", True)
    assert document["host"]["processor"]
    assert document["host"]["build"]["ggml"]
    assert document["models"]["target"]["bytes"] == llama_gguf.stat().st_size
    assert document["models"]["draft_model"]["name"] == "close_draft"
    params = document["params"]
    assert params["n_ctx"] == 256
    assert isinstance(params["gpu_layers"], int)
    assert {name: params[name] for name in ("drafter", "draft_length", "seed", "threads", "temperature")} == {
        "drafter": "model", "draft_length": 4, "seed": 1, "threads": 1, "temperature": 0.0,
    }  # fmt: skip
    assert result["text"] == plain.document["result"]["text"]
    assert result["finish_reason"] == "length"
    stats = result["stats"]
    assert stats["n_committed"] == 40 == stats["n_rounds"] + stats["n_accepted"]
    assert stats["n_accepted"] > 0
    assert plain.document["result"]["stats"]["acceptance_rate"] is None
    assert (stats["plain_tok_per_s"], stats["speedup_over_plain"]) == (
        None,
        None,
    )  # of a fixed length nothing is measured
    keys = [*document, *document["host"], *params, *stats]
    assert [key for key in keys if key != key.lower() or " " in key or "-" in key] == []


def test_a_document_says_what_a_default_came_to(llama_gguf: Path) -> None:
    # Threads that sleep while they wait: on a busy machine those that spin need seconds.
    result = run("generate", "-m", str(llama_gguf), "-n", "4", "--json", "hi", env={"OMP_WAIT_POLICY": "passive"})
    document = result.document
    assert document["params"]["threads"] == document["host"]["physical_cores"] > 0
    assert document["params"]["seed"] > 0
    assert (document["params"]["top_k"], document["params"]["drafter"]) == (40, "auto")
    assert document["result"]["strategy"].startswith("auto: ")
    stats = document["result"]["stats"]  # the cost of plain decoding is measured where the draft length is controlled
    assert stats["speedup_over_plain"] == pytest.approx(stats["decode_tok_per_s"] / stats["plain_tok_per_s"])


def test_the_lines_of_a_trace_add_up_to_the_figures(llama_gguf: Path, close_draft_gguf: Path, tmp_path: Path) -> None:
    trace = tmp_path / "trace.jsonl"
    result = run(
        "generate", "-m", str(llama_gguf), "--draft-model", str(close_draft_gguf), *QUICK, "-t", "0", "-n", "40", "--json",
        "-d", "model", "--confidence", "0", "--trace", str(trace), "hi",
    )  # fmt: skip
    stats = result.document["result"]["stats"]
    lines = [json.loads(line) for line in trace.read_text(encoding="utf-8").splitlines()]
    assert [line["round"] for line in lines] == list(range(stats["n_rounds"]))
    assert sum(len(line["tokens"]) for line in lines) == stats["n_committed"]
    assert sum(len(line["draft"]) for line in lines) == stats["n_drafted"]
    assert sum(line["n_accepted"] for line in lines) == stats["n_accepted"]
    for line in lines:
        assert line["tokens"][: line["n_accepted"]] == line["draft"][: line["n_accepted"]]
        assert line["width"] == len(line["draft"]) + 1
    for name in ("draft_s", "verify_s", "rest_s"):
        assert sum(line[name] for line in lines) == pytest.approx(stats[name])
    assert lines[0]["prompt"]["n_prompt"] == stats["n_prompt"]
    assert [line["reason"] for line in lines if line["reason"]] == ["length"]
    assert [path.name for path in tmp_path.glob("*trace*")] == ["trace.jsonl"]


def round_of(*tokens: int) -> Round:
    return Round(tokens, Draft((), "none"), 0.0, 0.1, 0.0)


def test_a_trace_into_a_pipe_leaves_the_pipe_where_it_is(tmp_path: Path) -> None:
    """A rename onto a device or a pipe would put a file in its place."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    read: list[str] = []
    reader = threading.Thread(target=lambda: read.append(pipe.read_text(encoding="utf-8")))
    reader.start()
    with TraceWriter(pipe, str) as trace:
        trace.write(round_of(3), Metrics())
    reader.join()
    assert json.loads(read[0])["tokens"] == [3]
    assert pipe.is_fifo()


def test_a_trace_through_a_link_keeps_the_link(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "file")
    with TraceWriter(tmp_path / "link", str) as trace:
        trace.write(round_of(3), Metrics())
    assert (tmp_path / "link").is_symlink()
    assert json.loads((tmp_path / "file").read_text(encoding="utf-8"))["tokens"] == [3]


def test_a_trace_that_fails_at_its_end_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", fail)
    with pytest.raises(StorageError, match="No space left on device"), TraceWriter(tmp_path / "trace", str) as trace:
        trace.write(round_of(3), Metrics())
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("encoding", ["cp1252", "ascii", "utf-8"])
def test_no_encoding_ends_an_answer(llama_gguf: Path, tmp_path: Path, encoding: str) -> None:
    """Emoji into a file of another encoding: exit 0, no escape codes, a ? for what it does not have."""
    with (tmp_path / "out").open("wb") as file:
        result = run(
            "generate", "-m", str(llama_gguf), *QUICK, "-n", "60", *always(EMOJI), "🌊", "--color-accepted",
            stdout=file, env={"PYTHONIOENCODING": encoding},
        )  # fmt: skip
    data = (tmp_path / "out").read_bytes()
    assert result.code == 0
    assert b"\x1b" not in data
    assert "\x1b" not in result.stderr
    assert data
    if encoding == "utf-8":
        assert "\ufffd" in data.decode() or "🌊" in data.decode()
    else:
        assert set(data) == {ord("?")}
    assert result.stderr.startswith("60 tokens, cut")


def test_quiet_is_quiet_and_a_log_is_not_on_stdout(llama_gguf: Path) -> None:
    arguments = ["generate", "-m", str(llama_gguf), *QUICK, "-n", "5", "hi"]
    quiet, told, logged = run_all([
        partial(run, *arguments, "-q"), partial(run, *arguments), partial(run, *arguments, "-q", "-vv"),
    ])  # fmt: skip
    assert quiet.stderr == ""
    assert quiet.stdout == told.stdout == logged.stdout
    assert told.stderr.count("\n") == 1
    assert "specllm.llama" in logged.stderr
