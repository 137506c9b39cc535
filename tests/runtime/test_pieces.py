"""Texts that a tokenizer cannot take at once: runs of one character, long lines, and how they are cut."""

from __future__ import annotations

import re
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specllm.runtime.llama import Weights
from specllm.runtime.pieces import LINES_FROM, MAX_RUN, line_pieces, pieces
from specllm.runtime.vocab import Vocab, detokenize
from tests import synthetic

N = 300_000
ONES = ["A", ".", "漢", " ", "\n", "\t", "🙂", "1", "a ", "a1", "'", "\x00", "\u2028", "ሰ", "\r\n", " \n", "e\u0301"]

parts = st.builds(
    lambda text, n: text * n,
    st.text(st.sampled_from("aZ9 .\n\t漢🙂é_'\u2028"), min_size=1, max_size=4),
    st.integers(1, 9000),
)
texts = st.lists(parts, max_size=5).map("".join)


@settings(max_examples=60, deadline=None)
@given(texts)
def test_pieces_are_the_text_and_no_piece_has_a_long_run(text):
    cut = pieces(text)
    assert "".join(cut) == text
    for piece in cut:
        for run in (r"\S+", r"[^ \n]+", r"\s+"):
            assert (
                max(map(len, re.findall(run, piece)), default=0) <= 2 * MAX_RUN
            )  # two kinds of run may stand together


@settings(max_examples=60, deadline=None)
@given(texts)
def test_what_has_no_long_run_stays_whole(text):
    if not any(len(run) > MAX_RUN for run in re.findall(r"(?:\w ?)+|[^ \n]+|\s+", text)):
        assert pieces(text) == [text]


@settings(max_examples=60, deadline=None)
@given(texts)
def test_pieces_of_lines_end_with_all_their_newlines(text):
    cut = line_pieces(text)
    assert "".join(cut) == text
    for piece, behind in pairwise(cut):
        assert len(piece) > LINES_FROM
        assert piece.endswith("\n")
        assert not behind.startswith("\n")


def test_a_long_line_of_words_is_cut_before_a_blank():
    line = "word " * 5000
    assert all(piece.startswith(" word") for piece in pieces(line)[1:])


@pytest.mark.parametrize("one", ONES)
@pytest.mark.parametrize("space_prefix", [False, True])
def test_one_run_of_hundreds_of_thousands_of_characters_becomes_tokens(tmp_path: Path, one, space_prefix):
    weights = Weights(synthetic.write_llama(tmp_path / "m.gguf", space_prefix=space_prefix), is_vocab_only=True)
    try:
        text = one * (N // len(one))
        tokens = weights.vocab.tokenize(text, adds_special=False, parses_special=False)
        assert detokenize(weights.vocab, tokens) == " " * space_prefix + text
    finally:
        weights.close()


def test_lines_make_no_difference_to_the_tokens(vocab: Vocab):
    """Newlines are bytes in this vocabulary: a text in pieces of lines is the text at once."""
    text = "".join(f"the line {i}: {'x' * (i % 50)}é{chr(10) * (1 + i % 3)}" for i in range(2000))
    at_once = vocab._tokenize(text)
    assert len(line_pieces(text)) > 5
    assert vocab.tokenize(text, adds_special=False, parses_special=False) == at_once
