"""Whatever is drafted over text, the text is that of plain decoding, and one that knows it is nearly always right."""

from __future__ import annotations

import codecs
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest

from specllm.app.generation import Session
from specllm.config import ContextConfig, GenerateConfig, SamplingConfig
from specllm.decoding.decode import Until, decode
from specllm.decoding.sampling import KeyedSampler
from specllm.drafters.bridge import BridgeDrafter
from specllm.drafters.none import NoDrafter
from specllm.errors import IncompatiblePair
from specllm.runtime.llama import LlamaModel, Weights
from specllm.runtime.vocab import Vocab, compare_vocabularies
from tests.drafters.bridge.bridges import (
    ALWAYS,
    GREEDY,
    TellingModel,
    check_is_canonical,
    pieces_of,
    tokens_of,
)
from tests.fakes import BigramModel
from tests.synthetic import EOS, FIRST_BYTE
from tests.test_real_pair import path_of


class KnowingModel(BigramModel):
    """Goes on with `text` behind whatever part of it stands there, however that was tokenized."""

    def __init__(self, vocab: Vocab, text: str) -> None:
        super().__init__(1)
        self.n_vocab, self._vocab, self._text = vocab.n_tokens, vocab, text.encode()

    def row(self, tokens: Sequence[int]) -> np.ndarray:
        rest = self._text[len(pieces_of(self._vocab, tokens)) :]
        whole = codecs.utf_8_decode(rest, "ignore", True)[0]
        is_inside = rest[:1] and rest[0] & 0xC0 == 0x80
        row = np.zeros(self.n_vocab, dtype=np.float32)
        row[FIRST_BYTE + rest[0] if is_inside else [*tokens_of(self._vocab, whole), EOS][0]] = 9.0
        return row


@pytest.mark.parametrize(("k", "n_forward"), [(1, 1.4), (3, 2.5), (8, 5.5)])
def test_a_draft_model_that_knows_the_text_is_nearly_always_right(vocabularies, k, n_forward):
    target, draft = vocabularies
    story = "hello world, the end and self.ing\n    日本語 -> hello() 🙂🙂 and the old rule of a\u0301\n" * 3
    answer = tokens_of(target, story)
    context = tokens_of(target, "hello: ")
    said_by_target = TellingModel(answer, target.n_tokens, n_before=len(context))
    drafter = BridgeDrafter(KnowingModel(draft, "hello: " + story), target, draft, rule=ALWAYS)
    drafter.begin(context)
    said_by_target.forward(context[:-1])
    rounds = list(decode(said_by_target, drafter, GREEDY, context, k, Until(len(answer))))
    assert context == [*tokens_of(target, "hello: "), *answer]
    n_drafted, n_accepted = sum(len(r.draft.tokens) for r in rounds), sum(r.n_accepted for r in rounds)
    assert n_accepted >= 0.9 * n_drafted
    assert len(answer) >= n_forward * len(rounds)  # bytes of characters that a draft leaves incomplete are held back


@pytest.fixture(scope="module")
def models(llama_gguf: Path, other_gguf: Path) -> Iterator[tuple[LlamaModel, LlamaModel]]:
    loaded = [Weights(path) for path in (llama_gguf, other_gguf)]
    made = [LlamaModel(weights, ContextConfig(n_ctx=512, n_outputs_max=16, threads=1)) for weights in loaded]
    yield made[0], made[1]
    for model in (*made, *loaded):
        model.close()


@pytest.mark.parametrize("temperature", [0.0, 0.8, 1.5])
@pytest.mark.parametrize("seed", range(2))
def test_the_text_is_that_of_plain_decoding(models, temperature, seed):
    target, draft = models
    with pytest.raises(IncompatiblePair):
        compare_vocabularies(target.vocab, draft.vocab)
    sampler = KeyedSampler(SamplingConfig(temperature=temperature, seed=seed, repeat_penalty=1.1))
    prompt = target.vocab.tokenize("<|im_start|>hello the 日本🙂 end", adds_special=True, parses_special=True)
    drafter = BridgeDrafter(draft, target.vocab, draft.vocab, rule=ALWAYS)
    said, n_drafted = {}, 0
    for k in (0, 1, 3, 8):
        session = Session(target, drafter if k else NoDrafter())
        target.rollback(0)
        generation = session.generate(prompt, sampler, k, GenerateConfig(max_tokens=40))
        for _ in generation:
            pass
        said[k] = generation.tokens
        n_drafted += generation.metrics.n_drafted
    assert said[1] == said[3] == said[8] == said[0]
    assert n_drafted


@pytest.mark.real
def test_a_real_draft_model_of_another_family_drafts_the_targets_tokens():
    paths = [path_of(name) for name in ("qwen2.5-coder-1.5b-instruct", "smollm2-135m-instruct")]
    target, weights = Weights(paths[0], is_vocab_only=True), Weights(paths[1])
    draft_model = LlamaModel(weights, ContextConfig(n_ctx=256, n_outputs_max=1))
    text = "<|im_start|>Count:\n\n1, 2, 3, 4, 5, 6, 7, 8, 9, 10\n" + "日本語 🙂👩‍👩‍👧 e\u0301\n    return self\n" * 3
    tokens = target.vocab.tokenize(text, adds_special=False, parses_special=True)
    drafter = BridgeDrafter(draft_model, target.vocab, weights.vocab, rule=ALWAYS)
    n_drafted = n_right = 0
    drafter.begin(tokens[:8])
    for n in range(8, len(tokens)):
        draft = drafter.propose(tokens[:n], 3).tokens
        assert not [token for token in draft if not target.vocab.piece(token) or token in target.vocab.eog]
        check_is_canonical(target.vocab, tokens[:n], pieces_of(target.vocab, draft), draft[:-1])
        n_drafted += bool(draft)
        n_right += draft[:1] == tuple(tokens[n : n + 1])
    assert n_right > 0.4 * n_drafted
    assert n_drafted > 0.5 * len(tokens)
    for model in (draft_model, weights, target):
        model.close()
