"""A suffix array as a store's file has it, made in memory."""

from __future__ import annotations

from collections.abc import Sequence

from specllm.drafters.store import TOKEN_BYTES, SuffixArray, encode, join, sort_suffixes


def suffix_array(documents: Sequence[Sequence[int]]) -> SuffixArray:
    text = join([encode(document) for document in documents])
    return SuffixArray(b"head" + text + sort_suffixes(text), 4, len(text) // TOKEN_BYTES)
