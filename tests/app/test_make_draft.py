"""A draft model made of another one: what is tried, kept, named, and refused."""

from __future__ import annotations

import ctypes
import os
import signal
from collections import Counter
from pathlib import Path

import pytest

from specllm.app import make_draft as module
from specllm.app import remade
from specllm.app.make_draft import DraftRequest, frequent_tokens, make_draft, texts_below
from specllm.app.models import locate, show_model
from specllm.app.remade import types_of
from specllm.errors import AnswerIsNo, ConfigError, StorageError
from specllm.runtime import trimmed_vocab
from specllm.runtime.interrupt import native_callback
from specllm.runtime.llama import Weights
from specllm.runtime.trimmed_vocab import read_trimmed


def quiet(text: str) -> None: ...


@pytest.fixture
def costs(monkeypatch: pytest.MonkeyPatch) -> dict[str, float]:
    """Seconds per token by label, in place of a measurement whose result no test could foresee."""
    table = {"source": 1.0, "q8_0": 0.9, "q4_0": 0.8}

    def measured(path: Path, label: str, threads: int) -> module.Candidate:
        seconds = table[label] if label in table else table[label.split(",")[0]] - 0.1
        return module.Candidate(label=label, n_bytes=path.stat().st_size, token_s=seconds)

    monkeypatch.setattr(module, "_measured", measured)
    return table


def test_the_fastest_is_kept_under_a_name(llama_gguf: Path, tmp_path: Path, costs) -> None:
    output = tmp_path / "fast.gguf"
    request = DraftRequest(source=str(llama_gguf), output=output, types=("q8_0", "q4_0"), vocab_top=280)
    made = make_draft(request, quiet)
    assert [one.label for one in made.candidates] == ["source", "q8_0", "q4_0", f"q4_0, {made.n_kept} tokens"]
    assert made.gain == pytest.approx(1 / 0.7)
    assert len(read_trimmed(output).kept) == made.n_kept >= 280
    assert locate("fast").path == output
    assert show_model("fast").recorded.source == f"made of {llama_gguf}"
    assert list(tmp_path.glob(".make-draft-*")) == []
    with pytest.raises(ConfigError, match="there is a fast already"):
        make_draft(request, quiet)


def test_a_file_that_appeared_meanwhile_is_left_alone(llama_gguf: Path, tmp_path: Path, costs) -> None:
    output = tmp_path / "fast.gguf"
    request = DraftRequest(source=str(llama_gguf), output=output, types=("q4_0",), vocab_top=0)
    with pytest.raises(ConfigError, match="there is a fast already"):
        make_draft(request, lambda text: output.write_text("mine", encoding="utf-8"))
    assert output.read_text(encoding="utf-8") == "mine"


def test_without_a_gain_nothing_is_written(llama_gguf: Path, tmp_path: Path, costs) -> None:
    costs["q8_0"] = 1.2
    output = tmp_path / "slow.gguf"
    with pytest.raises(AnswerIsNo, match="nothing gained"):
        make_draft(DraftRequest(source=str(llama_gguf), output=output, types=("q8_0",), vocab_top=0), quiet)
    assert list(tmp_path.iterdir()) == [] or not output.exists()


def test_a_model_that_computes_something_else_of_embeddings_stays_whole(
    gemma3_gguf: Path, tmp_path: Path, costs, monkeypatch: pytest.MonkeyPatch
) -> None:
    request = DraftRequest(source=str(gemma3_gguf), output=tmp_path / "one.gguf", types=(), vocab_top=280)
    with monkeypatch.context() as patch:
        patch.setattr(trimmed_vocab, "_SCALED", ())
        with pytest.raises(ConfigError, match="cannot say less") as failure:
            make_draft(request, quiet)
    assert "--vocab-top 0" in failure.value.hint
    assert list(tmp_path.glob("*.gguf")) == []
    assert make_draft(request, quiet).n_kept >= 280


def test_it_is_measured_for_real(llama_gguf: Path) -> None:
    one = module._measured(llama_gguf, "source", 1)
    assert one.token_s > 0
    assert one.n_bytes > 0


def test_special_and_single_bytes_stay_then_the_frequent_then_the_first(llama_gguf: Path) -> None:
    vocab = Weights(llama_gguf, is_vocab_only=True).vocab
    last = vocab.n_tokens - 1
    always = {token for token in range(vocab.n_tokens) if vocab.is_special(token) or len(vocab.piece(token)) == 1}
    kept = frequent_tokens(vocab, Counter({last: 3}), len(always) + 1)
    assert always | {last} <= set(kept)
    assert len(kept) % 64 == 0 or len(kept) == vocab.n_tokens
    assert kept == sorted(set(kept))


def test_text_is_read_from_files_and_folders(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("one")
    (tmp_path / "b.bin").write_bytes(b"\xff\xfe")
    (tmp_path / "c.md").write_text("two")
    assert list(texts_below([tmp_path])) == ["one", "two"]
    with pytest.raises(ConfigError, match=r"there is no .*missing"):
        list(texts_below([tmp_path / "missing"]))
    with pytest.raises(ConfigError, match=r"there is no text in .*b\.bin"):
        list(texts_below([tmp_path / "b.bin"]))


def test_what_git_ignores_is_no_text_and_a_long_one_is_cut(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "node_modules").mkdir()
    (tmp_path / "node_modules" / "theirs.js").write_text("theirs")
    (tmp_path / "ours.js").write_text("0123456789")
    monkeypatch.setattr(module, "COUNTED_BYTES", 7)
    monkeypatch.setattr(module, "_PIECE", 4)
    assert list(texts_below([tmp_path])) == ["0123", "456"]


def test_types_by_name() -> None:
    assert types_of("same") == ()
    assert types_of("q4_0") == ("q4_0",)
    with pytest.raises(ConfigError, match=r"there is no type"):
        types_of("q99")


def test_a_trimmed_model_is_no_source_again(llama_gguf: Path, tmp_path: Path, costs) -> None:
    output = tmp_path / "once.gguf"
    made = make_draft(DraftRequest(source=str(llama_gguf), output=output, types=(), vocab_top=280), quiet)
    assert [one.label for one in made.candidates] == ["source", f"source, {made.n_kept} tokens"]
    with pytest.raises(ConfigError, match="trimmed vocabulary already"):
        make_draft(DraftRequest(source=str(output), output=tmp_path / "twice.gguf"), quiet)


def test_an_output_layer_that_is_no_faster_is_not_taken(llama_gguf: Path, tmp_path: Path, costs) -> None:
    costs["q4_0, 384 tokens"] = 1.0
    output = tmp_path / "whole.gguf"
    made = make_draft(DraftRequest(source=str(llama_gguf), output=output, types=("q4_0",), vocab_top=280), quiet)
    assert [one.label for one in made.candidates] == ["source", "q4_0, 384 tokens", "q4_0"]
    assert made.n_kept == made.n_vocab
    assert read_trimmed(output) is None


def test_a_source_that_was_slow_for_a_moment_makes_no_gain(
    llama_gguf: Path, tmp_path: Path, costs, monkeypatch
) -> None:
    measured, seen = module._measured, []

    def disturbed(path: Path, label: str, threads: int) -> module.Candidate:
        seen.append(label)
        costs["source"] = 100.0 if seen == ["source"] else 0.8
        return measured(path, label, threads)

    monkeypatch.setattr(module, "_measured", disturbed)
    request = DraftRequest(source=str(llama_gguf), output=tmp_path / "x.gguf", types=("q4_0",), vocab_top=0)
    with pytest.raises(AnswerIsNo, match=r"800\.0 ms a token before"):
        make_draft(request, quiet)


def test_bad_text_is_told_before_anything_is_made(llama_gguf: Path, tmp_path: Path, costs) -> None:
    request = DraftRequest(
        source=str(llama_gguf), output=tmp_path / "new" / "x.gguf", vocab_top=280, vocab_from=[tmp_path / "missing"]
    )
    with pytest.raises(ConfigError, match=r"there is no .*missing"):
        make_draft(request, pytest.fail)
    assert not (tmp_path / "new").exists()


def test_without_its_name_the_file_goes_again(llama_gguf: Path, tmp_path: Path, costs, monkeypatch) -> None:
    def refused(name: str, path: Path, made_of: str) -> None:
        assert path.exists()
        raise StorageError("cannot write models.toml")

    monkeypatch.setattr(remade, "add_model", refused)
    output = tmp_path / "made" / "x.gguf"
    with pytest.raises(StorageError):
        make_draft(DraftRequest(source=str(llama_gguf), output=output, types=("q4_0",), vocab_top=0), quiet)
    assert list(output.parent.iterdir()) == []


def test_a_folder_that_cannot_be_written_is_told(llama_gguf: Path, tmp_path: Path, costs, monkeypatch) -> None:
    def refused(folder: Path, prefix: str) -> None:
        raise PermissionError(13, "Permission denied", str(folder / prefix))

    monkeypatch.setattr(remade.tempfile, "TemporaryDirectory", lambda dir, prefix: refused(dir, prefix))
    with pytest.raises(StorageError, match=r"cannot write .*x\.gguf: Permission denied") as failure:
        make_draft(DraftRequest(source=str(llama_gguf), output=tmp_path / "x.gguf", vocab_top=0), quiet)
    assert failure.value.hint.startswith(f"make {tmp_path} writable")


def test_ctrl_c_while_llama_cpp_logs_is_not_lost(llama_gguf: Path, tmp_path: Path, costs, monkeypatch) -> None:
    """Python drops what is raised in a function that C called."""

    @ctypes.CFUNCTYPE(None)
    @native_callback
    def log() -> None:
        os.kill(os.getpid(), signal.SIGINT)

    measured = module._measured
    monkeypatch.setattr(module, "_measured", lambda *arguments: log() or measured(*arguments))
    with pytest.raises(KeyboardInterrupt):
        make_draft(DraftRequest(source=str(llama_gguf), output=tmp_path / "x.gguf", types=(), vocab_top=280), quiet)
    assert list(tmp_path.glob("*.gguf")) == list(tmp_path.glob(".make-*")) == []


def test_what_a_killed_attempt_left_goes_after_a_day(llama_gguf: Path, tmp_path: Path, costs) -> None:
    old, new = tmp_path / ".make-draft-old", tmp_path / ".make-draft-new"
    for place in (old, new):
        place.mkdir()
        (place / "q4_0.gguf").touch()
    os.utime(old, (0, 0))
    make_draft(DraftRequest(source=str(llama_gguf), output=tmp_path / "x.gguf", types=("q4_0",), vocab_top=0), quiet)
    assert not old.exists()
    assert new.exists()
