"""The synthetic models are what the other tests take them for."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import llama_cpp
import numpy as np
import pytest

from specllm.config import ContextConfig
from specllm.runtime.llama import LlamaModel, Weights
from tests import synthetic


@contextmanager
def loaded(path: Path) -> Iterator[LlamaModel]:
    """The model at `path` in a context of 512 tokens that gives up to 64 rows."""
    config = ContextConfig(n_ctx=512, n_outputs_max=64, threads=1)
    with closing(Weights(path)) as weights, closing(LlamaModel(weights, config)) as model:
        yield model


def greedy(model: LlamaModel, prompt: str, n: int) -> list[int]:
    """The `n` tokens the model continues `prompt` with."""
    model.rollback(0)
    tokens = model.vocab.tokenize(prompt, adds_special=True, parses_special=False)
    answer: list[int] = []
    while len(answer) < n:
        answer.append(int(model.forward(answer[-1:] or tokens, logits="last")[0].argmax()))
    return answer


@pytest.mark.parametrize("name", ["llama_gguf", "mamba_gguf", "draft_gguf", "close_draft_gguf"])
def test_greedy_text_varies_and_never_ends_early(name: str, request: pytest.FixtureRequest) -> None:
    with loaded(request.getfixturevalue(name)) as model:
        answer = greedy(model, "def add(a, b):\n    return", 120)
        assert len(set(answer)) > 40
        assert not set(answer) & model.vocab.eog
        assert greedy(model, "def add(a, b):\n    return", 120) == answer


def test_the_attention_model_repeats_itself_now_and_then(llama_gguf: Path) -> None:
    with loaded(llama_gguf) as model:
        answer = greedy(model, "The cat sat on the mat.", 200)
    triples = [tuple(answer[i : i + 3]) for i in range(len(answer) - 2)]
    assert 5 < len(triples) - len(set(triples)) < 100


@pytest.mark.parametrize(("name", "can_trim"), [("llama_gguf", True), ("mamba_gguf", False)])
def test_only_attention_drops_a_part_of_a_sequence(name: str, can_trim: bool, request: pytest.FixtureRequest) -> None:
    with loaded(request.getfixturevalue(name)) as model:
        model.forward(list(range(10, 30)), logits="none")
        memory = llama_cpp.llama_get_memory(model.handle)
        assert bool(llama_cpp.llama_memory_seq_rm(memory, 0, 10, -1)) is can_trim


@pytest.mark.parametrize("name", ["llama_gguf", "mamba_gguf"])
def test_logits_hardly_depend_on_the_width(name: str, request: pytest.FixtureRequest) -> None:
    tokens = list(range(20, 52))
    with loaded(request.getfixturevalue(name)) as model:
        whole = model.forward(tokens).copy()
        model.rollback(0)
        single = np.concatenate([model.forward([token]).copy() for token in tokens])
    assert whole.std() > 2
    assert np.abs(whole - single).max() < 0.02


def test_a_noisy_copy_agrees_more_often_than_not(llama_gguf: Path, close_draft_gguf: Path) -> None:
    with loaded(llama_gguf) as target, loaded(close_draft_gguf) as draft:
        answer = greedy(target, "Once upon a time", 60)
        tokens = target.vocab.tokenize("Once upon a time", adds_special=True, parses_special=False)
        draft.forward(tokens, logits="none")
        guesses = draft.forward(answer[:-1]).argmax(axis=1)
    assert 0.5 < np.mean(guesses == answer[1:]) < 1


def test_any_text_tokenizes_and_comes_back(llama_gguf: Path) -> None:
    with closing(Weights(llama_gguf)) as weights:
        for text in ("The self == 3", "h\u00e9llo \U0001f642 \u65e5\u672c\n\t", "  indented", "\x00\x7f"):
            tokens = weights.vocab.tokenize(text, adds_special=False, parses_special=False)
            assert b"".join(map(weights.vocab.piece, tokens)) == text.encode()


def test_options_change_only_what_they_name(tmp_path: Path, llama_gguf: Path) -> None:
    path = synthetic.write_llama(tmp_path / "other.gguf", extra_tokens=5, token_texts={300: "zzz"})
    with closing(Weights(path)) as other, closing(Weights(llama_gguf)) as base:
        texts = [[weights.vocab.text(token) for token in range(weights.vocab.n_tokens)] for weights in (other, base)]
    assert texts[0][synthetic.N_VOCAB :] == [f"[PAD{synthetic.N_VOCAB + place}]" for place in range(5)]
    different = [token for token in range(synthetic.N_VOCAB) if texts[0][token] != texts[1][token]]
    assert different == [300]


def test_files_are_small_and_the_same_every_time(tmp_path: Path, llama_gguf: Path, mamba_gguf: Path) -> None:
    assert llama_gguf.stat().st_size < 500_000
    assert mamba_gguf.stat().st_size < 500_000
    assert synthetic.write_llama(tmp_path / "again.gguf").read_bytes() == llama_gguf.read_bytes()
