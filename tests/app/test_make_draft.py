"""A draft model made of another one: what is tried, kept, named, and refused."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from specllm.app import make_draft as module
from specllm.app.make_draft import DraftRequest, frequent_tokens, make_draft, texts_below, types_of
from specllm.app.models import locate
from specllm.errors import AnswerIsNo, ConfigError
from specllm.runtime.llama import Weights
from specllm.runtime.trimmed_vocab import read_trimmed


def quiet(text: str) -> None: ...


@pytest.fixture
def costs(monkeypatch: pytest.MonkeyPatch) -> dict[str, float]:
    """Seconds per token by label, in place of a measurement whose result no test could foresee."""
    table = {"source": 1.0, "q8_0": 0.9, "q4_0": 0.8}

    def measured(path: Path, label: str, threads: int) -> module.Candidate:
        seconds = next(table[name] for name in (label, label.split(",")[0]) if name in table)
        return module.Candidate(label=label, n_bytes=path.stat().st_size, token_s=seconds - 0.1 * ("," in label))

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
    assert list(tmp_path.glob(".make-draft-*")) == []
    with pytest.raises(ConfigError, match="there is a fast already"):
        make_draft(request, quiet)


def test_without_a_gain_nothing_is_written(llama_gguf: Path, tmp_path: Path, costs) -> None:
    costs["q8_0"] = 1.2
    output = tmp_path / "slow.gguf"
    with pytest.raises(AnswerIsNo, match="nothing gained"):
        make_draft(DraftRequest(source=str(llama_gguf), output=output, types=("q8_0",), vocab_top=0), quiet)
    assert list(tmp_path.iterdir()) == [] or not output.exists()


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
    with pytest.raises(ConfigError, match="there is no"):
        list(texts_below([tmp_path / "missing"]))


def test_types_by_name() -> None:
    assert types_of("same") == ()
    assert types_of("q4_0") == ("q4_0",)
    with pytest.raises(ConfigError, match="there is no type"):
        types_of("q99")


def test_a_trimmed_model_is_no_source_again(llama_gguf: Path, tmp_path: Path, costs) -> None:
    output = tmp_path / "once.gguf"
    make_draft(DraftRequest(source=str(llama_gguf), output=output, types=(), vocab_top=280), quiet)
    with pytest.raises(ConfigError, match="trimmed vocabulary already"):
        make_draft(DraftRequest(source=str(output), output=tmp_path / "twice.gguf"), quiet)
