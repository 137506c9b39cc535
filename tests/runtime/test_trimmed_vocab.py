"""A trimmed draft model says what the whole one says, as far as it can say it."""

from __future__ import annotations

import contextlib
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specllm.config import ContextConfig
from specllm.errors import BadModelFile, IncompatiblePair
from specllm.models.gguf_header import read_header
from specllm.runtime.llama import LlamaModel, Weights
from specllm.runtime.quantize import quantize
from specllm.runtime.trim_vocab import write_trimmed
from specllm.runtime.trimmed_vocab import FOOTER, open_context, read_trimmed
from specllm.runtime.vocab import compare_vocabularies
from tests import synthetic

CONTEXT = ContextConfig(n_ctx=256, n_batch=32, n_ubatch=32, n_outputs_max=16, threads=1)
KEPT = [*range(0, 300, 2), 301, 303]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return synthetic.write_llama(tmp_path_factory.mktemp("trimmed") / "whole.gguf")


@pytest.fixture(scope="module")
def trimmed(whole: Path) -> Path:
    path = whole.with_name("trimmed.gguf")
    write_trimmed(whole, path, KEPT)
    return path


def opened(path: Path) -> LlamaModel:
    return open_context(Weights(path), CONTEXT)


@pytest.mark.parametrize("logits", ["all", "last"])
def test_kept_tokens_have_the_whole_models_logits_and_the_others_none(whole: Path, trimmed: Path, logits) -> None:
    one, other = opened(whole), opened(trimmed)
    tokens = list(range(5, 45))  # also tokens that are not kept: they can be fed
    for piece in (tokens[:7], tokens[7:8], tokens[8:]):
        ours, theirs = one.forward(piece, logits=logits), other.forward(piece, logits=logits)
        assert theirs.shape == ours.shape
        np.testing.assert_allclose(theirs[:, KEPT], ours[:, KEPT], atol=1e-4)
        others = np.setdiff1d(np.arange(one.n_vocab), KEPT)
        assert np.isneginf(theirs[:, others]).all()
    other.rollback(20)
    one.rollback(20)
    np.testing.assert_allclose(other.forward([9])[:, KEPT], one.forward([9])[:, KEPT], atol=1e-4)


@pytest.mark.parametrize("architecture", ["mamba", "jamba", "lfm2", "gemma3"])
def test_models_of_every_kind_of_memory_can_be_trimmed(tmp_path: Path, architecture: str) -> None:
    source = getattr(synthetic, f"write_{architecture}")(tmp_path / "source.gguf")
    write_trimmed(source, tmp_path / "trimmed.gguf", KEPT)
    one, other = opened(source), opened(tmp_path / "trimmed.gguf")
    assert other.rollback_kind == one.rollback_kind
    for tokens in (range(5, 25), [30], range(50, 54)):
        ours, theirs = one.forward(list(tokens)), other.forward(list(tokens))
        np.testing.assert_allclose(theirs[:, KEPT], ours[:, KEPT], atol=1e-4)
        for model in (one, other):
            model.rollback(model.n_past - len(tokens) // 2)


def test_a_quantized_model_can_be_trimmed(tmp_path: Path) -> None:
    source = synthetic.write_llama(tmp_path / "source.gguf")
    quantize(source, tmp_path / "q8.gguf", "q8_0", has_small_output=True)
    write_trimmed(tmp_path / "q8.gguf", tmp_path / "trimmed.gguf", KEPT)
    one, other = opened(tmp_path / "q8.gguf"), opened(tmp_path / "trimmed.gguf")
    ours, theirs = one.forward([7, 8, 9]), other.forward([7, 8, 9])
    np.testing.assert_allclose(theirs[:, KEPT], ours[:, KEPT], atol=0.05)  # other kernels, other rounding


def test_it_is_smaller_and_our_own_reader_takes_it(whole: Path, trimmed: Path) -> None:
    header = read_header(trimmed)
    assert header.n_vocab == len(KEPT)
    assert header.weight_bytes < read_header(whole).weight_bytes
    assert read_trimmed(whole) is None


def test_what_is_shared_is_what_is_spelt_alike(whole: Path, trimmed: Path, tmp_path: Path) -> None:
    target, draft, kept = Weights(whole), Weights(trimmed), read_trimmed(trimmed).kept.tolist()
    shared = compare_vocabularies(target.vocab, draft.vocab, kept)
    assert not shared.differing
    assert shared.n_shared == target.vocab.n_tokens
    one = synthetic.write_llama(tmp_path / "one.gguf", token_texts={280: "other1", 282: "other2", 299: "other3"})
    can_draft = compare_vocabularies(Weights(one).vocab, draft.vocab, kept).can_draft
    assert [can_draft(token) for token in (278, 280, 282)] == [True, False, False]
    most = range(262, synthetic.N_VOCAB)  # no bytes: llama.cpp wants those
    renamed = synthetic.write_llama(tmp_path / "renamed.gguf", token_texts={token: f"other{token}" for token in most})
    write_trimmed(whole, tmp_path / "most.gguf", range(synthetic.N_VOCAB))
    draft, kept = Weights(tmp_path / "most.gguf"), list(range(synthetic.N_VOCAB))
    with pytest.raises(IncompatiblePair, match="another vocabulary"):
        compare_vocabularies(Weights(renamed).vocab, draft.vocab, kept)


@given(cut=st.integers(1, 4000), byte=st.integers(0, 255), place=st.integers(1, FOOTER.size - 16))
@settings(max_examples=60, deadline=None)
def test_a_damaged_end_is_refused_or_no_trimmed_model(trimmed: Path, cut: int, byte: int, place: int) -> None:
    content = trimmed.read_bytes()
    for damaged in (content[:-cut], content[:-place] + bytes([byte]) + content[len(content) - place + 1 :]):
        path = trimmed.with_name("damaged.gguf")
        path.write_bytes(damaged)
        with contextlib.suppress(BadModelFile):
            found = read_trimmed(path)
            assert found is None or (found.n_vocab > 0 and len(found.kept) == len(KEPT))


@pytest.mark.parametrize("change", [{4: 29}, {4: 41}, {4: 1}, {4: 12}, {2: 7, 3: 64 * 4 * synthetic.N_VOCAB // 7}])
def test_a_table_of_another_model_is_refused(trimmed: Path, change: dict[int, int]) -> None:
    """Types that there are not, that no one can read, of half the size, in blocks; rows of another length."""
    content = trimmed.read_bytes()
    footer = list(FOOTER.unpack(content[-FOOTER.size :]))
    for place, value in change.items():
        footer[place] = value
    path = trimmed.with_name("table.gguf")
    path.write_bytes(content[: -FOOTER.size] + FOOTER.pack(*footer))
    with pytest.raises(BadModelFile, match="damaged behind its tensors"):
        opened(path)


def test_a_table_behind_another_model_is_refused(trimmed: Path, tmp_path: Path) -> None:
    path = synthetic.write_llama(tmp_path / "other.gguf")
    content, start = trimmed.read_bytes(), path.stat().st_size
    begin, *rest = FOOTER.unpack(content[-FOOTER.size :])
    path.write_bytes(path.read_bytes() + content[begin : -FOOTER.size] + FOOTER.pack(start, *rest))
    with pytest.raises(BadModelFile, match="damaged behind its tensors"):
        opened(path)


def test_ids_that_cannot_be_are_refused(trimmed: Path) -> None:
    content = trimmed.read_bytes()
    start = FOOTER.unpack(content[-FOOTER.size :])[0]
    path = trimmed.with_name("ids.gguf")
    path.write_bytes(content[:start] + b"\xff\xff\xff\x7f" + content[start + 4 :])
    with pytest.raises(BadModelFile, match="cannot be"):
        read_trimmed(path)
