"""Everything at once: any architecture, drafter, grammar, window and cache; the text is plain decoding's, answer after answer."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from functools import cache
from types import SimpleNamespace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from specllm.app.drafting import Drafting
from specllm.app.generation import Generation, Session
from specllm.config import ContextConfig, DraftConfig, GenerateConfig, SamplingConfig, StructureConfig
from specllm.decoding.cost import CALIBRATION_WIDTHS, CostModel, DraftCost
from specllm.decoding.logprobs import LogprobSampler
from specllm.decoding.sampling import KeyedSampler
from specllm.drafters.store import StoreDrafter
from specllm.runtime.grammar import GrammarConstraint
from specllm.runtime.llama import LlamaModel, Weights
from specllm.runtime.trim_vocab import write_trimmed
from specllm.runtime.trimmed_vocab import open_context
from tests import synthetic
from tests.app.sessions import TEXT, rounds_of
from tests.drafters.suffixes import suffix_array

ARCHITECTURES = ["llama", "mamba", "jamba", "lfm2", "gemma3"]
STRUCTURES = [None, StructureConfig(kind="regex", text=r"( the (it|self) [a-f]{2,9},){3} end\.")]
CACHES = {"f32": "off", "q8_0": "on"}  # and flash attention, which a quantized one needs


@pytest.fixture(scope="module")
def model_of(synthetic_models) -> Iterator:
    """Models by what they are made of; each is made once."""
    with contextlib.ExitStack() as stack:

        @cache
        def weights_of(architecture: str, kind: str) -> Weights:
            path = synthetic_models / f"combined-{architecture}-{kind}.gguf"
            texts = {260 + place: f"other{place}" for place in range(100)} if kind == "bridge" else {}
            write = getattr(synthetic, f"write_{architecture}")
            noise = 0.0 if kind == "target" else 0.03
            write(
                path, noise=noise, token_texts=texts, extra_tokens=200 * bool(texts), n_embd=128
            )  # heads of a q8_0 block
            if kind == "trimmed":
                whole, path = path, path.with_suffix(".trimmed.gguf")
                write_trimmed(whole, path, [*range(261), *range(261, synthetic.N_VOCAB, 2)])
            weights = Weights(path)
            stack.callback(weights.close)
            return weights

        @cache
        def model(architecture: str, kind: str, n_ctx: int, n_batch: int, kv_type: str) -> LlamaModel:
            weights = weights_of(architecture, kind)
            config = ContextConfig(
                n_ctx=n_ctx, n_batch=n_batch, n_ubatch=n_batch, n_outputs_max=17, threads=1, kv_type=kv_type,
                flash_attention=CACHES[kv_type],
            )  # fmt: skip
            made = open_context(weights, config)
            stack.callback(made.close)
            return made

        yield model


@settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    architecture=st.sampled_from(ARCHITECTURES), draft_architecture=st.sampled_from(ARCHITECTURES),
    kind=st.sampled_from(["close", "trimmed", "bridge"]), name=st.sampled_from(["model", "store", "reference", "auto", "auto"]),
    structure=st.sampled_from(STRUCTURES), n_batch=st.sampled_from([4, 64]), draft_ctx=st.sampled_from([48, 256]),
    kv_type=st.sampled_from(list(CACHES)), is_exact=st.booleans(), has_logprobs=st.booleans(), k=st.integers(1, 16),
    temperature=st.sampled_from([0.0, 0.9]), seed=st.integers(0, 99), n_first=st.integers(1, 20),
)  # fmt: skip
def test_the_text_of_two_answers_is_plain_decodings(
    model_of, architecture, draft_architecture, kind, name, structure, n_batch, draft_ctx, kv_type, is_exact,
    has_logprobs, k, temperature, seed, n_first,
):  # fmt: skip
    target = model_of(architecture, "target", 512, n_batch, kv_type)
    draft_model = model_of(draft_architecture, kind, draft_ctx, n_batch, "f32")
    constraint = GrammarConstraint(structure, target.vocab) if structure else None
    sampler = KeyedSampler(SamplingConfig(temperature=temperature, seed=seed, repeat_penalty=1.1), constraint)
    prompt = target.vocab.tokenize(TEXT, adds_special=True, parses_special=False)

    drafting = Drafting(DraftConfig(lookup_min_match=1), sampler, constraint=constraint)
    drafting.target_cost = CostModel(dict.fromkeys(CALIBRATION_WIDTHS, 0.01))
    drafting.draft_model, drafting.draft_cost = draft_model, DraftCost(1e-4, 1e-5)
    drafting.bridge = (target.vocab, draft_model.vocab) if kind == "bridge" else None
    drafting.reference = prompt[5:60]
    drafting.store = SimpleNamespace(drafter=lambda: StoreDrafter([suffix_array([prompt[20:]])], 1))

    def answers(drafter, k: int) -> list[Generation]:
        for model in (target, draft_model):
            model.rollback(0)
        session = Session(target, drafter, is_exact=is_exact and k > 0)
        made = []
        for n, following in ((n_first, []), (30, [100, 101])):  # the second one goes on behind the first
            asked = [*session.context, *following] if made else prompt
            recorder = LogprobSampler(sampler, 2) if has_logprobs else sampler
            generation = session.generate(asked, recorder, k, GenerateConfig(max_tokens=n), constraint)
            rounds_of(generation)
            assert target.n_past == len(session.context) - 1
            made.append(generation)
        return [(one.text, one.finish_reason, one.is_complete, one.metrics.n_committed) for one in made]

    plain = answers(drafting.make("none", is_controlled=False), 0)
    assert answers(drafting.make(name, is_controlled=name == "auto"), k) == plain
