"""How many layers a GPU gets: settled when the size of the context is known, for what it takes there."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from specllm.app import loading, offload, opening
from specllm.app.generate import GenerateRequest, answer
from specllm.app.memory import plan
from specllm.app.offload import ALL_LAYERS, memory_of, plan_gpu_layers
from specllm.config import KV_TYPES, ContextConfig, DraftConfig, GenerateConfig
from specllm.models.gguf_header import read_header
from specllm.runtime.backend import Device, inspect_backend
from specllm.runtime.llama import Weights
from specllm.runtime.memory_estimate import split


@pytest.fixture
def has_gpu(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Makes a GPU with so many bytes free; llama.cpp's CPU build takes any number of layers and computes them here."""
    info = inspect_backend()

    def make(free_bytes: int) -> None:
        card = Device("CUDA0", "a card", "gpu", free_bytes, 2 * free_bytes)
        for module in (offload, plan):
            monkeypatch.setattr(module, "inspect_backend", lambda: replace(info, devices=(card,), can_offload=True))

    return make


@pytest.fixture
def loads(monkeypatch: pytest.MonkeyPatch) -> list[tuple[bool, int]]:
    """Every file that is loaded: whether it is its vocabulary alone, and its layers for the GPU."""
    made: list[tuple[bool, int]] = []

    def remembered(path: Path, *, n_gpu_layers: int = 0, is_vocab_only: bool = False, **options: object) -> Weights:
        made.append((is_vocab_only, n_gpu_layers))
        return Weights(path, n_gpu_layers=n_gpu_layers, is_vocab_only=is_vocab_only, **options)

    for module in (loading, opening):
        monkeypatch.setattr(module, "Weights", remembered)
    return made


def wanted(target: Path, prompt: str, **context: object) -> GenerateRequest:
    return GenerateRequest(
        prompt=prompt, target=str(target), sampling={"temperature": 0.0},
        context=ContextConfig(threads=1, n_ubatch=32, **context), draft=DraftConfig(drafter="none"),
        generate=GenerateConfig(max_tokens=4, is_raw=True),
    )  # fmt: skip


def on_gpu(path: Path, n_ctx: int, n_layers: int = ALL_LAYERS) -> int:
    header = read_header(path)
    return split(header, memory_of(header, ContextConfig(n_ctx=n_ctx, n_ubatch=32)), n_layers)[1]


def test_the_prompts_length_decides_how_many_layers_go_to_the_gpu(llama_gguf, has_gpu, loads) -> None:
    has_gpu(int(on_gpu(llama_gguf, 1024) / 0.9) + 1)
    layers = {}
    for n_words in (10, 3000):
        loads.clear()
        with answer(wanted(llama_gguf, "a" * n_words)) as short_or_long:
            short_or_long.finish()
        (is_vocab_only, _), (is_none, n_layers) = loads
        assert (is_vocab_only, is_none) == (True, False)
        layers[n_words] = n_layers
        assert short_or_long.plan.context.gpu_layers == ("all" if n_layers == ALL_LAYERS else n_layers)
    assert layers[10] == ALL_LAYERS
    assert 0 <= layers[3000] < 3


@pytest.mark.parametrize("context", [{"n_ctx": 512}, {"gpu_layers": 1}, {"gpu_layers": "all"}, {"gpu_layers": 0}])
def test_weights_are_loaded_once_where_the_layers_do_not_depend_on_the_prompt(
    llama_gguf, has_gpu, loads, context
) -> None:
    has_gpu(10**9)
    with answer(wanted(llama_gguf, "a", **context)) as one:
        one.finish()
    assert [is_vocab_only for is_vocab_only, _ in loads] == [False]


def test_without_a_gpu_nothing_is_loaded_twice(llama_gguf, loads) -> None:
    with answer(wanted(llama_gguf, "a")) as one:
        one.finish()
    assert loads == [(False, 0)]


def test_a_vocabulary_alone_knows_what_a_prompt_depends_on(llama_gguf) -> None:
    whole, alone = Weights(llama_gguf), Weights(llama_gguf, is_vocab_only=True)
    assert (alone.n_ctx_train, alone.chat_template) == (whole.n_ctx_train, whole.chat_template)
    assert alone.n_ctx_train == 4096
    whole.close()
    alone.close()


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(share=st.floats(0, 2), n_ctx=st.integers(1, 8192), kv_type=st.sampled_from(KV_TYPES))
def test_what_is_planned_fits_and_one_layer_more_does_not(has_gpu, llama_gguf, share, n_ctx, kv_type) -> None:
    header, context = read_header(llama_gguf), ContextConfig(n_ctx=n_ctx, kv_type=kv_type, n_ubatch=32)
    memory = memory_of(header, context)
    free = int(share * split(header, memory, ALL_LAYERS)[1])
    has_gpu(free)
    n = plan_gpu_layers(header, "auto", context)
    n_all = header.n_layer + 1
    if n:
        assert split(header, memory, n)[1] <= free
    if n != ALL_LAYERS:
        assert split(header, memory, n + 1)[1] > 0.9 * free - 1
        assert n < n_all


def test_a_draft_models_layers_depend_on_its_own_context(llama_gguf, close_draft_gguf, has_gpu, loads) -> None:
    """Not on the target's."""
    request = wanted(llama_gguf, "a", n_ctx=4096, gpu_layers=0)
    draft = DraftConfig(drafter="model", draft_length=2, draft_ctx=256)
    has_gpu(int(on_gpu(close_draft_gguf, 256) / 0.9) + 1)
    with answer(replace(request, draft_model=str(close_draft_gguf), draft=draft)) as one:
        one.finish()
    assert loads == [(False, 0), (False, ALL_LAYERS)]
