"""Whether models fit, and the plan where they do not: every step of it makes them fit."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from specllm.app.generate import GenerateRequest, answer, make_plan
from specllm.app.memory import plan as memory_plan
from specllm.app.memory import room
from specllm.app.memory.plan import Fit, Free, Load, fit_of
from specllm.app.memory.room import require_room
from specllm.config import ContextConfig, DraftConfig, GenerateConfig
from specllm.errors import OutOfMemory
from specllm.models.gguf_header import GgufHeader, read_header
from tests import synthetic

KB = 1000


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[GgufHeader, GgufHeader]:
    """Heads of 32 numbers, as quantized caches need them; weights of 0.8 MB, and 2 kB of KV cache per token."""
    folder = tmp_path_factory.mktemp("fit")
    names = ("target", "draft")
    paths = [synthetic.write_llama(folder / f"{name}.gguf", n_embd=128, seed=seed) for seed, name in enumerate(names)]
    return read_header(paths[0]), read_header(paths[1])


def loads(pair: tuple[GgufHeader, GgufHeader], **context) -> tuple[Load, ...]:
    config = ContextConfig(**{"n_ctx": 16384, "n_outputs_max": 64, "n_ubatch": 64, **context})
    target = Load(role="target", name="target", header=pair[0], context=config, gpu_layers=0)
    draft = Load(role="draft model", name="draft", header=pair[1], context=replace(config, n_ctx=4096), gpu_layers=0)
    return target, replace(draft, context=replace(draft.context, n_outputs_max=1))


def need(fit_loads: tuple[Load, ...], place: int = 0) -> int:
    return sum(load.bytes[place] for load in fit_loads)


def test_what_fits_needs_no_plan(pair) -> None:
    both = loads(pair)
    fit = Fit(both, Free(need(both), None))
    assert fit.is_ok
    assert fit.steps() == []
    fit.require()
    assert Fit(both, Free(None, None)).is_ok  # nobody knows better


def test_a_little_too_much_has_every_way_out(pair) -> None:
    both = loads(pair)
    fit = Fit(both, Free(need(both) - 1, None))
    flags = [step.flags.split()[0] for step in fit.steps()]
    assert flags == ["--kv-type", "--draft-ctx", "--ctx", "--drafter"]
    with pytest.raises(OutOfMemory) as error:
        fit.require()
    assert error.value.message.startswith("target and draft need ")
    assert error.value.hint.startswith("use --kv-type q8_0, or --draft-ctx 3840, or --ctx 16128, or --drafter lookup")


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    n_ctx=st.integers(1, 40_000), n_draft=st.integers(64, 8192) | st.none(), share=st.floats(0, 1.1),
    on_gpu=st.integers(-1, 3), vram_share=st.floats(0, 1.1) | st.none(), kv_type=st.sampled_from(["f16", "q8_0"]),
)  # fmt: skip
def test_every_step_of_a_plan_makes_everything_fit(pair, n_ctx, n_draft, share, on_gpu, vram_share, kv_type) -> None:
    target, draft = loads(pair, kv_type=kv_type)
    target = replace(target.with_ctx(n_ctx), gpu_layers=on_gpu if vram_share is not None else 0)
    both = (target,) if n_draft is None else (target, draft.with_ctx(n_draft))
    vram = None if vram_share is None else int(vram_share * need(both, 1))
    fit = Fit(both, Free(int(share * need(both)), vram))
    steps = fit.steps()
    assert bool(steps) <= (not fit.is_ok)
    for step in steps:
        assert fit.free.holds(step.loads)
        assert step.loads[0].context.n_ctx <= n_ctx
    least = (replace(target.with_ctx(256), gpu_layers=0, context=replace(target.context, n_ctx=256, kv_type="q8_0")),)
    if not fit.is_ok and fit.free.holds(least):
        assert steps  # there is a way, so it is told


def test_a_context_is_made_as_small_as_needed_and_no_smaller(pair) -> None:
    target, _ = loads(pair)
    free = Free(need((target.with_ctx(9000),)), None)
    (step,) = [step for step in Fit((target,), free).steps() if step.flags.startswith("--ctx")]
    assert step.flags == "--ctx 9216"  # llama.cpp pads 9000 to it


def test_several_changes_together_where_none_is_enough(pair) -> None:
    both = loads(pair)
    least = replace(both[0], context=replace(both[0].context, n_ctx=256, kv_type="q8_0"))
    (step,) = Fit(both, Free(need((least,)), None)).steps()
    assert step.flags == "--drafter lookup --kv-type q8_0 --ctx 256"
    hopeless = Fit(both, Free(need((least,)) - 1, None))
    assert hopeless.steps() == []
    assert "smaller model" in hopeless.hint()


def test_too_many_layers_for_the_gpu_become_fewer(pair) -> None:
    target, _ = loads(pair)
    target = replace(target, gpu_layers=-1)
    fit = Fit((target,), Free(10**12, target.bytes[1] - 1))
    assert "--gpu-layers 2" in [step.flags for step in fit.steps()]
    assert "on the GPU" in fit.verdict()
    assert Fit((target,), Free(10**12, None)).hint().endswith("--gpu-layers 0")


def test_heads_that_are_no_whole_blocks_are_not_quantized(pair, llama_gguf: Path) -> None:
    target = replace(loads(pair)[0], header=read_header(llama_gguf))  # heads of 16
    assert "--kv-type" not in Fit((target,), Free(need((target,)) - 1, None)).hint()
    off = loads(pair, flash_attention="off")
    assert "--kv-type" not in Fit(off, Free(need(off) - 1, None)).hint()


def test_a_context_is_no_larger_than_the_model_was_trained_for(llama_gguf: Path) -> None:
    plan = make_plan(GenerateRequest(prompt="", target=str(llama_gguf), sampling={}))
    assert fit_of(plan, 100_000).loads[0].context.n_ctx == 4096


@pytest.fixture
def has_memory(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Makes so many bytes free."""

    def make(n_bytes: int) -> None:
        for module in (memory_plan, room):
            monkeypatch.setattr(module, "available_memory_bytes", lambda: n_bytes)

    return make


def wanted(llama_gguf: Path, close_draft_gguf: Path, **changes) -> GenerateRequest:
    request = GenerateRequest(
        prompt="The cat", target=str(llama_gguf), draft_model=str(close_draft_gguf), sampling={"temperature": 0},
        context=ContextConfig(threads=1, n_ctx=512, n_ubatch=32), draft=DraftConfig(drafter="model", draft_length=3),
        generate=GenerateConfig(max_tokens=8, is_raw=True),
    )  # fmt: skip
    return replace(request, **changes)


def test_nothing_is_loaded_where_the_pair_does_not_fit(
    llama_gguf: Path, close_draft_gguf: Path, has_memory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fault 30."""
    request = wanted(llama_gguf, close_draft_gguf)
    both = fit_of(make_plan(request), 0)
    has_memory(both.ram_bytes - 1)

    def loaded(*_: object, **__: object) -> None:
        raise AssertionError

    monkeypatch.setattr("specllm.app.loading.Weights", loaded)
    with pytest.raises(OutOfMemory, match="and close_draft need") as error, answer(request):
        pass
    assert "--drafter lookup" in error.value.hint
    monkeypatch.undo()
    with answer(request) as whole:
        whole.finish()
    assert whole.metrics.n_committed == 8


def test_an_optional_draft_model_is_left_out_where_only_the_target_fits(
    llama_gguf: Path, close_draft_gguf: Path, has_memory, caplog: pytest.LogCaptureFixture
) -> None:
    request = wanted(llama_gguf, close_draft_gguf, draft=DraftConfig())
    has_memory(fit_of(make_plan(request), 0).ram_bytes - 1)
    with caplog.at_level(logging.WARNING, logger="specllm"):
        assert make_plan(request).draft_model is None
    assert "the draft model is left out" in caplog.text
    with pytest.raises(OutOfMemory):
        make_plan(request, needs_draft_model=True)


def test_the_loaded_weights_are_not_counted_a_second_time(pair) -> None:
    header, context = pair[0], ContextConfig(n_ctx=8192, n_ubatch=64)
    target = Load(role="target", name="target", header=header, context=context, gpu_layers=0)
    memory = target.memory
    needed = memory.kv_bytes + memory.compute_bytes + memory.logits_bytes
    require_room(header, context, option="--ctx", available=needed)
    with pytest.raises(OutOfMemory) as error:
        require_room(header, context, option="--ctx", available=needed - 1)
    assert "--ctx 7936" in error.value.hint
    with pytest.raises(OutOfMemory) as error:
        require_room(header, context, option="--draft-ctx", available=needed - 1)
    assert "--draft-ctx 7936" in error.value.hint
    assert error.value.hint.endswith("or --drafter lookup")
