"""Whole answers on every kind of memory: hybrid states, kept states, sliding windows, quantized caches, small batches."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import pytest

from specllm.app.generation import Session
from specllm.config import ContextConfig, SamplingConfig
from specllm.decoding.protocols import Drafter
from specllm.decoding.sampling import KeyedSampler
from specllm.drafters.lookup import LookupDrafter
from specllm.drafters.model import ModelDrafter, floor_rule
from specllm.drafters.none import NoDrafter
from specllm.runtime.llama import LlamaModel, Weights
from tests import synthetic
from tests.app.sessions import GREEDY, TEXT, run

KINDS = {"llama": "trim", "mamba": "snapshot", "jamba": "snapshot", "lfm2": "states", "gemma3": "trim"}
LEAST = 10  # tokens of an answer that are compared
Make = Callable[..., Session]


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Weights]]:
    """Every architecture with heads of 32 numbers, and a noisy copy that drafts for it."""
    folder = tmp_path_factory.mktemp("kinds")
    loaded = {}
    for name in KINDS:
        write = getattr(synthetic, f"write_{name}")
        loaded[name] = Weights(write(folder / f"{name}.gguf", n_embd=128))
        loaded[f"close {name}"] = Weights(write(folder / f"close_{name}.gguf", n_embd=128, noise=0.05))
    yield loaded
    for one in loaded.values():
        one.close()


@pytest.fixture
def make(weights: dict[str, Weights]) -> Iterator[Make]:
    made: list[LlamaModel] = []

    def model(name: str, **config) -> LlamaModel:
        shared = {"n_ctx": 512, "n_outputs_max": 17, "threads": 1, "kv_type": "f32", "flash_attention": "off"}
        made.append(LlamaModel(weights[name], ContextConfig(**{**shared, **config})))
        return made[-1]

    def session(architecture: str, drafter: str = "none", *, draft_ctx: int = 512, **config) -> Session:
        target = model(architecture, **config)
        assert target.rollback_kind == KINDS[architecture]
        if drafter in ("none", "lookup"):
            by_name: dict[str, Drafter] = {"none": NoDrafter(), "lookup": LookupDrafter(min_match=1)}
            return Session(target, by_name[drafter])
        draft = model(f"close {architecture}", **{**config, "n_ctx": draft_ctx, "n_outputs_max": 1})
        return Session(target, ModelDrafter(draft, KeyedSampler(GREEDY), rule=floor_rule(0)), draft_model=draft)

    yield session
    for one in made:
        one.close()


@pytest.fixture(scope="module")
def prompts(weights: dict[str, Weights]) -> list[list[int]]:
    tokens = weights["llama"].vocab.tokenize(TEXT, adds_special=True, parses_special=False)
    return [tokens[start:] for start in range(8)]


def n_certain(session: Session, prompt: list[int], answer: list[int], kv_type: str) -> int:
    """How many tokens of a greedy answer come before the first near tie, which another width may decide otherwise."""
    target = session.target
    is_exact = target.weights.path.stem != "gemma3" and kv_type == "f32"  # gemma3's GELU is a table of f16
    target.rollback(0)
    target.forward(prompt[:-1], logits="none")
    for n, token in enumerate([prompt[-1], *answer[:-1]]):
        best = np.sort(target.forward([token])[0])[-2:]
        if best[1] - best[0] < (0.002 if is_exact else 0.03):
            return n
    return len(answer)


def plainly(
    session: Session, prompts: list[list[int]], n: int = 40, kv_type: str = "f32"
) -> tuple[list[int], list[int]]:
    """The prompt with the longest certain answer, and that answer as far as it is certain."""
    answers = [(prompt, run(session, prompt, n=n).tokens) for prompt in prompts]
    certain = [(prompt, tokens[: n_certain(session, prompt, tokens, kv_type)]) for prompt, tokens in answers]
    prompt, answer = max(certain, key=lambda one: len(one[1]))
    assert len(answer) >= LEAST
    return prompt, answer


@pytest.mark.parametrize("kv_type", ["f32", "q8_0"])
@pytest.mark.parametrize("architecture", KINDS)
def test_every_drafter_and_length_gives_the_plain_text(make: Make, prompts, architecture: str, kv_type: str) -> None:
    config = {"kv_type": kv_type, "flash_attention": "off" if kv_type == "f32" else "auto"}
    prompt, plain = plainly(make(architecture, **config), prompts, kv_type=kv_type)
    for drafter in ("lookup", "model"):
        session, n_drafted = make(architecture, drafter, **config), 0
        for k in (1, 4, 12):
            generation = run(session, prompt, k=k, n=len(plain))
            assert generation.tokens == plain, (drafter, k)
            assert session.target.n_past == len(session.context) - 1
            n_drafted += generation.metrics.n_drafted
        assert n_drafted > LEAST


@pytest.mark.parametrize("drafter", ["lookup", "model"])
@pytest.mark.parametrize("architecture", KINDS)
def test_a_context_ends_where_it_would_without_drafts(make: Make, prompts, architecture: str, drafter: str) -> None:
    """Fault 15, with a wide draft and a small window for the draft model (fault 16)."""
    prompt, plain = plainly(make(architecture), [(prompt * 10)[:240] for prompt in prompts], n=16)
    generation = run(make(architecture, drafter, n_ctx=256, draft_ctx=64), prompt, k=16, n=200)
    assert (generation.finish_reason, generation.metrics.n_committed) == ("length", 16)
    assert generation.tokens[: len(plain)] == plain


@pytest.mark.parametrize("architecture", KINDS)
def test_a_batch_smaller_than_the_draft_changes_nothing(make: Make, prompts, architecture: str) -> None:
    """Fault 17: neither prompt nor draft fits in one llama_decode; states of a cut block are those of its last piece."""
    prompt, plain = plainly(make(architecture), prompts)
    for n_batch in (4, 7, 9):
        session = make(architecture, "model", n_batch=n_batch, n_ubatch=n_batch)
        assert run(session, prompt, k=12, n=len(plain)).tokens == plain


@pytest.mark.parametrize("architecture", ["llama", "mamba", "jamba", "lfm2"])  # who could tell a near tie of gemma3's?
def test_a_sampled_answer_is_the_same_with_drafts(make: Make, prompts, architecture: str) -> None:
    sampling = SamplingConfig(temperature=0.8, seed=3)
    plain = run(make(architecture), prompts[0], sampling)
    assert run(make(architecture, "model"), prompts[0], sampling, k=6).tokens == plain.tokens


@pytest.mark.parametrize("architecture", KINDS)
def test_a_second_turn_continues_in_the_same_cache(make: Make, prompts, architecture: str) -> None:
    """The first answer is taken back in part, as where a template ends a turn in its own way."""
    session, fresh = make(architecture, "model"), make(architecture)
    first = run(session, prompts[0], k=4, n=20).tokens
    turns = [[*prompts[0], *first[:-3], *prompt[:10]] for prompt in prompts[1:]]
    second, plain = plainly(fresh, turns)
    generation = run(session, second, k=4, n=len(plain))
    assert generation.tokens == plain
    assert generation.metrics.n_reused >= len(prompts[0]) + len(first) - 3
