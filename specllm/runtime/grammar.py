"""Structured output: llguidance on a model's vocabulary.

The rest of the program sees a `Constraint` over token ids; what a JSON schema or a grammar is, only llguidance knows.
"""

from __future__ import annotations

import contextlib
import copy
import ctypes
import logging
from collections.abc import Sequence
from functools import cached_property
from weakref import WeakKeyDictionary

import llama_cpp
import numpy as np
from llguidance import LLTokenizer

from specllm.config import StructureConfig
from specllm.decoding.constraint import Mask, is_allowed
from specllm.decoding.protocols import Token
from specllm.errors import ConfigError, NothingAllowed
from specllm.runtime import compiler, digits, schema
from specllm.runtime.source import NAMES, check_structure, first_line, refusing, source_of
from specllm.runtime.vocab import Vocab

__all__ = ["GrammarConstraint", "check_structure"]

LOGGER = logging.getLogger("specllm")

_REMEMBERED = 8  # answers: what all drafters ask about in a round, each also behind its own draft
# 0.5 s for 151,936 tokens, so made once for a loaded model, and only where a grammar is asked for. It cannot be written to disk.
_tokenizers: WeakKeyDictionary[Vocab, tuple[LLTokenizer, digits.DigitRuns]] = WeakKeyDictionary()


class GrammarConstraint:
    """Implements `decoding.constraint.Constraint` on the vocabulary of one loaded model, and lives no longer than that.

    A pure function of the context: it remembers what the parser was fed, takes back what this context does not share and
    feeds the rest, so a drafter may ask about tokens that are not committed.
    """

    def __init__(self, structure: StructureConfig, vocab: Vocab, *, is_guess: bool = False) -> None:
        """Raises ConfigError for what cannot be compiled or allows no text at all."""
        self._name = NAMES[structure.kind]
        self._eog = vocab.eog
        self._bits = np.zeros(-(-vocab.n_tokens // 32), dtype=np.int32)
        self._end = np.zeros(self._bits.nbytes, dtype=np.uint8)  # the mask that allows the end alone
        for token in vocab.eog:
            self._end[token >> 3] |= 1 << (token & 7)
        self._tokenizer, runs = _tokenizer(vocab)
        source, warnings = source_of(structure, vocab)
        with refusing(structure):
            self._compiled = compiler.compiled(self._tokenizer, source)
            if self._compiled.is_error():
                raise ValueError(self._compiled.get_error())
        is_json = structure.kind in ("json_schema", "json_object")
        self._digits = digits.Digits(runs, structure.text or "{}") if is_json else None
        if not is_guess:
            for warning in (*warnings, *self._compiled.get_grammar_warnings()):
                LOGGER.warning("%s: %s", self._name, warning)
        self._structure, self._vocab = structure, vocab
        # By answer, the last asked for last.
        self._foreseen: dict[tuple[Token, ...], tuple[tuple[Token, ...], int]] = {}
        self.begin(0)
        try:
            is_empty = not (self.mask(()) & ~self._end).any()
        except NothingAllowed:
            is_empty = True
        with refusing(structure):
            if is_empty:
                raise ValueError("it allows no text")

    def another(self) -> GrammarConstraint:
        """The same grammar with a parser of its own, which has seen nothing."""
        other = copy.copy(self)
        other.__dict__.pop("_guesses", None)
        other._bits, other._foreseen = self._bits.copy(), {}
        other.begin(0)
        return other

    def begin(self, n_prompt: int) -> None:
        self._start = n_prompt  # where in the context the answer begins
        self._restart()

    def mask(self, context: Sequence[Token]) -> Mask:
        self._follow(context)
        if self._is_ended:
            return self._end
        self._matcher.unsafe_compute_mask_ptr(self._bits.ctypes.data, self._bits.nbytes)
        self._check()
        mask = self._bits.view(np.uint8)
        if self._digits and (too_long := self._digits.too_long(self._states[-1], mask)):
            shorter = mask.copy()
            for token in too_long:
                shorter[token >> 3] &= ~np.uint8(1 << (token & 7))
            if shorter.any():  # else the schema asks for so long a number
                mask[:] = shorter
        return mask

    def n_allowed(self, context: Sequence[Token], tokens: Sequence[Token]) -> int:
        self._follow(context)
        if self._is_ended or not tokens:
            return 0
        n = self._matcher.validate_tokens(list(tokens))
        if self._matcher.is_error():
            self._restart()
            return 0
        if self._digits:
            state = self._states[-1]
            for i, token in enumerate(tokens[:n]):
                state, is_too_long = self._digits.behind(state, token)
                if is_too_long and not is_allowed(self.mask([*context, *tokens[:i]]), token):
                    return i
        return n

    def foreseen(self, context: Sequence[Token]) -> tuple[tuple[Token, ...], int]:
        answer = tuple(context[self._start :])
        found = self._foreseen.pop(answer, None)
        if found is None:  # both texts begin with what is forced, as all in them is allowed
            found = max(self.spelled(context), self.guessed(context), key=len), len(self.forced(context))
        self._foreseen[answer] = found
        if len(self._foreseen) > _REMEMBERED:
            del self._foreseen[next(iter(self._foreseen))]
        return found

    def forced(self, context: Sequence[Token]) -> tuple[Token, ...]:
        """Tokens that follow because nothing else may; none where there is a choice, or the answer may end."""
        self._follow(context)
        return () if self._is_ended else tuple(self._matcher.compute_ff_tokens())

    def spelled(self, context: Sequence[Token]) -> tuple[Token, ...]:
        """The text that has to follow as the vocabulary's tokenizer splits it."""
        self._follow(context)
        text, last, split = self._matcher.compute_ff_bytes(), self._fed[-1:], self._tokenizer.tokenize_bytes
        # Together with the token before, as `compute_ff_tokens` does it, unless that would be another one there.
        tokens = split(self._tokenizer.decode_bytes(last) + text)
        tokens = tokens[len(last) :] if tokens[: len(last)] == last else split(text)
        return tuple(tokens[: self.n_allowed(context, tokens)])

    def guessed(self, context: Sequence[Token]) -> tuple[Token, ...]:
        """The text that probably follows where the grammar leaves more open than answers use."""
        for guess in self._guesses:
            with contextlib.suppress(NothingAllowed):  # the answer has left it
                tokens = guess.spelled(context[self._start :])
                return tokens[: self.n_allowed(context, tokens)]
        return ()

    def is_complete(self, context: Sequence[Token]) -> bool:
        self._follow(context)
        return self._matcher.is_accepting()

    def is_over(self, context: Sequence[Token]) -> bool:
        return self.is_complete(context) and not (self.mask(context) & ~self._end).any()

    @cached_property
    def _guesses(self) -> list[GrammarConstraint]:
        """Grammars of what an answer probably looks like, those that can be compiled; made where somebody drafts."""
        found = []
        for text in schema.guesses(self._structure.text) if self._structure.kind == "json_schema" else ():
            with contextlib.suppress(ConfigError):
                structure = StructureConfig(kind="json_schema", text=text)
                found.append(GrammarConstraint(structure, self._vocab, is_guess=True))
        return found

    def _restart(self) -> None:
        self._matcher = self._compiled.deep_copy()
        self._fed: list[Token] = []  # of the answer, without an end
        self._states = [digits.START]  # behind each of them, and before the first
        self._is_ended = False  # whether a token that ends the generation came behind them

    def _follow(self, context: Sequence[Token]) -> None:
        """Puts the parser behind the answer in `context`."""
        answer = context[self._start :]
        n = len(self._fed)
        if list(answer[:n]) != self._fed:
            n = next(i for i, token in enumerate(self._fed) if i == len(answer) or answer[i] != token)
            self._matcher.rollback(len(self._fed) - n)
            del self._fed[n:], self._states[n + 1 :]
        self._is_ended = False
        for token in answer[n:]:
            if token in self._eog:
                self._is_ended = True
                return
            if not self._matcher.try_consume_tokens([token]):  # unlike `consume_token` it fails without giving up
                self._check()
                raise self._nothing_allowed("that token is not allowed")
            self._fed.append(token)
            self._states.append(self._digits.behind(self._states[-1], token)[0] if self._digits else digits.START)

    def _check(self) -> None:
        """Raises NothingAllowed where the parser gave up. It never recovers, so the next question goes to a new one: what is
        asked about a draft must not change what is said about the answer."""
        if self._matcher.is_error():
            error = self._nothing_allowed(first_line(self._matcher.get_error()))
            self._restart()
            raise error

    def _nothing_allowed(self, reason: str) -> NothingAllowed:
        return NothingAllowed(f"{self._name} allows nothing behind token {len(self._fed)} of the answer ({reason})",
                              "make it simpler, and check that everything it begins can be completed")  # fmt: skip


def _tokenizer(vocab: Vocab) -> tuple[LLTokenizer, digits.DigitRuns]:
    """The vocabulary as llguidance wants it, with llama.cpp's own tokenizer behind it; and the digits in it.

    What `llguidance.llamacpp` does, without the llama.cpp functions that are deprecated (they warn once a token).
    """
    if vocab not in _tokenizers:
        tokenize = ctypes.cast(llama_cpp.llama_cpp._lib.llama_tokenize, ctypes.c_void_p).value
        pieces = [_bytes_of(vocab, token) for token in range(vocab.n_tokens)]
        tokenizer = LLTokenizer.from_llamacpp(  # type: ignore[attr-defined]
            tokens=pieces,
            vocab_ptr=vocab.handle,
            tokenize_fptr=tokenize,
            eos_token=sorted(vocab.eog),
            slices=None,
        )
        _tokenizers[vocab] = tokenizer, digits.DigitRuns(pieces)
    return _tokenizers[vocab]


def _bytes_of(vocab: Vocab, token: Token) -> bytes:
    """A token's text; 0xff in front marks one that text can never be read as."""
    piece = vocab.piece(token, shows_special=True)
    attributes = llama_cpp.llama_vocab_get_attr(vocab.handle, token)
    is_marker = attributes & llama_cpp.LLAMA_TOKEN_ATTR_USER_DEFINED and piece[:1] == b"<" and piece[-1:] == b">"
    return b"\xff" + piece if attributes & llama_cpp.LLAMA_TOKEN_ATTR_CONTROL or is_marker else piece
