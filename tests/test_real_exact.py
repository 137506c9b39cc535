"""What `--exact` and `--logprobs` promise, on the default target. Half a minute on two cores.

`SPECLLM_MODELS_DIR=... pytest -m real -s` shows how wide blocks may be and how far log probabilities move with the width.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from specllm.app.generation import Generation, Session
from specllm.app.prompt import tokenize_prompt
from specllm.config import ContextConfig, GenerateConfig, SamplingConfig
from specllm.decoding.logprobs import LogprobSampler, TokenLogprobs
from specllm.decoding.protocols import Round
from specllm.decoding.sampling import KeyedSampler
from specllm.drafters.lookup import LookupDrafter
from specllm.drafters.none import NoDrafter
from specllm.runtime.llama import LlamaModel, Weights
from tests.test_real_pair import PROMPTS, path_of

pytestmark = pytest.mark.real

N_TOKENS = 96
GREEDY = SamplingConfig(temperature=0.0)


@pytest.fixture(scope="module")
def weights() -> Iterator[Weights]:
    loaded = Weights(path_of("qwen2.5-coder-1.5b-instruct"))
    yield loaded
    loaded.close()


@pytest.fixture(params=["f16", "q8_0"])
def target(weights, request) -> Iterator[LlamaModel]:
    model = LlamaModel(weights, ContextConfig(n_ctx=768, n_outputs_max=32, kv_type=request.param))
    yield model
    model.close()


def run(session: Session, sampler, prompt: list[int], k: int) -> tuple[Generation, list[Round]]:
    generation = session.generate(prompt, sampler, k, GenerateConfig(max_tokens=N_TOKENS))
    rounds: list[Round] = []
    for _ in generation:
        if generation.metrics.n_rounds > len(rounds):
            rounds.append(generation.last_round)
    return generation, rounds


def test_exact_text_is_plain_decodings(target):
    for name, text in PROMPTS.items():
        prompt = tokenize_prompt(target.weights, text, GenerateConfig())
        plain = run(Session(target, NoDrafter()), KeyedSampler(GREEDY), prompt, 0)[0].tokens
        session = Session(target, LookupDrafter(2), is_exact=True)
        generation, rounds = run(session, KeyedSampler(GREEDY), prompt, 15)
        widest = max(round.width for round in rounds)
        print(f"{name}: {session.exactness()}, widest block {widest}, {generation.metrics.n_accepted} accepted")
        assert generation.tokens == plain


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_with_the_kernels_every_bit_is_plain_decodings(target, temperature):
    """Without --exact: every token and every log probability, in blocks of any width."""
    config = SamplingConfig(temperature=temperature, seed=4)
    for name, text in PROMPTS.items():
        prompt = tokenize_prompt(target.weights, text, GenerateConfig())
        answers = []
        for drafter, k in ((NoDrafter(), 0), (LookupDrafter(2), 15), (LookupDrafter(1), 3)):
            target.rollback(0)
            sampler = LogprobSampler(KeyedSampler(config), 5)
            generation, _ = run(Session(target, drafter), sampler, prompt, k)
            answers.append((generation.tokens, sampler.kept(len(prompt), len(prompt) + len(generation.tokens))))
        if not target.is_width_independent:
            pytest.skip("specllm's kernels do not compute here")
        assert answers[1:] == answers[:1] * 2, name


def test_log_probabilities_are_those_of_plain_forwards_of_equal_width(target):
    """Fault 24."""
    prompt = tokenize_prompt(target.weights, PROMPTS["edit"], GenerateConfig())
    sampler = LogprobSampler(KeyedSampler(GREEDY), 5)
    generation, rounds = run(Session(target, LookupDrafter(2)), sampler, prompt, 15)
    found = sampler.kept(len(prompt), len(prompt) + generation.metrics.n_committed)
    assert generation.metrics.n_accepted > 10
    expected = list(in_the_same_blocks(target, prompt, rounds))
    far = max(abs(one.raw.logprob - row[one.token]) for one, row in zip(found, expected, strict=True))
    best = max(
        abs(value - row[token]) for one, row in zip(found, expected, strict=True) for token, value in one.raw.best
    )
    print(
        f"equal widths: {far:.6f} apart, alternatives {best:.6f}; against width 1: {against_width_1(target, prompt, found):.3f}"
    )
    assert max(far, best) < 1e-3
    assert all(one.raw.best[0][0] == one.token and one.raw.logprob < 0 for one in found)


def in_the_same_blocks(target: LlamaModel, prompt: list[int], rounds: list[Round]) -> Iterator[np.ndarray]:
    """Log probabilities of every position, without the loop: the blocks of these rounds, fed by hand."""
    target.rollback(0)
    target.forward(prompt[:-1], logits="none")
    context = list(prompt)
    for round in rounds:
        rows = target.forward([context[-1], *round.draft.tokens]).astype(np.float64)[: len(round.tokens)]
        yield from rows - np.log(np.exp(rows).sum(axis=1, keepdims=True))
        context += round.tokens
        target.rollback(len(context) - 1)


def against_width_1(target: LlamaModel, prompt: list[int], found: list[TokenLogprobs]) -> float:
    """The largest distance of a token's log probability from that of plain decoding."""
    target.rollback(0)
    target.forward(prompt[:-1], logits="none")
    last, distances = prompt[-1], []
    for one in found:
        row = target.forward([last])[0].astype(np.float64)
        distances.append(abs(one.raw.logprob - (row[one.token] - np.log(np.exp(row).sum()))))
        last = one.token
    return max(distances)
