"""Fixtures for the tests of sessions and benchmarks: tiny real models that are loaded once, and contexts on them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from specllm.app.bench.use_case import BenchRequest
from specllm.app.chat.models import ChatModels, open_models
from specllm.app.doctor import use_case as doctor
from specllm.app.drafting import new_acceptance
from specllm.app.generate import GenerateRequest
from specllm.app.generation import Session
from specllm.app.prompts.reading import BenchPrompt
from specllm.config import ContextConfig, DraftConfig, GenerateConfig, SamplingConfig
from specllm.decoding.chain import Shares
from specllm.decoding.controller import Controller
from specllm.decoding.cost import CALIBRATION_WIDTHS, CostModel, DraftCost
from specllm.decoding.sampling import KeyedSampler
from specllm.drafters.auto import AutoDrafter
from specllm.drafters.lookup import LookupDrafter
from specllm.drafters.model import CONFIDENCE_SHARES, ModelDrafter, floor_rule
from specllm.drafters.none import NoDrafter
from specllm.drafters.store import StoreDrafter
from specllm.runtime.llama import LlamaModel, Weights
from specllm.runtime.smoke import SmokeReport
from specllm.runtime.trim_vocab import write_trimmed
from specllm.runtime.trimmed_vocab import open_context
from tests import synthetic
from tests.app.bench.benches import ONE_THREAD, MakeRequest
from tests.app.bench.benches import prompt as bench_prompt
from tests.app.chat.chats import NO_EOG, MakeModels
from tests.app.sessions import GREEDY, TEXT, MakeSession
from tests.drafters.suffixes import suffix_array


@pytest.fixture(scope="module")
def weights(synthetic_models, llama_gguf, mamba_gguf, draft_gguf, close_draft_gguf) -> Iterator[dict[str, Weights]]:
    close_mamba = synthetic.write_mamba(synthetic_models / "close_mamba.gguf", noise=0.05)
    trimmed = synthetic_models / "trimmed.gguf"
    write_trimmed(close_draft_gguf, trimmed, range(0, synthetic.N_VOCAB, 2))
    paths = {
        "trimmed model": trimmed, "llama": llama_gguf, "mamba": mamba_gguf, "wrong model": draft_gguf,
        "close model of llama": close_draft_gguf, "close model of mamba": close_mamba,
    }  # fmt: skip
    loaded = {name: Weights(path) for name, path in paths.items()}
    yield loaded
    for one in loaded.values():
        one.close()


@pytest.fixture(scope="module")
def prompt(weights) -> list[int]:
    return weights["llama"].vocab.tokenize(TEXT, adds_special=True, parses_special=False)


@pytest.fixture
def make_session(weights) -> Iterator[MakeSession]:
    """Makes sessions whose contexts are freed at the end of the test."""
    models: list[LlamaModel] = []

    def model(name: str, n_ctx: int) -> LlamaModel:
        config = ContextConfig(n_ctx=n_ctx, n_outputs_max=17, threads=1, kv_type="f32", flash_attention="off")
        models.append(open_context(weights[name], config))
        return models[-1]

    def make(
        architecture: str = "llama", drafter: str = "none", sampling: SamplingConfig = GREEDY, *,
        n_ctx: int = 512, draft_ctx: int = 512, floor: float = 0.0,
    ) -> Session:  # fmt: skip
        target = model(architecture, n_ctx)
        if drafter in ("none", "lookup"):
            return Session(target, NoDrafter() if drafter == "none" else LookupDrafter(min_match=2))
        if drafter == "store":
            return Session(target, StoreDrafter([suffix_array([target.vocab.tokenize(
                TEXT, adds_special=False, parses_special=False), list(range(261, 300))])], 1))  # fmt: skip
        if drafter == "auto":  # forwards that cost the same at every width: whatever there is gets drafted
            controller = Controller(
                CostModel(dict.fromkeys(CALIBRATION_WIDTHS, 0.01)),
                new_acceptance(),
                DraftCost(1e-4, 1e-5),
                Shares(CONFIDENCE_SHARES),
            )
            rule = floor_rule(floor)
            close = model(f"close model of {architecture}", draft_ctx)
            drafts_model = ModelDrafter(close, KeyedSampler(sampling), rule=rule)
            return Session(target, AutoDrafter(controller, [LookupDrafter(2)], drafts_model), draft_model=close)
        names = {"target itself": architecture, "close model": f"close model of {architecture}"}
        draft = model(names.get(drafter, drafter), draft_ctx)
        return Session(target, ModelDrafter(draft, KeyedSampler(sampling), rule=floor_rule(floor)), draft_model=draft)

    yield make
    for one in models:
        one.close()


@pytest.fixture
def request_of(llama_gguf, close_draft_gguf) -> MakeRequest:
    """A request for the tiny pair with fixed lengths, which need no timing to be told apart."""

    def make(*prompts: BenchPrompt, **values) -> BenchRequest:
        defaults = {
            "target": str(llama_gguf), "draft_model": str(close_draft_gguf), "arms": ("lookup:4", "model:3"),
            "max_tokens": 24, "context": ONE_THREAD,
        }  # fmt: skip
        return BenchRequest(prompts=prompts or (bench_prompt(),), **{**defaults, **values})

    return make


@pytest.fixture
def quick_smoke_decode(monkeypatch: pytest.MonkeyPatch) -> None:
    """No child process for every look of the doctor; the tests of the command itself have the real one."""
    monkeypatch.setattr(doctor, "run_smoke_decode", lambda backend: SmokeReport(0.01, 0.0, ()))


@pytest.fixture
def make_models(llama_gguf: Path) -> Iterator[MakeModels]:
    """Opens models that are closed at the end of the test."""
    with ExitStack() as stack:

        def make(path: Path = llama_gguf, *, n: int = 24, n_ctx: int = 2048, bias=NO_EOG, temperature: float = 0.0,
                 drafter: str = "lookup", k: int | None = 5, draft: Path | None = None, stop=()) -> ChatModels:  # fmt: skip
            wanted = GenerateRequest(
                prompt="", target=str(path), draft_model=draft and str(draft),
                sampling={"temperature": temperature, "seed": 7, "logit_bias": bias},
                context=ContextConfig(n_ctx=n_ctx, threads=1, kv_type="f32", flash_attention="off"),
                draft=DraftConfig(drafter=drafter, draft_length=k, confidence_floor=0.0),
                generate=GenerateConfig(max_tokens=n, stop=stop),
            )  # fmt: skip
            return stack.enter_context(open_models(wanted, lambda text: None))

        yield make
