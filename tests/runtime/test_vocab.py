"""Text to tokens and back, piece by piece, and which two vocabularies may share a draft."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specllm.errors import IncompatiblePair
from specllm.runtime.llama import Weights
from specllm.runtime.vocab import MAX_SIZE_DIFFERENCE, Detokenizer, Vocab, compare_vocabularies, detokenize
from tests import synthetic
from tests.synthetic import BOS, EOS, FIRST_BYTE, IM_END, IM_START, N_VOCAB

HARD = "Grüße, 日本語 한국어 עברית 🙂👩‍👩‍👧 e\u0301 \u200f \x00\r\n\t end"


@pytest.fixture
def vocab_with(tmp_path: Path) -> Iterator[Callable[..., Vocab]]:
    """Makes vocabularies that differ from the synthetic one as asked."""
    opened: list[Weights] = []

    def make(write: Callable[..., Path] = synthetic.write_llama, **changes) -> Vocab:
        path = write(tmp_path / f"{len(opened)}.gguf", **changes)
        opened.append(Weights(path, is_vocab_only=True))
        return opened[-1].vocab

    yield make
    for weights in opened:
        weights.close()


# U+2581 is how SPM vocabularies write a space: it comes back as one.
any_text = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\u2581"), max_size=60)


@settings(max_examples=200, deadline=None)
@given(text=any_text)
def test_any_text_survives_the_way_to_tokens_and_back(vocab, text):
    tokens = vocab.tokenize(text, adds_special=False, parses_special=False)
    assert all(0 <= token < vocab.n_tokens for token in tokens)
    assert detokenize(vocab, tokens) == text
    assert b"".join(map(vocab.piece, tokens)).decode() == text


def test_hard_text_survives_too(vocab):
    assert detokenize(vocab, vocab.tokenize(HARD, adds_special=False, parses_special=False)) == HARD


@settings(max_examples=100, deadline=None)
@given(text=any_text)
def test_a_stream_shows_whole_characters_only_and_adds_up_to_the_text(vocab, text):
    """Fault 28: every character outside ASCII is split over its bytes here."""
    tokens = [FIRST_BYTE + byte for byte in text.encode()]
    detokenizer = Detokenizer(vocab)
    shown = ""
    for n, token in enumerate(tokens, start=1):
        shown += detokenizer.push(token)
        assert shown == text.encode()[:n].decode(errors="ignore")
    assert shown == text


@settings(max_examples=100, deadline=None)
@given(data=st.binary(max_size=40))
def test_bytes_that_are_no_text_are_replaced_and_do_no_further_harm(vocab, data):
    """What a model may say: any bytes. The incomplete end is not shown."""
    shown = detokenize(vocab, [FIRST_BYTE + byte for byte in data])
    whole = data.decode(errors="replace")
    assert whole.startswith(shown)
    assert set(whole[len(shown) :]) <= {"\ufffd"}
    assert detokenize(vocab, [FIRST_BYTE + byte for byte in data + b"\xff" + b"\n"]).endswith("\ufffd\n")


def test_lone_surrogates_of_a_command_line_are_not_a_crash(vocab):
    assert vocab.tokenize("a\udc80b", adds_special=False, parses_special=False)


def test_special_tokens_are_read_only_where_wanted_and_shown_only_where_wanted(vocab):
    as_token = vocab.tokenize("<|im_end|>", adds_special=False, parses_special=True)
    as_text = vocab.tokenize("<|im_end|>", adds_special=False, parses_special=False)
    assert as_token == [IM_END]
    assert IM_END not in as_text
    assert detokenize(vocab, as_text) == "<|im_end|>"
    assert (vocab.piece(IM_END), vocab.piece(IM_END, shows_special=True)) == (b"", b"<|im_end|>")
    assert vocab.piece(IM_END) == b""  # also from the cache
    assert vocab.tokenize("a", adds_special=True, parses_special=False)[0] == BOS
    assert vocab.tokenize("", adds_special=False, parses_special=False) == []


def test_a_piece_longer_than_the_first_buffer_comes_whole(vocab_with):
    long = vocab_with(token_texts={300: "x" * 500})
    assert long.piece(300) == b"x" * 500


def test_the_vocabulary_knows_its_special_tokens(vocab):
    assert (vocab.type, vocab.n_tokens, vocab.bos, vocab.eos) == ("SPM", N_VOCAB, BOS, EOS)
    assert (vocab.adds_bos, vocab.adds_eos) == (True, False)
    assert vocab.eog == {EOS, IM_END}
    assert vocab.text(IM_START) == "<|im_start|>"


def test_equal_vocabularies_share_every_token(vocab, vocab_with):
    shared = compare_vocabularies(vocab, vocab_with(seed=7))
    assert (shared.n_shared, shared.differing) == (N_VOCAB, frozenset())
    assert all(map(shared.can_draft, range(N_VOCAB)))
    assert not shared.can_draft(N_VOCAB)


def test_the_architecture_does_not_matter(vocab, vocab_with):
    assert compare_vocabularies(vocab, vocab_with(write=synthetic.write_mamba)).differing == frozenset()


@pytest.mark.parametrize("target_is_larger", [False, True])
def test_padding_rows_and_five_differing_ids_are_fine_and_never_drafted(vocab_with, target_is_larger):
    """Fault 10."""
    texts = {token: f"other{token}" for token in (270, 280, 281, 300, 390)}
    small, large = vocab_with(token_texts=texts), vocab_with(extra_tokens=MAX_SIZE_DIFFERENCE)
    shared = compare_vocabularies(large, small) if target_is_larger else compare_vocabularies(small, large)
    assert shared.differing == set(texts)
    undraftable = {token for token in range(N_VOCAB + MAX_SIZE_DIFFERENCE) if not shared.can_draft(token)}
    assert undraftable == set(texts) | set(range(N_VOCAB, N_VOCAB + MAX_SIZE_DIFFERENCE))


def test_sizes_too_far_apart_and_a_differing_text_are_refused_with_rule_ids_and_texts(vocab, vocab_with):
    """Fault 9."""
    draft = vocab_with(extra_tokens=200, token_texts={300: "hello"})
    with pytest.raises(IncompatiblePair) as error:
        compare_vocabularies(vocab, draft)
    message = error.value.message
    assert f"size: target {N_VOCAB} tokens, draft {N_VOCAB + 200}, more than 128 apart" in message
    assert f"300 ({vocab.text(300)!r} / 'hello')" in message
    assert "vocabulary type" not in message  # it does match
    assert "--drafter lookup" in error.value.hint


@pytest.mark.parametrize("extra", [MAX_SIZE_DIFFERENCE, MAX_SIZE_DIFFERENCE + 1])
def test_the_size_limit_is_llama_cpps(vocab, vocab_with, extra):
    draft = vocab_with(extra_tokens=extra)
    if extra == MAX_SIZE_DIFFERENCE:
        compare_vocabularies(vocab, draft)
    else:
        with pytest.raises(IncompatiblePair, match="size"):
            compare_vocabularies(vocab, draft)


def test_another_language_of_the_same_size_is_refused_with_its_first_ids(vocab, vocab_with):
    draft = vocab_with(token_texts={token: f"w{token}" for token in range(262, 392)})
    with pytest.raises(IncompatiblePair, match="token texts: 130 ids differ") as error:
        compare_vocabularies(vocab, draft)
    assert "262 (" in error.value.message
    assert "'w262'" in error.value.message
    assert "269 (" not in error.value.message  # the first few are enough


@pytest.mark.parametrize(
    ("name", "value", "rule"),
    [
        ("type", "BPE", "vocabulary type: target SPM, draft BPE"),
        ("adds_bos", False, "adds BOS: target True, draft False"),
        ("adds_eos", True, "adds EOS: target False, draft True"),
        ("bos", 7, "BOS id: target 1, draft 7"),
    ],
)
def test_every_broken_rule_is_named_with_both_values(vocab, vocab_with, name, value, rule):
    draft = vocab_with()
    setattr(draft, name, value)
    with pytest.raises(IncompatiblePair) as error:
        compare_vocabularies(vocab, draft)
    assert error.value.message.endswith(rule)


def test_an_id_that_is_never_added_may_differ(vocab, vocab_with):
    """The models add no EOS: which one they would add does not matter."""
    draft = vocab_with()
    draft.eos = 9
    assert compare_vocabularies(vocab, draft).differing == frozenset()


def test_a_vocabulary_says_that_its_model_is_closed(llama_gguf: Path) -> None:
    weights = Weights(llama_gguf)
    weights.close()
    for use in (lambda: weights.vocab.piece(5), lambda: weights.vocab.text(5), lambda: weights.vocab.is_special(5)):
        with pytest.raises(RuntimeError, match="went with its model"):
            use()


def test_control_tokens_are_known_by_their_names(vocab):
    names = {
        "<|im_end|>": IM_END,
        "<s>": BOS,
        "</s>": EOS,
        "a": None,
        "<|im_end|><s>": None,
        "": None,
        "<|other|>": None,
    }
    assert {name: vocab.control_token(name) for name in names} == names
