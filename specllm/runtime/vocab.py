"""Token ids to text and back, and whether two vocabularies can share a draft."""

from __future__ import annotations

import codecs
import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate

import llama_cpp

from specllm.decoding.protocols import Token
from specllm.errors import BackendError, IncompatiblePair

MAX_SIZE_DIFFERENCE = 128  # llama.cpp's SPEC_VOCAB_MAX_SIZE_DIFFERENCE: embedding rows are padded to a multiple
MAX_DIFFERING_TOKENS = 128  # as many as padding may add; beyond that it is another vocabulary
_VOCAB_TYPES = {0: "none", 1: "SPM", 2: "BPE", 3: "WPM", 4: "UGM", 5: "RWKV", 6: "PLaMo-2"}


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
    def control_texts(self) -> list[str]:
        """The texts of all control tokens, longest first: what `parses_special` would read as one token."""
        is_control, handle = llama_cpp.llama_vocab_is_control, self.handle
        texts = [self.text(token) for token in range(self.n_tokens) if is_control(handle, token)]
        return sorted(filter(None, texts), key=len, reverse=True)

    def is_special(self, token: Token) -> bool:
        """Whether the token is something else than text that is written often: control, user-defined, a byte, unused."""
        return bool(llama_cpp.llama_vocab_get_attr(self.handle, token) != llama_cpp.LLAMA_TOKEN_ATTR_NORMAL)

    def text(self, token: Token) -> str:
        """The token as the vocabulary spells it, e.g. `Ġthe` or `<|im_end|>`."""
        text = llama_cpp.llama_vocab_get_text(self.handle, token)
        return text.decode("utf-8", errors="backslashreplace") if text else ""

    def tokenize(self, text: str, *, adds_special: bool, parses_special: bool) -> list[Token]:
        """`adds_special` puts BOS (and EOS) where the model wants them; `parses_special` reads `<|im_end|>` as one token."""
        data = text.encode("utf-8", errors="surrogatepass")
        n_max = len(data) + 2  # a token is at least one byte, plus BOS and EOS
        buffer = (llama_cpp.llama_token * n_max)()
        n = llama_cpp.llama_tokenize(self.handle, data, len(data), buffer, n_max, adds_special, parses_special)
        if n < 0 and n != -(2**31):  # more tokens than bytes: llama.cpp names the count
            buffer = (llama_cpp.llama_token * -n)()
            n = llama_cpp.llama_tokenize(self.handle, data, len(data), buffer, -n, adds_special, parses_special)
        if n < 0:
            raise BackendError(f"llama.cpp could not tokenize {len(data)} bytes of text", "use a shorter prompt")
        return list(buffer[:n])

    def tokenize_inside(self, text: str) -> list[Token]:
        """`text` as it stands in the middle of a text: without special tokens, and without the blank that some
        vocabularies put before every text."""
        if not self._adds_blank:
            return self.tokenize(text, adds_special=False, parses_special=False)
        tokens: list[Token] = []
        for before in "\n.":  # whichever of them makes no token with the beginning of the text
            tokens = self.tokenize(before + text, adds_special=False, parses_special=False)
            pieces = accumulate(map(self.piece, tokens))
            n_before = next((n for n, piece in enumerate(pieces, 1) if piece == b" " + before.encode()), 0)
            if n_before:
                return tokens[n_before:]
        return tokens

    @cached_property
    def _adds_blank(self) -> bool:
        tokens = self.tokenize("a", adds_special=False, parses_special=False)
        return b"".join(map(self.piece, tokens)).startswith(b" ")

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
