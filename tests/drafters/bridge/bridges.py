"""What the tests of drafts over text share: two vocabularies' texts, a draft model that tells a story, what it should say."""

from __future__ import annotations

import codecs
from collections.abc import Sequence

import numpy as np

from specllm.config import SamplingConfig
from specllm.decoding.sampling import KeyedSampler
from specllm.drafters.bridge import BridgeDrafter
from specllm.drafters.model import floor_rule
from specllm.runtime.vocab import Vocab
from tests import synthetic
from tests.fakes import BigramModel
from tests.synthetic import MERGED, N_VOCAB

# The draft's merged pieces: other texts under the ids of the target's, which keep a few of them.
OTHERS = ("el", "lo", "wo", "rl", "ld", "llo", "orl", "hel", "hello", "orld", "a\u0301", "日本", "🙂🙂", "\n\n")
FIRST_MERGED = N_VOCAB - len(MERGED)
TEXTS = {FIRST_MERGED + place: text.replace(" ", synthetic.SPACE) for place, text in enumerate(OTHERS)}
ALWAYS = floor_rule(0.0)
GREEDY = KeyedSampler(SamplingConfig(temperature=0.0))


class TellingModel(BigramModel):
    """Goes on with `story`, a token by place, `n_before` of which are not the story's; unsure of every third."""

    def __init__(self, story: Sequence[int], n_vocab: int, n_ctx: int = 4096, n_before: int = 0) -> None:
        super().__init__(1, n_ctx)
        self.n_vocab = n_vocab
        self.story, self.n_before = story, n_before

    def row(self, tokens: Sequence[int]) -> np.ndarray:
        row = np.zeros(self.n_vocab, dtype=np.float32)
        place = len(tokens) - self.n_before
        row[self.story[place % len(self.story)]] = 3.0 if place % 3 == 2 else 12.0
        return row


def tokens_of(vocab: Vocab, text: str) -> list[int]:
    return vocab.tokenize(text, adds_special=False, parses_special=False)


def pieces_of(vocab: Vocab, tokens: Sequence[int]) -> bytes:
    return b"".join(map(vocab.piece, tokens))


def read_by_draft(context: Sequence[int], target: Vocab, draft: Vocab) -> tuple[list[int], bytes]:
    """What the draft model should have read, made in one go, and the bytes of a character still begun."""
    text = b"".join(target.piece(token) or b"\n" for token in context)
    whole, n = codecs.utf_8_decode(text, "replace", False)
    return [draft.bos, *tokens_of(draft, whole)], text[n:]


def said_behind(model: TellingModel, read: Sequence[int], floor: float) -> list[int]:
    """What the model has said behind `read`, by the number of tokens in its cache, which must be right."""
    n_forwards = len(model.cache) - len(read) + 1
    said: list[int] = []
    for _ in range(n_forwards):
        row = model.row([*read, *said]).astype(np.float64)
        said.append(int(np.argmax(row)))
    assert model.cache == [*read, *said[:-1]]
    return said[:-1] if n_forwards and np.exp(row.max()) / np.exp(row).sum() < floor else said


def check_is_canonical(target: Vocab, context: Sequence[int], said: bytes, proposed: Sequence[int]) -> None:
    """Where the context is as the target's tokenizer makes it, the proposal is as well."""
    behind = list(context)
    for place, token in enumerate(context):
        if not target.piece(token):
            behind = list(context[place + 1 :])
    try:
        text = codecs.utf_8_decode(pieces_of(target, behind) + said, "strict", False)[0]
    except UnicodeDecodeError as error:  # a draft model may say nonsense
        text = error.object[: error.start].decode()
    whole = tokens_of(target, text)
    if whole[: len(behind)] == behind:
        assert whole[len(behind) :][: len(proposed)] == list(proposed)


def bridge(vocabularies, before: Sequence[int], story: str, *, rule=ALWAYS, n_ctx=4096, **options) -> BridgeDrafter:
    """A drafter, begun with `before`, whose model says `story` behind it and then ends."""
    target, draft = vocabularies
    n_before = len(read_by_draft(before, target, draft)[0])
    story_tokens = [*tokens_of(draft, story), draft.eos]
    model = TellingModel(story_tokens, draft.n_tokens, n_ctx=n_ctx, n_before=n_before)
    drafter = BridgeDrafter(model, target, draft, rule=rule, **options)
    drafter.begin(before)
    return drafter
