"""Drafting over text: two vocabularies of llama.cpp, a draft model whose KV cache is the list of tokens it was fed."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from pathlib import Path

import gguf
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specllm.decoding.controller import Verdict
from specllm.drafters.bridge import BridgeDrafter
from specllm.drafters.model import floor_rule
from specllm.runtime.llama import Weights
from specllm.runtime.vocab import Vocab
from tests import synthetic
from tests.drafters.bridge.bridges import (
    ALWAYS,
    TEXTS,
    TellingModel,
    bridge,
    check_is_canonical,
    pieces_of,
    read_by_draft,
    said_behind,
    tokens_of,
)
from tests.fakes import BigramModel
from tests.synthetic import BOS, EOS, FIRST_BYTE, IM_END, IM_START, N_VOCAB

words = st.sampled_from(
    [
        "hello world",
        " the",
        " in a",
        "\n\n",
        "    ",
        "日本語",
        "🙂🙂👩‍👩‍👧",
        "a\u0301",
        "ing",
        "ret",
        "<|im_end|>",
        "\u2581",
    ]
)
texts = st.lists(st.one_of(words, st.text(max_size=4)), max_size=40).map("".join)
histories = st.lists(
    st.tuples(st.integers(1, 8), st.floats(0, 1), st.integers(0, N_VOCAB - 1)), min_size=1, max_size=25
)  # k, share accepted, the target's token


@settings(max_examples=300, deadline=None)
@given(
    prompt=texts,
    marks=st.lists(st.sampled_from([IM_START, IM_END, EOS]), max_size=3),
    story=texts.filter(bool),
    history=histories,
    floor=st.sampled_from([0.0, 0.5]),
)
def test_drafts_are_the_targets_tokens_for_what_the_draft_model_says(
    vocabularies, prompt, marks, story, history, floor
):
    target, draft = vocabularies
    model = TellingModel([*tokens_of(draft, story), *marks], draft.n_tokens)
    drafter = BridgeDrafter(model, target, draft, rule=floor_rule(floor))
    context = [*marks[:1], *tokens_of(target, prompt), *marks[1:]]
    drafter.begin(context)
    for k, share, token in history:
        proposal = drafter.propose(context, k)
        read, rest = read_by_draft(context, target, draft)
        said = said_behind(model, read, floor)
        assert len(proposal.tokens) == len(proposal.evidence) <= k
        assert all(target.piece(token) and token not in target.eog for token in proposal.tokens)
        text = pieces_of(draft, said)
        if proposal.tokens:
            assert text.startswith(rest + pieces_of(target, proposal.tokens))
            check_is_canonical(target, context, text[len(rest) :], proposal.tokens)
        context += proposal.tokens[: round(share * len(proposal.tokens))]
        context.append(token)


@pytest.mark.parametrize(
    ("before", "story", "proposed"),
    [
        ("x ", "hello world ", ["he", "l", "l", "o", " ", "w", "or", "l", "d", " "]),  # the blank is one for both
        ("x", " the end", [" the", " ", "en"]),  # the draft's nd ends where the target's d may go on
        ("x", " the end?", [" the", " ", "en", "d", "?"]),
        ("x", "<|im_end|>", ["<", "|", "i", "m", "_", "en", "d", "|", ">"]),  # text is text
        ("th", "e", []),  # the target would have said "the"
    ],
)
def test_only_tokens_that_begin_and_end_where_the_targets_do_are_proposed(vocabularies, before, story, proposed):
    target, _ = vocabularies
    context = tokens_of(target, before)
    draft = bridge(vocabularies, context, story).propose(context, 40)
    assert [target.piece(token).decode() for token in draft.tokens] == proposed


def test_a_character_that_the_target_has_begun_is_completed(vocabularies):
    target, _ = vocabularies
    before, emoji = tokens_of(target, "a" * 100), [FIRST_BYTE + byte for byte in "🙂".encode()]
    right, wrong = (bridge(vocabularies, before, story) for story in ("🙂!", "x"))
    for n in (1, 2, 3):
        context = [*before, *emoji[:n]]
        assert right.propose(context, 40).tokens == (*emoji[n:], *tokens_of(target, "!"))
        assert wrong.propose(context, 40).tokens == ()


@pytest.mark.parametrize(("said", "proposed"), [(b"b\xe6\x97", "b"), (b"b\xe6\x97\xa5\xe6", "b日"), (b"b\x97x", "b")])
def test_what_is_no_whole_character_is_left_out_of_the_draft(vocabularies, said, proposed):
    target, draft = vocabularies
    context = tokens_of(target, "a")
    model = TellingModel([*(FIRST_BYTE + byte for byte in said), draft.eos], draft.n_tokens, n_before=2)
    drafter = BridgeDrafter(model, target, draft, rule=ALWAYS)
    drafter.begin(context)
    assert pieces_of(target, drafter.propose(context, 40).tokens) == proposed.encode()


def test_special_tokens_of_the_target_are_line_breaks_to_the_draft_model(vocabularies):
    target, draft = vocabularies
    context = [BOS, IM_START, *tokens_of(target, "user"), IM_END, *tokens_of(target, "hi")]
    drafter = bridge(vocabularies, context, "ab")
    assert drafter.propose(context, 2).tokens == tuple(tokens_of(target, "ab"))
    read = [BOS, *tokens_of(draft, "\n\nuser\nhi")]
    assert drafter._model.cache[: len(read)] == read


def test_the_evidence_is_that_of_the_least_sure_token(vocabularies):
    target, _ = vocabularies
    context = tokens_of(target, "a")
    drafter = bridge(vocabularies, context, "hello|the |")
    draft = drafter.propose(context, 40)  # the draft model says: hello | t(unsure) h e ..
    evidence = dict(zip(map(target.piece, draft.tokens), draft.evidence, strict=True))
    assert evidence[b"he"] == evidence[b"l"] == evidence[b"|"] == 6
    assert evidence[b"the"] < 3
    assert drafter.seen[:-1] == draft.evidence  # the last one is of the draft model's end of text


def test_as_many_tokens_are_asked_of_the_draft_model_as_the_text_takes(vocabularies):
    target, draft = vocabularies
    context = tokens_of(target, "ineron" * 9)
    assert len(tokens_of(draft, "ineron" * 9)) == 2 * len(context)
    assert bridge(vocabularies, context, "ineron!").propose(context, 3).tokens == tuple(tokens_of(target, "ineron"))


@pytest.mark.parametrize("n_before", range(12))  # so that every place of the text comes to stand where it is settled
def test_what_is_read_token_by_token_is_what_is_read_at_once(vocabularies, n_before):
    target, draft = vocabularies
    model = BigramModel(draft.n_tokens)
    drafter = BridgeDrafter(model, target, draft, rule=ALWAYS)
    drafter.begin([])
    context: list[int] = []
    for token in tokens_of(target, "?" * n_before + "hello🙂🙂日 world\n\n\n" * 6):
        context.append(token)
        drafter.propose(context, 1)
        read, _ = read_by_draft(context, target, draft)
        assert model.cache[: len(read)] == read


def test_a_token_that_ends_the_text_is_not_proposed_even_where_it_is_text(vocabularies):
    class Ending(Vocab):
        def __init__(self) -> None:
            vars(self).update(vars(vocabularies[0]), eog=frozenset(tokens_of(vocabularies[0], "!")))

    context = tokens_of(vocabularies[0], "a")
    assert bridge((Ending(), vocabularies[1]), context, "?!?").propose(context, 3).tokens == tuple(
        tokens_of(vocabularies[0], "?")
    )


def test_a_token_that_the_rule_drops_is_kept_for_judging(vocabularies):
    def rule(probability: float, evidence: Sequence[int], k: int) -> Verdict:
        return "drop"

    target, _ = vocabularies
    context = tokens_of(target, "a")
    drafter = bridge(vocabularies, context, "hello!", rule=rule)
    assert drafter.propose(context, 4).tokens == ()
    assert drafter.dropped.tokens == tuple(tokens_of(target, "hell"))  # the draft model's hello
    drafter.rule = ALWAYS
    assert drafter.propose(context, 4).tokens == tuple(tokens_of(target, "hello"))
    assert drafter.dropped.tokens == ()


def test_a_draft_ends_where_the_grammar_ends_it(vocabularies):
    class TwoAllowed:
        def n_allowed(self, context: Sequence[int], tokens: Sequence[int]) -> int:
            return min(2, len(tokens))

    target, _ = vocabularies
    context = tokens_of(target, "a")
    draft = bridge(vocabularies, context, "?!?!", constraint=TwoAllowed()).propose(context, 4)
    assert (draft.tokens, len(draft.evidence)) == (tuple(tokens_of(target, "?!")), 2)


def test_what_is_to_be_read_is_counted_before_it_is_tokenized(vocabularies):
    class Unread(Vocab):
        def __init__(self) -> None: ...

        bos, adds_bos, n_tokens = BOS, True, N_VOCAB + 200

        def tokenize_inside(self, text: str) -> list[int]:
            raise AssertionError("nothing was to be read")

    target, draft = vocabularies
    context = tokens_of(target, "abcdefgh" * 50)
    drafter = BridgeDrafter(BigramModel(draft.n_tokens), target, Unread(), rule=ALWAYS)
    drafter.begin(context)
    assert drafter.n_pending(context) == 400
    drafter = BridgeDrafter(BigramModel(draft.n_tokens, n_ctx=128), target, Unread(), rule=ALWAYS)
    drafter.begin(context)
    assert drafter.n_pending(context) == 128
    drafter = bridge(vocabularies, context, "hello")
    drafter.propose(context, 2)
    assert drafter.n_pending(context) == 1
    assert drafter.n_pending([*context, *tokens_of(target, "he")]) == len(tokens_of(draft, "he"))
    assert drafter._model.n_past == 1 + len(tokens_of(draft, "abcdefgh" * 50)) + 1


def test_begin_forgets_the_last_request(vocabularies):
    target, draft = vocabularies
    used, fresh = (BridgeDrafter(BigramModel(draft.n_tokens, 64), target, draft, rule=ALWAYS) for _ in range(2))
    context = [*tokens_of(target, "hello world" * 20), FIRST_BYTE + 0xF0]
    used.begin([])
    used.propose(context, 5)  # in a window that has moved on
    for drafter in (used, fresh):
        drafter.begin(tokens_of(target, "hello there"))
    assert used.propose(tokens_of(target, "hello there"), 5) == fresh.propose(tokens_of(target, "hello there"), 5)
    assert used._model.cache == fresh._model.cache


@pytest.mark.parametrize("n_unused", [0, 500])
def test_a_window_smaller_than_the_context_goes_on_drafting(vocabularies, n_unused):
    """Fault 16; also where nobody asked for a draft for longer than the window is."""
    target, draft = vocabularies
    model = TellingModel(tokens_of(draft, "hello "), draft.n_tokens, n_ctx=128)
    drafter = BridgeDrafter(model, target, draft, rule=ALWAYS)
    rng = random.Random(1)
    context = tokens_of(target, "".join(rng.choices("helo wrd日\n", k=1000)))
    drafter.begin(context)
    n_drafted = 0
    for place in range(200):
        draft_tokens = drafter.propose(context, 5).tokens
        assert 0 < len(model.cache) <= 128
        n_drafted += len(draft_tokens)
        context += [*draft_tokens[:2], *tokens_of(target, rng.choice("helo wrd日\n"))]
        if place == 100:
            context += tokens_of(target, "".join(rng.choices("helo wrd", k=n_unused)))
    assert n_drafted > 200


@pytest.fixture
def spm_with_blank(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Vocab]:
    """A vocabulary that puts a blank before every text, as Llama 2's."""
    add = gguf.GGUFWriter.add_add_space_prefix
    monkeypatch.setattr(gguf.GGUFWriter, "add_add_space_prefix", lambda writer, _: add(writer, True))
    weights = Weights(synthetic.write_llama(tmp_path / "blank.gguf", token_texts=TEXTS), is_vocab_only=True)
    yield weights.vocab
    weights.close()


@pytest.mark.parametrize("text", ["the", " the", "  the", "\nthe", "\n\n", "日本", ".", ""])
def test_a_blank_that_a_vocabulary_adds_does_not_come_into_the_middle_of_a_text(vocabularies, spm_with_blank, text):
    _, draft = vocabularies
    assert pieces_of(spm_with_blank, tokens_of(spm_with_blank, text or "x")).startswith(b" ")
    assert spm_with_blank.tokenize_inside(text) == tokens_of(draft, text) == draft.tokenize_inside(text)
