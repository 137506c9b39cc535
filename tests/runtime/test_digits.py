"""Numbers in JSON answers end, those that programs write stay possible, and nothing gets stuck."""

from __future__ import annotations

import json
import random
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specllm.config import StructureConfig
from specllm.decoding.constraint import is_allowed
from specllm.runtime.digits import DigitRuns, Digits
from specllm.runtime.grammar import GrammarConstraint
from specllm.runtime.vocab import Vocab, detokenize

OBJECT = StructureConfig(kind="json_object")


def number(**keywords: object) -> StructureConfig:
    return StructureConfig(kind="json_schema", text=json.dumps({"type": "number", **keywords}))


def allows(constraint: GrammarConstraint, vocab: Vocab, text: str) -> bool:
    """Whether each of its tokens may come next, and the end behind them."""
    tokens = vocab.tokenize(text, adds_special=False, parses_special=False)
    is_whole = constraint.n_allowed([], tokens) == len(tokens)
    for i, token in enumerate(tokens):
        assert is_allowed(constraint.mask(tokens[:i]), token) or not is_whole
    return is_whole and constraint.is_complete(tokens)


def longest(constraint: GrammarConstraint, vocab: Vocab, text: str, digit: str = "7") -> str:
    """The text with as many of this digit behind it as may follow."""
    tokens = list(vocab.tokenize(text, adds_special=False, parses_special=False))
    (token,) = vocab.tokenize(digit, adds_special=False, parses_special=False)
    while len(tokens) < 200 and is_allowed(constraint.mask(tokens), token):
        assert constraint.n_allowed(tokens, [token, token]) >= 1
        tokens.append(token)
    assert constraint.n_allowed(tokens, [token]) == 0
    return detokenize(vocab, tokens)


@pytest.mark.parametrize(("structure", "begin", "n_digits"), [
    (number(), "", 21), (number(), "-1", 21), (number(), "0.", 22), (number(), "1e+", 3), (number(minimum=0), "", 21),
    (number(minimum=0, maximum=1), "0.", 22), (number(type="integer"), "-", 21), (number(type="integer", multipleOf=7), "", 21),
    (StructureConfig(kind="json_schema", text="{}"), "[1, 2.5, ", 21), (OBJECT, '{"1234567890123456789012345": ', 21),
])  # fmt: skip
def test_digits_come_to_an_end(vocab, structure, begin, n_digits):
    """The prompt may ask for as many as the model knows."""
    text = longest(GrammarConstraint(structure, vocab), vocab, begin)
    part = text.replace('"1234567890123456789012345"', "").replace("1, 2.5, ", "").lstrip("[{: -").rpartition(".")[2]
    assert len(part.rpartition("e+")[2]) == n_digits


@settings(max_examples=300, deadline=None)
@given(
    value=st.floats(allow_nan=False, allow_infinity=False)
    | st.integers(-(2**63), 2**64 - 1)
    | st.integers(-(10**20), 10**20)
)
def test_every_number_that_programs_write_is_allowed(vocab, value):
    constraint = GrammarConstraint(OBJECT, vocab)
    assert allows(constraint, vocab, json.dumps({"a": value}))
    assert allows(constraint, vocab, json.dumps({"a": [value, value]}))


@pytest.mark.parametrize("text", [
    "0", "-0", "1E5", "1.5e-300", "0.0000012345678901234567", "123456789012345678901", str(sys.float_info.max),
    str(sys.float_info.min), "0.1e+1",
])  # fmt: skip
def test_every_notation_is_allowed(vocab, text):
    assert allows(GrammarConstraint(number(), vocab), vocab, text)


@pytest.mark.parametrize(("structure", "text"), [
    (number(minimum=0, maximum=10**30), "9" * 30), (number(type="integer", minimum=0, maximum=1e18), "9" * 18),
    (number(minimum=0, maximum=0.5, multipleOf=1e-8), "0.12345678"),
    (StructureConfig(kind="json_schema", text='{"enum": [1e25, "123456789012345678901234567890"]}'),
     '"123456789012345678901234567890"'),
    (StructureConfig(kind="json_schema", text='{"const": 1e25}'), "1" + "0" * 25),
])  # fmt: skip
def test_a_longer_number_is_allowed_where_the_schema_names_one(vocab, structure, text):
    assert allows(GrammarConstraint(structure, vocab), vocab, text)


def test_digits_in_texts_are_not_counted(vocab):
    digits = "1234567890" * 10
    constraint = GrammarConstraint(OBJECT, vocab)
    assert allows(constraint, vocab, json.dumps({digits: digits, "a": f'\\"{digits}'}))


def test_a_number_that_must_go_on_does(vocab):
    """Above 0, an answer of zeros alone has to get another digit however many there are."""
    constraint = GrammarConstraint(number(exclusiveMinimum=0, maximum=1), vocab)
    tokens = vocab.tokenize("0." + "0" * 22, adds_special=False, parses_special=False)
    assert constraint.n_allowed([], tokens) == len(tokens)
    (one,) = vocab.tokenize("1", adds_special=False, parses_special=False)
    assert is_allowed(constraint.mask(tokens), one)
    assert constraint.n_allowed(tokens, [one]) == 1


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    structure=st.sampled_from([OBJECT, number(), number(minimum=-5), number(exclusiveMaximum=0)]),
)
def test_what_is_allowed_depends_on_the_context_alone(vocab, seed, structure):
    choose, used = random.Random(seed), GrammarConstraint(structure, vocab)
    digits = list(vocab.tokenize("0123456789.e-", adds_special=False, parses_special=False))
    answer: list[int] = []
    while len(answer) < 60:
        mask = used.mask(answer).copy()
        used.n_allowed(answer, choose.choices(digits, k=30))  # a draft that nobody accepts
        used.foreseen(answer)
        assert (used.mask(answer) == mask).all()
        fresh = GrammarConstraint(structure, vocab)
        assert (fresh.mask(answer) == mask).all()
        allowed = [token for token in range(vocab.n_tokens) if is_allowed(mask, token) and token not in vocab.eog]
        if not allowed:
            break
        likely = [token for token in allowed if token in digits]
        answer.append(choose.choice(likely or allowed))


PIECES = [b"0", b"00", b"0" * 16, b"0" * 40, b".", b".5", b"." + b"5" * 30, b"e1", b"e1234", b'"', b'": 1', b", " + b"1" * 25,
          b"\\", b"-", b"E+", b"true", b"[1"]  # fmt: skip


@settings(max_examples=500, deadline=None)
@given(answer=st.lists(st.sampled_from(range(len(PIECES))), max_size=12), token=st.sampled_from(range(len(PIECES))))
def test_tokens_of_many_digits_count_as_their_digits_do(answer, token):
    """However a vocabulary cuts the text, the bound is the same."""
    whole, single = Digits(DigitRuns(PIECES), "{}"), Digits(DigitRuns([bytes([byte]) for byte in range(256)]), "{}")
    state = (0, 0)
    for one in answer:
        state, _ = whole.behind(state, one)
    steps, is_too_long = state, False
    for byte in PIECES[token]:
        steps, is_longer = single.behind(steps, byte)
        is_too_long |= is_longer
    assert whole.behind(state, token) == (steps, is_too_long)
    mask = np.full(3, 0xFF, dtype=np.uint8)
    assert (token in whole.too_long(state, mask)) == (is_too_long and state[0] not in (1, 2))
