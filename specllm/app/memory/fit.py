"""The use case behind `specllm models fit`: what an answer would need in memory, with the options it would be asked for with."""

from __future__ import annotations

from specllm.app.generate import GenerateRequest, fill_in
from specllm.app.memory.plan import Fit, fit_of
from specllm.config import ContextConfig, DraftConfig, GpuLayers
from specllm.runtime.llama import DEFAULT_CTX


def fit_models(
    target: str, draft_model: str | None, context: ContextConfig, draft: DraftConfig, draft_gpu_layers: GpuLayers
) -> Fit:
    """What target and draft model take, against what is free; without a size in `context` that of a chat. Loads nothing."""
    plan = fill_in(
        GenerateRequest(
            prompt="", target=target, draft_model=draft_model, sampling={"seed": 0}, context=context, draft=draft,
            draft_gpu_layers=draft_gpu_layers,
        )
    )  # fmt: skip
    return fit_of(plan, DEFAULT_CTX)
