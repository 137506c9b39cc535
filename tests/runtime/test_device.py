"""A device that finishes later than llama_decode returns, as CUDA, Metal and Vulkan do: who reads a clock has waited for it."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import llama_cpp
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from specllm.config import ContextConfig
from specllm.decoding.calibrate import measure_draft, measure_target
from specllm.decoding.decode import prefill
from specllm.runtime.llama import LlamaModel, Weights

ARCHITECTURES = ("llama", "mamba", "jamba", "lfm2", "gemma3")
TOKEN_S = 0.001  # of the device


class Device:
    """Takes TOKEN_S for every token that llama_decode was given, from when somebody waits for it."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.now = 0.0
        self.unfinished_s = 0.0
        real_decode = llama_cpp.llama_decode

        def decode(context: object, batch: llama_cpp.llama_batch) -> int:
            self.unfinished_s += batch.n_tokens * TOKEN_S
            return int(real_decode(context, batch))

        patch.setattr(llama_cpp, "llama_decode", decode)
        for name in ("llama_synchronize", "llama_get_logits"):
            patch.setattr(llama_cpp, name, self._waiting(getattr(llama_cpp, name)))

    def clock(self) -> float:
        return self.now

    def _waiting(self, function: Callable[..., object]) -> Callable[..., object]:
        def waited(*arguments: object) -> object:
            self.now += self.unfinished_s
            self.unfinished_s = 0.0
            return function(*arguments)

        return waited


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> Device:
    return Device(monkeypatch)


@pytest.fixture(scope="module")
def models(weights: dict[str, Weights]) -> Iterator[dict[str, LlamaModel]]:
    config = ContextConfig(n_ctx=512, n_batch=32, n_outputs_max=64, threads=1)
    made = {name: LlamaModel(weights[name], config) for name in ARCHITECTURES}
    yield made
    for model in made.values():
        model.close()


steps = st.lists(
    st.tuples(st.integers(1, 40), st.sampled_from(["all", "last", "none"]), st.floats(0, 1)), min_size=1, max_size=8
)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(history=steps)
def test_whatever_a_forward_or_a_rollback_began_is_finished_when_it_returns(models, device, architecture, history):
    model = models[architecture]
    model.rollback(0)
    for n_tokens, logits, kept in history:
        model.forward([5 + i for i in range(n_tokens)], logits=logits)
        assert device.unfinished_s == 0
        model.rollback(model.n_past - int((1 - kept) * n_tokens))
        assert device.unfinished_s == 0


def test_reading_a_prompt_takes_as_long_as_the_device_does(models, device):
    model = models["llama"]
    model.rollback(0)
    list(prefill(model, [5] * 301))
    assert device.now == pytest.approx(300 * TOKEN_S)


def test_what_is_measured_is_the_devices_time_and_not_the_prompts(models, device):
    points = measure_target(models["llama"], budget_s=1e9, clock=device.clock)
    assert points == {width: pytest.approx(width * TOKEN_S) for width in points}
    cost = measure_draft(models["llama"], clock=device.clock)
    assert cost.prefill_token_s == pytest.approx(TOKEN_S)
    assert cost.token_s == pytest.approx(TOKEN_S)
