"""What makes token ids of one model mean the same to another: for what is kept as token ids between runs."""

from __future__ import annotations

import hashlib

import llama_cpp

from specllm.runtime.vocab import Vocab

# Words, numbers, blanks, scripts and line ends that pre-tokenizers are known to split in different ways.
_PROBE = "def f(x):\n\n    return x2 + 12345.67  # it's the\tTEST_case's\r\n  naïve Ünïcödé 数据 данные 🙂\n\n\n" * 2


def vocabulary_digest(vocab: Vocab) -> str:
    """The same for models that spell every token alike and split text alike (the sizes of a family), whatever padding rows
    stand behind their tokens; 16 hexadecimal digits."""
    get, attribute, handle, n = (
        llama_cpp.llama_vocab_get_text,
        llama_cpp.llama_vocab_get_attr,
        vocab.handle,
        vocab.n_tokens,
    )
    while n and attribute(handle, n - 1) & llama_cpp.LLAMA_TOKEN_ATTR_UNUSED:
        n -= 1
    digest = hashlib.sha256(vocab.type.encode())
    for token in range(n):
        text = get(handle, token)
        digest.update(len(text).to_bytes(4, "little") + text)
    digest.update(repr(vocab.tokenize(_PROBE, adds_special=False, parses_special=False)).encode())
    return digest.hexdigest()[:16]
