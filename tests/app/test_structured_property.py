"""Random small grammars through every drafter: always valid, always plain decoding's, and nothing forbidden is verified."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import takewhile

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from specllm.app.drafting import Drafting
from specllm.app.generation import Generation, Session
from specllm.config import ContextConfig, DraftConfig, GenerateConfig, SamplingConfig, StructureConfig
from specllm.decoding.constraint import TimedConstraint
from specllm.decoding.controller import DraftCost
from specllm.decoding.cost import CALIBRATION_WIDTHS, CostModel
from specllm.decoding.sampling import KeyedSampler
from specllm.runtime.grammar import GrammarConstraint
from specllm.runtime.llama import LlamaModel
from tests.app.sessions import rounds_of

DRAFTERS = ["none", "lookup", "reference", "model", "auto"]
words = st.sampled_from(["it", "the ", "self.", "é", "日", "(", "0", "other"]).map(re.escape)
atoms = words | st.sampled_from(["[a-c]", "[0-9]{2}", "(yes|no)", "(the thing|the other)"])


@st.composite
def several(draw: st.DrawFn, inner: st.SearchStrategy[str]) -> str:
    kind = draw(st.sampled_from(["sequence", "choice", "optional", "repeat"]))
    parts = draw(st.lists(inner, min_size=1, max_size=3))
    if kind == "sequence":
        return "".join(parts)
    if kind == "choice":
        return f"({'|'.join(parts)})"
    return f"({parts[0]})?" if kind == "optional" else f"({parts[0]}){{1,3}}"


# an end, so that no grammar is empty and each has something that is forced
patterns = st.recursive(atoms, several, max_leaves=6).map(lambda pattern: f"{pattern} end\\.")


@pytest.fixture(scope="module")
def models(weights) -> Iterator[tuple[LlamaModel, LlamaModel]]:
    config = ContextConfig(n_ctx=512, n_outputs_max=17, threads=1, kv_type="f32", flash_attention="off")
    both = LlamaModel(weights["llama"], config), LlamaModel(weights["close model of llama"], config)
    yield both
    for model in both:
        model.close()


class Watched:
    """A drafter whose drafts are looked at before they are verified, which they are up to the end of the answer."""

    def __init__(self, inner, constraint, eog) -> None:
        self._inner, self._constraint, self._eog = inner, constraint, eog
        self.name, self.begin, self.observe = inner.name, inner.begin, inner.observe
        self.n_drafted = 0

    def propose(self, context, k):
        draft = self._inner.propose(context, k)
        assert len(draft.tokens) <= k
        verified = list(takewhile(lambda token: token not in self._eog, draft.tokens))
        assert self._constraint.n_allowed(context, verified) == len(verified)
        self.n_drafted += len(draft.tokens)
        return draft


def answer(models, prompt, pattern: str, drafter: str, sampling: SamplingConfig, k: int) -> Generation:
    target, draft_model = models
    for model in models:
        model.rollback(0)
    constraint = TimedConstraint(GrammarConstraint(StructureConfig(kind="regex", text=pattern), target.vocab))
    drafting = Drafting(DraftConfig(lookup_min_match=1), KeyedSampler(sampling, constraint), constraint=constraint)
    drafting.reference = prompt[5:60]
    drafting.draft_model, drafting.draft_cost = draft_model, DraftCost(1e-4, 1e-5)
    drafting.target_cost = CostModel(dict.fromkeys(CALIBRATION_WIDTHS, 0.01))
    session = Session(
        target, Watched(drafting.make(drafter, is_controlled=drafter == "auto"), constraint, target.vocab.eog)
    )
    generation = session.generate(prompt, drafting.sampler, k, GenerateConfig(max_tokens=200), constraint)
    rounds_of(generation)
    return generation


@settings(deadline=None, max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(pattern=patterns, drafter=st.sampled_from(DRAFTERS[1:]), k=st.integers(1, 16),
       temperature=st.sampled_from([0.0, 1.0]), penalty=st.sampled_from([1.0, 1.3]), seed=st.integers(0, 99))  # fmt: skip
def test_any_grammar_any_drafter_any_length(models, prompt, pattern, drafter, k, temperature, penalty, seed):
    sampling = SamplingConfig(temperature=temperature, repeat_penalty=penalty, seed=seed)
    plain = answer(models, prompt, pattern, "none", sampling, 0)
    drafted = answer(models, prompt, pattern, drafter, sampling, k)
    assert re.fullmatch(pattern, plain.text)
    assert (drafted.tokens, drafted.text, drafted.finish_reason) == (plain.tokens, plain.text, "stop")
    assert drafted.is_complete
