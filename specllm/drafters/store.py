"""Proposes what followed the longest suffix of the context in a store: the user's own files and earlier answers.

A store is a suffix array (Manber and Myers 1990) over the *reversed* documents. The longest suffix of a context is then the
longest prefix of the reversed context: one binary search finds it, and all its occurrences lie side by side. Of what followed
them the draft takes the most frequent, token by token, as retrieval-based speculation does (REST, He et al. 2023).
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from mmap import mmap

import numpy as np
import numpy.typing as npt

from specllm.decoding.protocols import EMPTY_DRAFT, Draft, Round, Token
from specllm.drafters.lookup import MATCH_STEPS, match_evidence

LONGEST_MATCH = 64  # tokens; suffixes are not sorted beyond
TOKEN_BYTES = 4
LONGEST_DRAFT = (
    32  # tokens: the occurrences seldom agree for longer, and each one read is a miss in the processor's caches
)
_SEPARATOR = 2**32 - 1  # closes a document; no token, and greater than any
# Lower than lookup's: a store is larger than a context, and how far its occurrences agree tells what a short match is worth.
# Over lookup alone, tokens per forward rose by 1.28 and 1.47 with a match of 3 tokens, by 1.39 and 1.56 with 2 (as below).
MIN_MATCH = 2
_MOST_OCCURRENCES = 64  # that have a vote: the whole of a frequent one would cost milliseconds

# Evidence: the tokens that matched in front of this one, as in lookup, and how far the occurrences agree about it. The chances
# are what is believed at first; measured on 400 functions of a repository of 377 Python files whose other files, or whose
# other text, were in the store (30 November 2026).
_SINGLE, _UNANIMOUS, _MAJORITY, _MINORITY = range(4)
_N_CLASSES = len(MATCH_STEPS) + 1
_CHANCES = {
    _SINGLE: (0.15, 0.24, 0.3, 0.4, 0.48, 0.62, 0.74, 0.86, 0.91, 0.95, 0.95, 0.97, *[0.98] * 3),
    _UNANIMOUS: (0.4, 0.48, 0.6, 0.72, 0.73, 0.77, 0.8, 0.88, 0.89, 0.95, 0.96, 0.96, 0.97, 0.98, 0.98),
    _MAJORITY: (0.27, 0.32, 0.4, 0.42, 0.42, 0.43, 0.45, *[0.5] * 8),
    _MINORITY: (0.11, 0.12, 0.12, 0.14, 0.15, 0.19, *[0.25] * 9),
}
STORE_PRIOR = {
    agreement * _N_CLASSES + step: chance
    for agreement, chances in _CHANCES.items()
    for step, chance in enumerate(chances, start=1)
}


def encode(tokens: Sequence[Token]) -> bytes:
    """One document as a store keeps it: reversed and closed; big-endian, so that its bytes compare as its tokens do."""
    return np.array([*reversed(tokens), _SEPARATOR], dtype=">u4").tobytes()


def join(documents: Iterable[bytes]) -> bytes:
    """The text of a store: what `encode` made of its documents, with something in front of the first one."""
    return b"".join([_SEPARATOR.to_bytes(TOKEN_BYTES, "big"), *documents])


def sort_suffixes(text: bytes) -> bytes:
    """The places of all suffixes of `text` in the order of their first LONGEST_MATCH tokens, as native 32-bit numbers.

    Prefix doubling (Karp, Miller and Rosenberg 1972), in which only what is not told apart yet is sorted again. Six sorts
    at worst, in 50 bytes a token.
    """
    tokens = np.minimum(np.frombuffer(text, ">u4"), 2**31 - 2)  # an order is all that is needed of them
    n, n_known = len(tokens), 1
    ranks = np.full(n + LONGEST_MATCH, -1, np.int32)  # by the first n_known tokens; the end is less than anything
    ranks[:n] = tokens
    order = np.arange(n, dtype=np.int32)
    open_ = order.copy()  # the places in `order` whose neighbours are equal so far
    while n_known < LONGEST_MATCH and len(open_):
        suffixes = order[open_]
        keys = ranks[suffixes].astype(np.int64) << 32
        keys += ranks[suffixes + n_known] + np.int64(1)
        sorting = np.argsort(keys)
        suffixes, keys = suffixes[sorting], keys[sorting]
        order[open_] = suffixes
        is_first = np.append(True, keys[1:] != keys[:-1])
        ranks[suffixes] = np.maximum.accumulate(np.where(is_first, open_, 0))  # equal ones share the first one's place
        open_ = open_[~(is_first & np.append(is_first[1:], True))]
        n_known *= 2
    return order.astype(np.uint32).tobytes()


@dataclass(frozen=True, slots=True)
class Match:
    """The longest suffix of a context that a store has, and where its occurrences lie in the suffix array."""

    length: int
    first: int
    end: int


NO_MATCH = Match(0, 0, 0)


class SuffixArray:
    """The text of a store and its sorted suffixes, in memory or mapped from a file."""

    def __init__(self, data: bytes | mmap, start: int, n_tokens: int) -> None:
        """`data` holds from byte `start` on a text of `n_tokens` (`join`) and what `sort_suffixes` made of it."""
        middle = start + n_tokens * TOKEN_BYTES
        self.n_tokens = n_tokens
        self._data = data
        self._start = start
        self._suffixes = memoryview(data)[middle : middle + n_tokens * TOKEN_BYTES].cast("I")
        self._places = np.frombuffer(data, np.uint32, n_tokens, middle)
        self._tokens = np.frombuffer(data, ">u4", n_tokens, start)

    def find(self, context: Sequence[Token], min_match: int) -> Match:
        """The longest match of the context's end, of at least `min_match` tokens."""
        query = np.array(context[: -LONGEST_MATCH - 1 : -1], dtype=">u4").tobytes()
        at = bisect_left(self._suffixes, query, key=self._beginning(len(query)))
        read, n_suffixes = self._beginning(len(query)), len(self._suffixes)
        neighbours = (read(self._suffixes[i]) for i in (at - 1, at) if 0 <= i < n_suffixes)
        length = max((_n_common(query, neighbour) for neighbour in neighbours), default=0)
        if length < max(min_match, 1):
            return NO_MATCH
        prefix, read = query[: length * TOKEN_BYTES], self._beginning(length * TOKEN_BYTES)
        first = bisect_left(self._suffixes, prefix, hi=at, key=read)
        return Match(length, first, bisect_right(self._suffixes, prefix, lo=at, key=read))

    def following(self, match: Match, k: int) -> npt.NDArray[np.uint32]:
        """(occurrences, k): the tokens behind the match, of evenly spaced occurrences where there are many."""
        step = -(-(match.end - match.first) // _MOST_OCCURRENCES)
        places = self._places[match.first : match.end : step].astype(np.int64)
        # Reversed, what follows lies in front. In front of the first document is a separator, where reading ends anyway.
        tokens: npt.NDArray[np.uint32] = self._tokens[np.maximum(places[:, None] - np.arange(1, k + 1), 0)]
        return tokens

    def _beginning(self, n_bytes: int) -> Callable[[int], bytes]:
        """Reads so many bytes of a suffix. They may reach over the text's end: behind its last separator nothing is compared."""
        data, start = self._data, self._start

        def read(place: int) -> bytes:
            at = start + place * TOKEN_BYTES
            return data[at : at + n_bytes]

        return read


def _n_common(query: bytes, other: bytes) -> int:
    """Tokens that both begin with; `other` is as long as `query`, or cut short by the end of everything."""
    n = min(len(query), len(other)) // TOKEN_BYTES
    is_other = np.frombuffer(query, np.uint32, n) != np.frombuffer(other, np.uint32, n)
    return int(is_other.argmax()) if is_other.any() else n


class StoreDrafter:
    """Implements `protocols.Drafter` over the suffix arrays of a store; it keeps nothing of a request."""

    name = "store"

    def __init__(self, arrays: Sequence[SuffixArray], min_match: int = MIN_MATCH) -> None:
        self._arrays = arrays
        self._min_match = min_match

    def begin(self, context: Sequence[Token]) -> None:
        """Nothing to forget."""

    def propose(self, context: Sequence[Token], k: int) -> Draft:
        k = min(k, LONGEST_DRAFT)
        if not k:
            return EMPTY_DRAFT
        matches = [(array.find(context, self._min_match), array) for array in self._arrays]
        match, array = max(matches, key=lambda found: found[0].length, default=(NO_MATCH, None))
        if array is None or not match.length:
            return EMPTY_DRAFT
        drafted = list(_most_followed(array.following(match, k)))
        if not drafted:
            return EMPTY_DRAFT
        tokens = tuple(token for token, _ in drafted)
        matched = match_evidence(match.length, len(drafted))
        evidence = (agreement * _N_CLASSES + one for one, (_, agreement) in zip(matched, drafted, strict=True))
        return Draft(tokens, self.name, tuple(evidence))

    def observe(self, round: Round) -> None:
        """Nothing to learn: the committed tokens are read from the context."""


def _most_followed(rows: npt.NDArray[np.uint32]) -> Iterator[tuple[Token, int]]:
    """The most frequent next token among `rows` (occurrences, k), then that among the rows which have it, and so on up to the
    end of a document; each with how far the rows agreed about it."""
    at, k = 0, rows.shape[1]
    while at < k:
        is_same = (rows[:, at:] == rows[0, at:]).all(axis=0)
        end = k if is_same.all() else at + int(is_same.argmin())
        for token in rows[0, at:end].tolist():
            if token == _SEPARATOR:
                return
            yield token, _SINGLE if len(rows) == 1 else _UNANIMOUS
        if end == k:
            return
        (token, n), *_ = Counter(rows[:, end].tolist()).most_common(1)
        if token == _SEPARATOR:
            return
        yield token, _MAJORITY if 2 * n > len(rows) else _MINORITY
        rows = rows[rows[:, end] == token]
        at = end + 1
