"""Flash attention is left off for copies where llama.cpp computes on the CPU, and nowhere else."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from specllm.app.attention import settled_for_copying
from specllm.app.generate import GenerateRequest, answer
from specllm.config import ContextConfig, DraftConfig, GenerateConfig
from specllm.models.gguf_header import read_header

ON_CPU = ContextConfig(n_ctx=4096, gpu_layers=0)


@pytest.mark.parametrize(
    ("change", "settled"),
    [
        ({}, "off"),
        ({"kv_type": "f32"}, "off"),
        ({"kv_type": "q8_0"}, "auto"),  # needs it
        ({"gpu_layers": 12}, "auto"),
        ({"gpu_layers": "all"}, "auto"),
        ({"flash_attention": "on"}, "on"),  # the user's word
        ({"n_ctx": 2**24}, "auto"),  # the scores would take gigabytes
        ({"n_ctx": 2**24, "n_ubatch": 1}, "off"),
    ],
)
def test_only_auto_on_a_cpu_is_settled(llama_gguf: Path, change: dict[str, object], settled: str) -> None:
    context = replace(ON_CPU, **change)
    after = settled_for_copying(context, read_header(llama_gguf))
    assert after.flash_attention == settled
    assert replace(after, flash_attention=context.flash_attention) == context


@pytest.mark.parametrize("drafter", ["none", "reference", "auto"])
def test_an_answer_that_resembles_a_text_is_computed_alike_whoever_drafts(llama_gguf: Path, drafter: str) -> None:
    for prediction, settled in (("one two three", "off"), (None, "auto")):
        if prediction is None and drafter == "reference":
            continue
        request = GenerateRequest(
            prompt="a", target=str(llama_gguf), prediction=prediction, sampling={}, context=ContextConfig(threads=1),
            draft=DraftConfig(drafter=drafter), generate=GenerateConfig(max_tokens=4),
        )  # fmt: skip
        with answer(request) as answered:
            answered.finish()
            assert answered.plan.params()["flash_attention"] == settled
