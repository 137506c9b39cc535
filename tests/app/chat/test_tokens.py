"""A conversation as ids: answers as they were generated wherever the template leaves them alone."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specllm.app.chat.template import Message
from specllm.app.chat.tokens import ChatTokenizer, shown_tokens
from specllm.errors import ConfigError
from specllm.runtime.llama import Weights
from specllm.runtime.vocab import Vocab, detokenize
from tests import synthetic
from tests.synthetic import BOS, CHAT_TEMPLATE, FIRST_BYTE, IM_END

TEMPLATES = {
    "appends": CHAT_TEMPLATE,
    "trims": CHAT_TEMPLATE.replace("message.content", "message.content | trim"),
    "drops thinking": CHAT_TEMPLATE.replace("message.content", "message.content.split('</think>')[-1].lstrip('\\n')"),
    "drops old answers": (
        "{% for m in messages %}{% if m.role != 'assistant' or loop.last %}[{{ m.role }}]{{ m.content }}<|im_end|>"
        "{% endif %}{% endfor %}[assistant]"
    ),
    "repeats": "{% for m in messages %}{{ m.content }}={{ m.content }}<|im_end|>{% endfor %}",
    "upper case": "{% for m in messages %}{{ m.content | upper }}<|im_end|>{% endfor %}",
    "counts": "{% for m in messages %}{{ m.content | length }}:{{ m.content }}<|im_end|>{% endfor %}",
}


@pytest.fixture(scope="module")
def weights(synthetic_models: Path) -> Iterator[dict[str, Weights]]:
    loaded = {
        name: Weights(synthetic.write_llama(synthetic_models / f"template{i}.gguf", chat_template=template), is_vocab_only=True)
        for i, (name, template) in enumerate(TEMPLATES.items())
    }  # fmt: skip
    yield loaded
    for one in loaded.values():
        one.close()


def bytewise(text: str) -> list[int]:
    """The text spelled in single bytes, as no tokenizer does it."""
    return [FIRST_BYTE + byte for byte in text.encode()]


def spelled(vocab: Vocab, tokens: list[int]) -> str:
    return b"".join(vocab.piece(token, shows_special=True) for token in tokens).decode(errors="replace")


TALK = [Message("user", "a<|im_end|>b"), Message("assistant", "the end 海"), Message("user", "the end 海")]


def test_an_answer_keeps_its_own_tokens_and_nothing_else_changes(weights):
    tokenizer, vocab = ChatTokenizer(weights["appends"]), weights["appends"].vocab
    plain = tokenizer.tokens(TALK)
    own = bytewise("the end 海")
    kept = tokenizer.tokens(TALK, {1: own})
    at = next(i for i in range(len(kept)) if kept[i : i + len(own)] == own)
    retokenized = vocab.tokenize("the end 海", adds_special=False, parses_special=False)
    assert kept[:at] == plain[:at]
    assert kept[at + len(own) :] == plain[at + len(retokenized) :]
    assert kept[0] == BOS
    assert kept.count(IM_END) == 3  # what the user wrote stays text


@pytest.mark.parametrize(
    ("template", "answer", "is_kept"),
    [
        ("trims", "the end", True), ("trims", "the end\n", False), ("trims", " the end", False),
        ("drops thinking", "the end", True), ("drops thinking", "hm</think>\n\nthe end", False),
        ("drops old answers", "the end", False), ("upper case", "the end", False), ("upper case", "THE END", True),
        ("counts", "the end", False), ("repeats", "the end", True), ("appends", "", True), ("appends", "\n", True),
    ],
)  # fmt: skip
def test_what_the_template_says_counts(weights, template, answer, is_kept):
    """Where it rewrites an answer, its text is what is read."""
    tokenizer, vocab = ChatTokenizer(weights[template]), weights[template].vocab
    talk = [Message("user", "one"), Message("assistant", answer), Message("user", "two")]
    own = bytewise(answer)
    kept, plain = tokenizer.tokens(talk, {1: own}), tokenizer.tokens(talk)
    assert spelled(vocab, kept) == spelled(vocab, plain)
    assert any(kept[i : i + len(own)] == own for i in range(len(kept))) == is_kept


@given(
    st.sampled_from(sorted(TEMPLATES)),
    st.lists(
        st.text(max_size=8) | st.sampled_from(["</think>", "x</think>\n\ny", "<|im_end|>", "\ufdd0", " a "]), max_size=7
    ),
)
def test_the_text_is_the_templates_whatever_is_kept(weights, template, contents):
    tokenizer, vocab = ChatTokenizer(weights[template]), weights[template].vocab
    talk = [Message("user" if i % 2 == 0 else "assistant", content) for i, content in enumerate(["q", *contents])]
    talk = [Message(message.role, message.content.encode("utf-8", "replace").decode()) for message in talk]
    answers = {i: bytewise(message.content) for i, message in enumerate(talk) if message.role == "assistant"}
    for is_question in (True, False):
        kept, plain = (tokenizer.tokens(talk, known, is_question=is_question) for known in (answers, {}))
        assert spelled(vocab, kept) == spelled(vocab, plain)


@given(st.text(max_size=20), st.integers(0, 30), st.data())
def test_the_tokens_of_a_cut_answer_spell_what_was_shown(weights, text, n, data):
    """Cut anywhere, inside a token too; as many of the answer's own tokens as fit are kept."""
    vocab = weights["appends"].vocab
    text = text.encode("utf-8", "replace").decode()
    merged = vocab.tokenize(text, adds_special=False, parses_special=False)
    for tokens in (bytewise(text), merged):
        shown = text[: min(n, len(text))]
        kept = shown_tokens(vocab, tokens, shown)
        assert detokenize(vocab, kept) == shown
        if tokens is not merged:
            assert kept == bytewise(shown)
    assert shown_tokens(vocab, [*bytewise("a海")[:-1]], "a") == bytewise("a")


def test_bytes_that_are_no_text_are_read_as_they_were_shown(weights):
    vocab = weights["appends"].vocab
    broken = [FIRST_BYTE + 0xFF, FIRST_BYTE + 0x41]
    assert shown_tokens(vocab, broken, "\ufffdA") == broken


def test_without_a_template_there_is_no_conversation(synthetic_models):
    weights = Weights(synthetic.write_llama(synthetic_models / "none.gguf", chat_template=None), is_vocab_only=True)
    with pytest.raises(ConfigError, match="no chat template"):
        ChatTokenizer(weights)
    weights.close()
