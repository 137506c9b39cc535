"""Whatever is wrong: the exit code, `error:` and `hint:` on stderr, one JSON document or nothing on stdout, no traceback."""

from __future__ import annotations

import re
import resource
import subprocess
from functools import partial
from pathlib import Path

import pytest

from specllm.cli import envelope
from specllm.cli.main import Invocation
from tests.cli.conftest import COMMAND, QUICK, Result, run, run_all

# arguments behind `specllm generate -m MODEL`, exit code, error type, what is said
BAD_ARGUMENTS = [
    (["hi", "-n", "0"], 2, "ConfigError", "max tokens is 0"),
    (["hi", "-n", "-3"], 2, "ConfigError", "max tokens is -3"),
    (["hi", "-n", "many"], 2, "ConfigError", "--max-tokens"),
    (["hi", "-k", "-1"], 2, "ConfigError", "draft length is -1"),
    (["hi", "-k", "100000"], 2, "ConfigError", "-k with 0 .plain decoding. to 512"),
    (["hi", "-t", "-1"], 2, "ConfigError", "temperature is -1"),
    (["hi", "-t", "nan"], 2, "ConfigError", "temperature is nan"),
    (["hi", "--top-p", "inf"], 2, "ConfigError", "top_p is inf"),
    (["hi", "--kv-type", "q3"], 2, "ConfigError", "KV type 'q3'(.|\n)*q8_0"),
    (["hi", "--flash-attention", "maybe"], 2, "ConfigError", "flash attention(.|\n)*auto, on, off"),
    (["hi", "-d", "oracle"], 2, "ConfigError", "no drafter 'oracle'(.|\n)*lookup"),
    (["hi", "--gpu-layers", "most"], 2, "ConfigError", "gpu layers 'most'"),
    (["hi", "--draft-gpu-layers", "-1"], 2, "ConfigError", "gpu layers '-1'"),
    (["hi", "--stop", ""], 2, "ConfigError", "stop string is empty"),
    (["hi", "--logit-bias", "e=1"], 2, "ConfigError", "TOKEN=NUMBER"),
    (["hi", "--seed", "-1"], 2, "ConfigError", "seed is -1"),
    (["hi", "--threads", "100000"], 2, "ConfigError", "threads is 100,000"),
    (["hi", "--ctx", "99999999999999"], 2, "ConfigError", "context size"),
    (["hi", "--batch", "0"], 2, "ConfigError", "n_batch is 0"),
    (["hi", "--nonsense"], 2, "ConfigError", "no such option: --nonsense"),
    (["hi", "-n"], 2, "ConfigError", "requires an argument"),
    ([], 2, "ConfigError", "there is no prompt"),
    (["--prompt-file", "/no/such/file"], 2, "ConfigError", "cannot read /no/such/file: No such file"),
    (["--prompt-file", "/"], 2, "ConfigError", "cannot read /: Is a directory"),
    (["--prompt-file", "MODEL"], 2, "ConfigError", "is not UTF-8"),
]  # fmt: skip
# the same, where the file is looked at
BAD_FILES = [
    (["hi", "-m", "missing.gguf"], 1, "ModelNotFound", "no file missing.gguf"),
    (["hi", "-m", "BROKEN/truncated.gguf"], 1, "BadModelFile", r"truncated: \d+ of \d+ bytes"),
    (["hi", "-m", "BROKEN/header.gguf"], 1, "BadModelFile", "truncated in its header"),
    (["hi", "-m", "BROKEN/text.gguf"], 1, "BadModelFile", "not a GGUF file"),
    (["hi", "-m", "BROKEN/magic.gguf"], 1, "BadModelFile", "not a GGUF file"),
    (["hi", "-m", "BROKEN"], 1, "BadModelFile", "BROKEN is a folder"),
    (["hi", "-m", "qwen2.5-codr-1.5b"], 1, "ModelNotFound", "did you mean qwen2.5-coder-1.5b"),
    (["hi", "-m", "hub:nonsense"], 2, "ConfigError", "hub:owner/repo:file.gguf"),
]  # fmt: skip
# and where it is loaded
BAD_LOADS = [
    (["hi", "-m", "BROKEN/architecture.gguf"], 1, "BadModelFile", "perceptron"),
    (["hi", "-c", "2000000000"], 1, "OutOfMemory", r"needs [\d.]+ TB .* 2,000,000,000 tokens(.|\n)*use --ctx \d+"),
    (["one word too many", "-c", "10"], 1, "ContextFull", r"\d+ tokens and the context holds 10(.|\n)*--ctx \d+"),
    (["hi", "--logit-bias", "5000=1"], 2, "ConfigError", "the model has 392 tokens"),
    (["hi", "--trace", "/no/such/folder/trace"], 1, "StorageError", "cannot write /no/such/folder/trace"),
]  # fmt: skip


def check(result: Result, code: int, kind: str, pattern: str) -> None:
    error = result.document["error"]
    assert result.code == code, result
    assert re.search(pattern, error["message"] + "\n" + error["hint"]), error
    assert re.fullmatch(kind, error["type"])
    assert result.stderr == f"error: {error['message']}\nhint: {error['hint']}\n"
    assert result.document == {"schema": 1, "command": "generate", "ok": False, "error": error}


def written_out(arguments: list[str], model: Path, broken: Path) -> list[str]:
    words = [word.replace("BROKEN", str(broken)).replace("MODEL", str(model)) for word in arguments]
    return ["generate", "-m", str(model), *QUICK, "--json", *words]


@pytest.mark.parametrize(("arguments", "code", "kind", "pattern"), BAD_ARGUMENTS + BAD_FILES)
def test_what_is_wrong_before_loading_is_one_document_and_two_lines(
    arguments: list[str], code: int, kind: str, pattern: str, llama_gguf: Path, broken_ggufs: Path,
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """In this process, which is quicker; the others below start the command."""
    monkeypatch.setattr("sys.stdin", None)
    envelope.forget()
    actual = Invocation(written_out(arguments, llama_gguf, broken_ggufs)).run()
    check(Result(actual, *capsys.readouterr()), code, kind, pattern.replace("BROKEN", str(broken_ggufs)))


def test_what_is_wrong_with_loading_is_one_document_and_two_lines(llama_gguf: Path, broken_ggufs: Path) -> None:
    calls = [partial(run, *written_out(arguments, llama_gguf, broken_ggufs)) for arguments, *_ in BAD_LOADS]
    for (_, code, kind, pattern), result in zip(BAD_LOADS, run_all(calls), strict=True):
        check(result, code, kind, pattern)


def test_without_json_nothing_is_on_stdout() -> None:
    missing, usage = run_all([
        partial(run, "generate", "-m", "missing.gguf", "hi"),
        partial(run, "generate", "--nonsense"),
    ])  # fmt: skip
    assert (missing.code, missing.stdout) == (1, "")
    assert missing.stderr == "error: there is no file missing.gguf\nhint: check the path\n"
    assert (usage.code, usage.stdout) == (2, "")
    assert usage.stderr.endswith("hint: see `specllm generate --help`\n")


def test_options_stand_anywhere() -> None:
    """--json, --debug and -v are understood before and behind the command's name, and a prompt may look like one."""
    before, behind, unknown, prompt = run_all([
        partial(run, "--json", "generate", "hi"),
        partial(run, "-v", "generate", "hi", "-m", "missing.gguf", "--debug", "--json", "-vv"),
        partial(run, "generat", "--json", "hi"),
        partial(run, "generate", "-m", "missing.gguf", "--", "--json"),
    ])  # fmt: skip
    assert before.code == 2
    assert before.document["command"] == "generate"
    assert behind.code == 1
    assert behind.document["error"]["type"] == "ModelNotFound"
    assert "Traceback" in behind.stderr
    assert unknown.code == 2
    assert unknown.document["error"]["message"] == "no such command 'generat'. Did you mean 'generate'?"
    assert prompt.code == 1
    assert prompt.stdout == ""


def test_a_bug_is_reported_as_one(tmp_path: Path) -> None:
    """An exception that nobody expects: exit code 70, and the traceback only with --debug."""
    (tmp_path / "sitecustomize.py").write_text(
        "import specllm.app.models as models\n"
        "def broken(*_):\n"
        "    raise KeyError('oops')\n"
        "models.locate_pair = broken\n",
        encoding="utf-8",
    )
    short, long = run_all([
        partial(run, "generate", "hi", "--json", env={"PYTHONPATH": str(tmp_path)}),
        partial(run, "--debug", "generate", "hi", env={"PYTHONPATH": str(tmp_path)}),
    ])  # fmt: skip
    assert short.code == long.code == 70
    assert short.document["error"]["type"] == "KeyError"
    assert "Traceback" not in short.stderr
    assert "Traceback" in long.stderr
    assert long.stdout == ""


def limit_file_size() -> None:
    resource.setrlimit(resource.RLIMIT_FSIZE, (2000, 2000))


def test_a_full_disk_ends_the_trace_and_leaves_the_old_one(llama_gguf: Path, tmp_path: Path) -> None:
    trace = tmp_path / "trace.jsonl"
    trace.write_text("the old one\n", encoding="utf-8")
    arguments = ["generate", "-m", str(llama_gguf), *QUICK, "-n", "200", "hi", "--trace", str(trace)]
    result = run(*arguments, preexec_fn=limit_file_size)
    assert result.code == 1
    assert result.stderr.startswith(f"error: cannot write {trace}: File too large\nhint: ")
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith((".", "trace"))] == ["trace.jsonl"]
    assert trace.read_text(encoding="utf-8") == "the old one\n"


def test_a_full_disk_at_stdout_is_an_error_and_not_a_traceback(llama_gguf: Path) -> None:
    arguments = ["generate", "-m", str(llama_gguf), *QUICK, "-n", "5", "hi"]
    with open("/dev/full", "wb") as full:
        results = run_all([
            partial(run, *arguments, stdout=full),
            partial(run, *arguments, "--json", stdout=full),
            partial(run, "--help", stdout=full),
        ])  # fmt: skip
    for result in results:
        assert result.code == 1
        assert result.stderr.startswith("error: cannot write the output: No space left on device\nhint: ")


def test_a_reader_that_goes_away_ends_the_command_quietly(llama_gguf: Path) -> None:
    for extra in ([], ["--json"]):
        command = subprocess.Popen(
            ["sh", "-c", '"$@" | head -c 1', "sh", *_command(llama_gguf, *extra)],
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip
        stdout, stderr = command.communicate(timeout=30)
        assert len(stdout) == 1
        assert b"Traceback" not in stderr
        assert b"Exception" not in stderr


def _command(model: Path, *extra: str) -> list[str]:
    return [*COMMAND, "generate", "-m", str(model), *QUICK, "-n", "300", "hi", *extra]


def test_closed_streams_are_empty_ones(llama_gguf: Path) -> None:
    script = '"$@" <&- >&- 2>&-; echo $?; "$@" - <&- 2>&1; echo $?; "$@" hi <&- 2>&-; echo $?'
    result = subprocess.run(
        ["bash", "-c", script, "bash", *[word for word in _command(llama_gguf, "-q", "-n", "2") if word != "hi"]],
        capture_output=True, timeout=60, check=False,
    )  # fmt: skip
    first, rest = result.stdout.split(b"\n", 1)
    assert first == b"2"  # no prompt, and nobody to tell
    assert rest.startswith(b"error: there is no prompt\n")
    assert rest.rstrip().endswith(b"0")
