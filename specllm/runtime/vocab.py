"""Token ids to text and back, and whether two vocabularies can share a draft."""

from __future__ import annotations

import codecs
import ctypes
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate

import llama_cpp

from specllm.decoding.protocols import Token
from specllm.errors import BackendError, IncompatiblePair
from specllm.runtime.pieces import LINES_FROM, MAX_RUN, line_pieces, pieces

MAX_SIZE_DIFFERENCE = 128  # llama.cpp's SPEC_VOCAB_MAX_SIZE_DIFFERENCE: embedding rows are padded to a multiple
MAX_DIFFERING_TOKENS = 128  # as many as padding may add; beyond that it is another vocabulary
_VOCAB_TYPES = {0: "none", 1: "SPM", 2: "BPE", 3: "WPM", 4: "UGM", 5: "RWKV", 6: "PLaMo-2"}


_CUTS_TEXT = (
    llama_cpp.LLAMA_TOKEN_ATTR_CONTROL | llama_cpp.LLAMA_TOKEN_ATTR_UNKNOWN | llama_cpp.LLAMA_TOKEN_ATTR_USER_DEFINED
)
_C_SPACE = " \t\n\v\f\r"  # what C's isspace knows
_NONCHARACTERS = tuple(map(chr, range(0xFDD2, 0xFDF0)))  # which Unicode keeps out of texts


def unused_mark(*texts: str) -> str:
    """A character that none of the texts has."""
    return next((mark for mark in _NONCHARACTERS if not any(mark in text for text in texts)), _NONCHARACTERS[-1])


def broken(text: str, specials: Iterable[str], mark: str) -> str:
    """The text with `mark` behind the first character of every special token's text."""
    for special in specials:
        if special in text:
            text = text.replace(special, f"{special[0]}{mark}{special[1:]}")
    return text


class Vocab:
    """The vocabulary of one loaded model."""

    def __init__(self, model: llama_cpp.llama_model_p) -> None:
        self._handle = llama_cpp.llama_model_get_vocab(model)
        self.n_tokens = int(llama_cpp.llama_vocab_n_tokens(self.handle))
        self.type = _VOCAB_TYPES.get(int(llama_cpp.llama_vocab_type(self.handle)), "unknown")
        self.bos = int(llama_cpp.llama_vocab_bos(self.handle))  # -1: none
        self.eos = int(llama_cpp.llama_vocab_eos(self.handle))
        self.adds_bos = bool(llama_cpp.llama_vocab_get_add_bos(self.handle))
        self.adds_eos = bool(llama_cpp.llama_vocab_get_add_eos(self.handle))
        self._pieces: dict[Token, bytes] = {}

    @property
    def handle(self) -> llama_cpp.llama_vocab_p:
        """llama.cpp's own; RuntimeError once the model is closed, whose memory it is part of."""
        if self._handle is None:
            raise RuntimeError("the vocabulary went with its model")
        return self._handle

    def close(self) -> None:
        self._handle = None

    @cached_property
    def eog(self) -> frozenset[Token]:
        """The tokens that end a generation (end of text, end of turn, ..)."""
        is_eog, handle = llama_cpp.llama_vocab_is_eog, self.handle
        return frozenset(token for token in range(self.n_tokens) if is_eog(handle, token))

    @cached_property
    def specials(self) -> dict[str, Token]:
        """The tokens that a text is cut at before anything else is looked at, by their texts, longest first.

        Of the tokens that a model's makers defined beside its vocabulary only blanks are left out: those are text.
        """
        found = {self.text(token): token for token, attribute in self._attributes if attribute & _CUTS_TEXT}
        texts = sorted((text for text in found if len(text) > 1 and not text.isspace()), key=len, reverse=True)
        return {text: found[text] for text in texts}

    @cached_property
    def controls(self) -> list[str]:
        """The texts of those special tokens that a model never writes as text, longest first."""
        return [text for text, token in self.specials.items() if not self._is_user_defined(token)]

    @cached_property
    def _user_defined(self) -> list[str]:
        """Those that llama.cpp reads as tokens in every text, whatever it is told."""
        return [text for text, token in self.specials.items() if self._is_user_defined(token)]

    def control_token(self, name: str) -> Token | None:
        """The token of that name that a model never writes as text, e.g. `<|im_end|>`; None where there is none."""
        token, *others = self._tokenize(name, parses_special=True) or [-1]
        return None if others or token < 0 or self.piece(token) or self._is_user_defined(token) else token

    @property
    def _attributes(self) -> Iterator[tuple[Token, int]]:
        get, handle = llama_cpp.llama_vocab_get_attr, self.handle
        return ((token, get(handle, token)) for token in range(self.n_tokens))

    def _is_user_defined(self, token: Token) -> bool:
        return bool(self._attribute(token) & llama_cpp.LLAMA_TOKEN_ATTR_USER_DEFINED)

    def _attribute(self, token: Token) -> int:
        return int(llama_cpp.llama_vocab_get_attr(self.handle, token))

    def is_special(self, token: Token) -> bool:
        """Whether the token is something else than text that is written often: control, user-defined, a byte, unused."""
        return bool(self._attribute(token) != llama_cpp.LLAMA_TOKEN_ATTR_NORMAL)

    def text(self, token: Token) -> str:
        """The token as the vocabulary spells it, e.g. `Ġthe` or `<|im_end|>`."""
        text = llama_cpp.llama_vocab_get_text(self.handle, token)
        return text.decode("utf-8", errors="backslashreplace") if text else ""

    def tokenize(self, text: str, *, adds_special: bool, parses_special: bool) -> list[Token]:
        """`adds_special` puts BOS (and EOS) where the model wants them; `parses_special` reads `<|im_end|>` as one token.

        Without that, nothing in the text is read as a special token, user-defined ones (`<tool_call>`) included.
        """
        tokens = [self.bos] if adds_special and self.adds_bos else []
        if not parses_special:
            tokens += self._tokens_of(text)
        elif len(text) <= LINES_FROM:
            tokens += self._tokenize(text, parses_special=True)
        else:
            for part in self.split(text):
                tokens += [part] if isinstance(part, int) else self._tokens_of(part)
        return [*tokens, self.eos] if adds_special and self.adds_eos else tokens

    def may_hold_special(self, text: str) -> bool:
        """Whether a special token's text is in it; where the text is long that is not looked for."""
        if len(text) > MAX_RUN:
            return True
        return any(self._attribute(token) & _CUTS_TEXT for token in set(self._tokenize(text, parses_special=True)))

    def tokenize_inside(self, text: str) -> list[Token]:
        """`text` as it stands in the middle of a text: without special tokens, and without the blank that some
        vocabularies put before every text."""
        return self._tokens_of(text, is_inside=True)

    def tokenize_marked(self, text: str, mark: str, *, is_inside: bool = False) -> list[Token]:
        """Special tokens are read where no `mark` stands in their text (see `broken`); marks leave no trace in the rest.

        `is_inside`: it goes on with a text.
        """
        if mark not in text and not is_inside:
            return self.tokenize(text, adds_special=False, parses_special=True)
        tokens: list[Token] = []
        for part in self.split(text):
            tokens += [part] if isinstance(part, int) else self._tokens_of(part.replace(mark, ""), is_inside=is_inside)
            is_inside = False  # behind a special token some vocabularies put a blank
        return tokens

    def split(self, text: str) -> list[str | Token]:
        """The special tokens that the text names, and the texts between them; as llama.cpp's `tokenizer_st_partition`."""
        parts: list[str | Token] = [text] if text else []
        for special, token in self.specials.items():
            if special in text:
                parts = [one for part in parts for one in self._cut(part, special, token)]
        return parts

    def _cut(self, part: str | Token, special: str, token: Token) -> Iterator[str | Token]:
        if isinstance(part, int):
            yield part
            return
        attribute = self._attribute(token)
        before, *behind = part.split(special)
        for text in behind:
            if before := before.rstrip(_C_SPACE) if attribute & llama_cpp.LLAMA_TOKEN_ATTR_LSTRIP else before:
                yield before
            yield token
            before = text.lstrip(_C_SPACE) if attribute & llama_cpp.LLAMA_TOKEN_ATTR_RSTRIP else text
        if before:
            yield before

    def _tokens_of(self, text: str, *, is_inside: bool = False) -> list[Token]:
        """Of the text alone; a long one in pieces."""
        tokens: list[Token] = []
        for lines in line_pieces(text) if len(text) > LINES_FROM and self._is_cut_at_lines else [text]:
            for piece in pieces(lines):
                tokens += self._tokens_of_piece(piece, is_inside)
                is_inside = True
        return tokens

    def _tokens_of_piece(self, text: str, is_inside: bool) -> list[Token]:
        tokens = self._inside(text) if is_inside else self._tokenize(text)
        if not any(map(self._is_user_defined, set(tokens))):
            return tokens
        mark = unused_mark(text)
        first, *behind = broken(text, self._user_defined, mark).split(mark)
        if not behind:  # blanks alone
            return tokens
        tokens = self._inside(first) if is_inside else self._tokenize(first)
        return [*tokens, *(token for part in behind for token in self._inside(part))]

    def _tokenize(self, text: str, *, parses_special: bool = False) -> list[Token]:
        data = text.encode("utf-8", errors="surrogatepass")
        n_max = len(data) + 2  # a token is at least one byte; some vocabularies add a blank
        buffer = (llama_cpp.llama_token * n_max)()
        n = llama_cpp.llama_tokenize(self.handle, data, len(data), buffer, n_max, False, parses_special)
        if n < 0 and n != -(2**31):  # more tokens than bytes: llama.cpp names the count
            buffer = (llama_cpp.llama_token * -n)()
            n = llama_cpp.llama_tokenize(self.handle, data, len(data), buffer, -n, False, parses_special)
        if n < 0:
            raise BackendError(f"llama.cpp could not tokenize {len(data)} bytes of text", "use a shorter prompt")
        return list(buffer[:n])

    def _inside(self, text: str) -> list[Token]:
        """Without a blank in front: tokenized behind a character that makes no token with the beginning of the text."""
        for before in "\n.\x01" if self._adds_blank else "":
            tokens = self._tokenize(before + text)
            spelled = accumulate(map(self.piece, tokens))
            n_before = next((n for n, so_far in enumerate(spelled, 1) if so_far == b" " + before.encode()), 0)
            if n_before:
                return tokens[n_before:]
        return self._tokenize(text)

    @cached_property
    def _adds_blank(self) -> bool:
        return b"".join(map(self.piece, self._tokenize("a"))).startswith(b" ")

    @cached_property
    def _is_cut_at_lines(self) -> bool:
        """Whether that makes no difference but for the time: newlines are spelled in bytes, and so in no other token."""
        newline = self._tokenize("\n")[-1:] if self.type == "SPM" else []
        if not any(self._attribute(token) & llama_cpp.LLAMA_TOKEN_ATTR_BYTE for token in newline):
            return False
        return not any("\n" in self.text(token) for token in range(self.n_tokens))

    def piece(self, token: Token, *, shows_special: bool = False) -> bytes:
        """The bytes a token adds to the text; nothing for a special token unless `shows_special`."""
        if not shows_special and (known := self._pieces.get(token)) is not None:
            return known
        size = 64
        while True:
            buffer = ctypes.create_string_buffer(size)
            n = llama_cpp.llama_token_to_piece(self.handle, token, buffer, size, 0, shows_special)
            if n >= 0:
                break
            size = -n
        if not shows_special:
            self._pieces[token] = buffer.raw[:n]
        return buffer.raw[:n]


class Detokenizer:
    """Turns tokens into text as they come. Bytes of a character still incomplete are held back."""

    def __init__(self, vocab: Vocab) -> None:
        self._vocab = vocab
        # Incremental: a multi-byte character split over tokens comes out whole; bytes that cannot become one are U+FFFD.
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def push(self, token: Token) -> str:
        """The text that `token` completes."""
        return self._decoder.decode(self._vocab.piece(token))

    @property
    def is_whole(self) -> bool:
        """Whether no character is left incomplete."""
        return not self._decoder.getstate()[0]


def detokenize(vocab: Vocab, tokens: Sequence[Token]) -> str:
    """The text of `tokens`, without a last character that they leave incomplete."""
    detokenizer = Detokenizer(vocab)
    return "".join(map(detokenizer.push, tokens))


@dataclass(frozen=True, slots=True)
class SharedVocabulary:
    """What a draft model may propose to a target: every id below `n_shared` that is not in `differing`."""

    n_shared: int
    differing: frozenset[Token]

    def can_draft(self, token: Token) -> bool:
        return token < self.n_shared and token not in self.differing


def compare_vocabularies(target: Vocab, draft: Vocab, kept: Sequence[Token] | None = None) -> SharedVocabulary:
    """What the two have in common; raises IncompatiblePair with the broken rule, as llama.cpp's speculative check has them.

    Ids that only one side has (padding rows) or that spell different texts are kept out of drafts instead of refused,
    while there are few. `kept`: the draft's vocabulary is a part of a whole one and its id `i` stands for `kept[i]` there.
    """
    if kept is not None:
        return _compare_kept(target, draft, kept)
    rules = [
        ("vocabulary type", target.type, draft.type),
        ("adds BOS", target.adds_bos, draft.adds_bos),
        ("adds EOS", target.adds_eos, draft.adds_eos),
    ]
    rules += [("BOS id", target.bos, draft.bos)] if target.adds_bos else []
    rules += [("EOS id", target.eos, draft.eos)] if target.adds_eos else []
    broken = [f"{rule}: target {ours}, draft {theirs}" for rule, ours, theirs in rules if ours != theirs]
    n_shared = min(target.n_tokens, draft.n_tokens)
    difference = abs(target.n_tokens - draft.n_tokens)
    if difference > MAX_SIZE_DIFFERENCE:
        broken.append(f"size: target {target.n_tokens:,} tokens, draft {draft.n_tokens:,}, more than "
                      f"{MAX_SIZE_DIFFERENCE} apart")  # fmt: skip
    differing = _differing_tokens(target, draft, n_shared)
    if len(differing) > MAX_DIFFERING_TOKENS or (broken and differing):
        first = ", ".join(
            f"{token} ({target.text(token)!r} / {draft.text(token)!r})" for token in sorted(differing)[:5]
        )
        broken.append(f"token texts: {len(differing):,} ids differ (target / draft), first {first}")
    if broken:
        raise IncompatiblePair(
            "the draft model's vocabulary is not the target's: " + "; ".join(broken),
            "take a draft model of the same family (`specllm models list` shows pairs), or use --drafter lookup",
        )
    return SharedVocabulary(n_shared, differing)


def _compare_kept(target: Vocab, draft: Vocab, kept: Sequence[Token]) -> SharedVocabulary:
    """The part of a vocabulary has no padding and every text of it counts; ids of the others are proposed by nobody."""
    get, ours, theirs = llama_cpp.llama_vocab_get_text, target.handle, draft.handle
    differing = frozenset(
        token for i, token in enumerate(kept) if token >= target.n_tokens or get(ours, token) != get(theirs, i)
    )
    if target.type != draft.type or len(differing) > MAX_DIFFERING_TOKENS:
        raise IncompatiblePair(
            f"the trimmed draft model was made for another vocabulary: {len(differing):,} of its {len(kept):,} tokens are not "
            "the target's",
            "make one of a model of the target's family: specllm models make-draft",
        )
    return SharedVocabulary(target.n_tokens, differing)


def _differing_tokens(target: Vocab, draft: Vocab, n_shared: int) -> frozenset[Token]:
    get, ours, theirs = llama_cpp.llama_vocab_get_text, target.handle, draft.handle
    return frozenset(token for token in range(n_shared) if get(ours, token) != get(theirs, token))
