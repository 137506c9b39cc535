"""From a plan to a session: what is said meanwhile, and that whatever was opened is freed."""

from __future__ import annotations

from pathlib import Path

import pytest

from specllm.app import loading
from specllm.app.generate import GenerateRequest, Plan, make_plan
from specllm.app.opening import opening
from specllm.config import ContextConfig, DraftConfig
from specllm.drafters.bridge import BridgeDrafter
from specllm.errors import ConfigError, IncompatiblePair
from specllm.runtime.llama import LlamaModel
from specllm.runtime.trim_vocab import write_trimmed
from tests import synthetic


def plan_for(target: Path, draft: Path | None = None, *, n_ctx: int = 0, bias: tuple[int, float] = (1, 0.0)) -> Plan:
    request = GenerateRequest(
        prompt="", target=str(target), draft_model=draft and str(draft), sampling={"logit_bias": (bias,)},
        context=ContextConfig(threads=1, n_ctx=n_ctx),
        draft=DraftConfig(drafter="model" if draft else "none", draft_length=4),
    )  # fmt: skip
    return make_plan(request)


@pytest.mark.parametrize(("asked", "expected"), [(0, 1280), (256, 256)])
def test_a_session_is_as_large_as_asked_or_needed_and_freed_afterwards(
    llama_gguf: Path, close_draft_gguf: Path, asked: int, expected: int
) -> None:
    plan, said = plan_for(llama_gguf, close_draft_gguf, n_ctx=asked), []
    with opening(plan, said.append) as opened:
        session, drafting, context = opened.session(opened.context_size(100, plan.generate))
        models = [session.target, drafting.draft_model]
        assert session.target.n_ctx == context.n_ctx == expected
        assert context.n_batch == session.target.n_batch
        assert all(model.handle and model.weights.handle for model in models)
    assert not any(model.handle or model.weights.handle for model in models)
    assert said == [f"loading {plan.target.name}"]


def test_weights_are_freed_where_no_session_can_be_made_of_them(
    llama_gguf: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts = {token: f"other{token}" for token in range(262, synthetic.N_VOCAB)}
    write_trimmed(
        synthetic.write_llama(tmp_path / "whole.gguf", token_texts=texts), tmp_path / "stranger.gguf", range(392)
    )
    plan = plan_for(llama_gguf, tmp_path / "stranger.gguf")
    made: list[LlamaModel] = []

    def remembered(*arguments: object) -> LlamaModel:
        made.append(LlamaModel(*arguments))
        return made[-1]

    monkeypatch.setattr(loading, "LlamaModel", remembered)
    with pytest.raises(IncompatiblePair), opening(plan, [].append) as opened:
        opened.session(256)
    assert not opened.weights.handle
    assert made
    assert not any(model.handle for model in made)


def test_a_bias_for_a_token_that_is_not_there_is_refused(llama_gguf: Path) -> None:
    plan = plan_for(llama_gguf, bias=(synthetic.N_VOCAB, 1.0))
    with pytest.raises(ConfigError, match=f"the model has {synthetic.N_VOCAB} tokens"), opening(plan, [].append):
        pass


def test_a_draft_model_with_another_vocabulary_drafts_over_text(llama_gguf: Path, tmp_path: Path) -> None:
    stranger = synthetic.write_llama(tmp_path / "stranger.gguf", extra_tokens=200)
    plan, said = plan_for(llama_gguf, stranger), []
    with opening(plan, said.append) as opened:
        _, drafting, _ = opened.session(512)
        assert drafting.bridge is not None
        assert isinstance(drafting.make("model", is_controlled=False), BridgeDrafter)
    assert said[-1] == "stranger has another vocabulary: its drafts go over text"


def test_a_trimmed_model_is_no_target(llama_gguf: Path, tmp_path: Path) -> None:
    write_trimmed(llama_gguf, tmp_path / "small.gguf", range(300))
    plan = plan_for(tmp_path / "small.gguf", llama_gguf)
    with pytest.raises(ConfigError, match="is no target"), opening(plan, [].append) as opened:
        opened.session(512)
