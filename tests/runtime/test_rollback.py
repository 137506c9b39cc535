"""Every way a context takes tokens back: long histories, what it costs, and what fails its trial."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import llama_cpp
import numpy as np
import pytest

from specllm.config import ContextConfig, SamplingConfig
from specllm.decoding import rollback_trial
from specllm.decoding.rollback_trial import try_rollback
from specllm.decoding.sampling import KeyedSampler
from specllm.drafters.model import ModelDrafter, floor_rule
from specllm.errors import BackendError, RollbackUnsupported
from specllm.runtime import llama as llama_module
from specllm.runtime import memory
from specllm.runtime.llama import LlamaModel, Weights
from tests import synthetic
from tests.synthetic import N_VOCAB

KINDS = {"llama": "trim", "mamba": "snapshot", "jamba": "snapshot", "lfm2": "states", "gemma3": "trim"}
EXACT = {"threads": 1, "n_ctx": 2048, "n_outputs_max": 16, "kv_type": "f32", "flash_attention": "off"}
GREEDY = KeyedSampler(SamplingConfig(temperature=0))
Make = Callable[..., LlamaModel]


@pytest.fixture
def make_model(weights: dict[str, Weights]) -> Iterator[Make]:
    """Makes contexts that are freed before their weights."""
    made = []

    def make(architecture: str, **config) -> LlamaModel:
        made.append(LlamaModel(weights[architecture], ContextConfig(**{**EXACT, **config})))
        return made[-1]

    yield make
    for model in made:
        model.close()


def fed_tokens(model: LlamaModel, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The widths of all decodes of `model` from now on."""
    widths: list[int] = []
    decode = model._decode

    def counting(tokens, *rest, **named):
        widths.append(len(tokens))
        return decode(tokens, *rest, **named)

    monkeypatch.setattr(model, "_decode", counting)
    return widths


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("architecture", KINDS)
def test_two_hundred_rounds_of_drafts_leave_no_trace(make_model: Make, architecture: str, seed: int) -> None:
    """Two models take the same blocks but for what is rejected: their logits stay equal to the bit. A fresh prefill of
    the text, cut into the same last width, gives them too, but for the order of sums."""
    rng = np.random.default_rng(seed)
    models = make_model(architecture), make_model(architecture)
    context = rng.integers(3, N_VOCAB, 40).tolist()
    for model in models:
        model.forward(context[:-1], logits="none")
    for round in range(200):
        draft = rng.integers(3, N_VOCAB, rng.choice([0, 1, 3, 7, 8, 12])).tolist()
        n_accepted = int(rng.integers(len(draft) + 1)) if round % 3 else 0
        for model, other in zip(models, (0, 1), strict=True):
            rejected = [(token + other) % N_VOCAB for token in draft[n_accepted:]]
            rows = model.forward([context[-1], *draft[:n_accepted], *rejected])
            assert rows.shape == (len(draft) + 1, N_VOCAB)
        context += [*draft[:n_accepted], int(rng.integers(3, N_VOCAB))]
        for model in models:
            model.rollback(len(context) - 1)
            assert model.n_past == len(context) - 1
    block = [context[-1], 50, 60, 70]
    ours, twin = (model.forward(block).copy() for model in models)
    assert np.array_equal(ours, twin)
    fresh = make_model(architecture)
    fresh.forward(context[:-1], logits="none")
    assert np.abs(ours - fresh.forward(block)).max() < (0.05 if architecture == "gemma3" else 0.001)


@pytest.mark.parametrize("architecture", KINDS)
def test_a_trial_finds_every_kind_exact(make_model: Make, architecture: str) -> None:
    model = make_model(architecture)
    trial = try_rollback(model)
    assert model.rollback_kind == KINDS[architecture]
    assert trial.is_exact
    assert trial.deviation < 0.01
    assert model.n_past == 0


@pytest.mark.parametrize("kv_type", ["q8_0", "q4_0"])
@pytest.mark.parametrize("architecture", ["llama", "jamba", "lfm2", "gemma3"])
def test_a_quantized_cache_forgets_what_was_rejected(tmp_path: Path, architecture: str, kv_type: str) -> None:
    """Heads of 32 numbers, a block of every quantized type."""
    path = getattr(synthetic, f"write_{architecture}")(tmp_path / "model.gguf", n_embd=128)
    config = ContextConfig(**{**EXACT, "kv_type": kv_type, "flash_attention": "auto", "n_ctx": 256})
    rows = []
    with closing(Weights(path)) as weights, closing(LlamaModel(weights, config)) as model:
        assert model.rollback_kind == KINDS[architecture]
        for rejected in (80, 90):
            model.rollback(0)
            model.forward(list(range(40, 60)), logits="none")
            model.forward([101, 102, *[rejected] * 9])
            model.rollback(22)
            rows.append(model.forward([103, 104, 105]).copy())
        assert try_rollback(model).is_exact
    assert np.array_equal(*rows)


def test_a_state_that_is_not_kept_is_not_gone_back_to(make_model: Make) -> None:
    """llama.cpp agrees to two steps back after two forwards of one token, and would give the state of another text."""
    model, fresh = make_model("lfm2"), make_model("lfm2")
    model.forward(list(range(40, 60)), logits="none")
    for token in (101, 102, 103):
        model.forward([token], logits="none")
    model.rollback(21)
    fresh.forward([*range(40, 60), 101], logits="none")
    assert np.abs(model.forward([7]) - fresh.forward([7])).max() < 1e-4


def test_a_second_rollback_without_a_forward_between_is_right_too(make_model: Make) -> None:
    model, fresh = make_model("lfm2"), make_model("lfm2")
    model.forward(list(range(40, 60)), logits="none")
    model.forward([101, 102, 103, 104, 105], logits="none")
    model.rollback(23)
    model.rollback(22)
    fresh.forward([*range(40, 60), 101, 102], logits="none")
    assert np.abs(model.forward([7]) - fresh.forward([7])).max() < 1e-4


def test_states_that_a_restored_snapshot_made_stale_are_not_gone_back_to(make_model: Make) -> None:
    model, fresh = make_model("lfm2"), make_model("lfm2")
    model.forward(list(range(40, 61)), logits="none")
    model.forward([101] * 12, logits="none")
    model.rollback(21)  # by the snapshot; the states beside it are of the block
    model.rollback(20)
    fresh.forward(list(range(40, 60)), logits="none")
    assert np.abs(model.forward([7]) - fresh.forward([7])).max() < 1e-4


def test_a_snapshot_from_behind_a_kept_state_is_forgotten_with_it(make_model: Make) -> None:
    model, fresh = make_model("lfm2"), make_model("lfm2")
    text = list(range(40, 90))
    model.forward(text[:20], logits="none")
    model.forward(text[20:], logits="none")
    model.rollback(40)  # 20 tokens are fed again, and a snapshot is taken behind them
    model.rollback(38)  # to one of the states that they left
    for token in (101, 102, 103, 104, 105, 106):
        model.forward([token], logits="none")
    model.rollback(42)
    fresh.forward([*text[:38], 101, 102, 103, 104], logits="none")
    assert np.abs(model.forward([7]) - fresh.forward([7])).max() < 1e-4


def test_states_of_a_forward_that_failed_are_not_gone_back_to(make_model: Make, monkeypatch) -> None:
    model, fresh = make_model("lfm2"), make_model("lfm2")
    decode = llama_cpp.llama_decode
    model.forward(list(range(40, 60)), logits="none")  # the next one takes a snapshot, because there is none
    with monkeypatch.context() as patch:
        patch.setattr(llama_cpp, "llama_decode", lambda *arguments: decode(*arguments) or -3)
        with pytest.raises(BackendError):
            model.forward([101, 102, 103, 104], logits="none")
    assert model.n_past == 20
    model.rollback(18)
    fresh.forward(list(range(40, 58)), logits="none")
    assert np.abs(model.forward([7]) - fresh.forward([7])).max() < 1e-4


def test_kept_states_take_a_narrow_block_back_without_feeding_anything(make_model: Make, monkeypatch) -> None:
    model = make_model("lfm2")
    model.forward(list(range(40, 60)), logits="none")
    widths = fed_tokens(model, monkeypatch)
    model.forward([101] * 8)
    model.rollback(21)
    model.forward([101] * 12)
    model.rollback(23)
    assert widths == [8, 12, 2]  # the wide one by its snapshot and two tokens


def test_a_snapshot_of_a_hybrid_model_does_not_copy_what_can_be_trimmed(make_model: Make) -> None:
    model = make_model("jamba")
    sizes = []
    for n in (20, 1000):
        model.rollback(0)
        model.forward([50] * n, logits="none")
        model.forward([51, 52])
        sizes.append(len(model._rollback._saved))
    assert sizes[0] == sizes[1] < 12_000


@pytest.mark.parametrize("architecture", ["mamba", "jamba", "lfm2"])
def test_a_recurrent_draft_model_is_not_fed_its_whole_text_in_every_round(
    make_model: Make, monkeypatch, architecture: str
) -> None:
    """It drafts token by token, and everything it drafts here is rejected."""
    model = make_model(architecture, n_outputs_max=1)
    drafter = ModelDrafter(model, GREEDY, rule=floor_rule(0))
    context = list(range(40, 340))
    drafter.begin(context)
    drafter.propose(context, 4)
    widths = fed_tokens(model, monkeypatch)
    for token in range(100, 140):
        context.append(token)
        assert len(drafter.propose(context, 4).tokens) == 4
    assert sum(widths) < 40 * (4 + memory.LONGEST_REPEAT // 2 + 2)
    fresh = make_model(architecture, n_outputs_max=1)
    again = ModelDrafter(fresh, GREEDY, rule=floor_rule(0))
    again.begin(context)
    assert again.propose(context, 4) == drafter.propose(context, 4)


def test_a_kind_that_fails_its_trial_is_not_used(make_model: Make, monkeypatch) -> None:
    """States that are one step off, and snapshots that restore nothing: what is left is slow and right."""
    monkeypatch.setattr(memory.States, "to", lambda self, n_past: memory.Snapshot.to(self, n_past - 1))
    assert make_model("lfm2").rollback_kind == "snapshot"
    monkeypatch.setattr(memory.Snapshot, "_restore", lambda self, n_past: n_past)
    model, fresh = make_model("mamba"), make_model("llama")
    assert model.rollback_kind == "replay"
    assert model.n_past == fresh.n_past == 0
    monkeypatch.setattr(llama_cpp, "llama_state_seq_set_data_ext", lambda *_: 0)
    monkeypatch.undo()
    fresh = make_model("mamba")
    assert fresh.rollback_kind == "snapshot"
    for one in (model, fresh):
        one.forward(list(range(40, 60)), logits="none")
        one.forward([101, 102, 103])
        one.rollback(21)
    assert np.abs(model.forward([7]) - fresh.forward([7])).max() < 1e-4


def test_a_state_that_cannot_be_saved_leaves_the_replay(make_model: Make, monkeypatch) -> None:
    monkeypatch.setattr(llama_cpp, "llama_state_seq_get_data_ext", lambda *_: 0)
    model = make_model("jamba")
    assert model.rollback_kind == "replay"
    model.forward([5, 6, 7, 8], logits="none")
    model.rollback(2)
    assert model.n_past == 2


def test_a_context_with_no_room_for_a_trial_is_made_without(make_model: Make) -> None:
    model = make_model("mamba", n_ctx=3)
    assert model.rollback_kind == "replay"
    model.forward([5, 6, 7])
    model.rollback(1)
    model.forward([8])


def test_a_trial_that_is_interrupted_frees_the_context(weights, monkeypatch) -> None:
    freed = []
    free = llama_cpp.llama_free

    def watched(handle: object) -> None:
        freed.append(handle)
        free(handle)

    def interrupted(model: LlamaModel) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(llama_module, "try_rollback", interrupted)
    monkeypatch.setattr(llama_cpp, "llama_free", watched)
    with pytest.raises(KeyboardInterrupt):
        LlamaModel(weights["mamba"], ContextConfig(**EXACT))
    assert len(freed) == 1


def test_plain_attention_is_not_tried_at_every_load(weights, monkeypatch) -> None:
    def tried(model: LlamaModel) -> None:
        raise AssertionError

    monkeypatch.setattr(llama_module, "try_rollback", tried)
    for name in ("llama", "gemma3"):
        LlamaModel(weights[name], ContextConfig(**EXACT)).close()


def test_a_window_whose_cells_are_gone_is_not_rolled_back_over(weights, monkeypatch) -> None:
    """A cache that keeps the window only (`swa_full` false) drops the tokens asked for, and lacks those before them."""
    made = llama_cpp.llama_init_from_model

    def without_full_cache(handle, params):
        params.swa_full = False
        return made(handle, params)

    monkeypatch.setattr(llama_cpp, "llama_init_from_model", without_full_cache)
    config = ContextConfig(**{**EXACT, "n_batch": 32, "n_ubatch": 32})
    model = LlamaModel(weights["gemma3"], config)
    for start in range(0, 1024, 32):
        model.forward(list(range(start % 200 + 10, start % 200 + 42)), logits="none")
    model.rollback(1020)  # the window before it is still there
    with pytest.raises(RollbackUnsupported):
        model.rollback(300)
    model.close()


def test_logits_of_another_text_are_found_out_by_a_trial(make_model: Make, monkeypatch) -> None:
    """Rollbacks that keep one token too many, one too few, or drop nothing."""
    model = make_model("llama")
    right = type(model._rollback).to
    for wrong in (lambda self, n: right(self, n + 1), lambda self, n: right(self, n - 1)):
        monkeypatch.setattr(type(model._rollback), "to", wrong)
        assert not try_rollback(model).is_exact
    monkeypatch.undo()
    assert try_rollback(model, iter([1.0, 3.5]).__next__).rejection_s == 2.5
    assert rollback_trial.LARGEST_DEVIATION < 1


def test_a_failed_forward_is_followed_by_the_right_logits(make_model: Make, monkeypatch) -> None:
    for architecture in KINDS:
        model = make_model(architecture)
        model.forward(list(range(40, 60)), logits="none")
        model.forward([101, 102, 103], logits="none")
        with monkeypatch.context() as patch:
            patch.setattr(llama_cpp, "llama_decode", lambda *_: -3)
            with pytest.raises(BackendError):
                model.forward([104, 105])
        n_past = model.n_past
        text = [*range(40, 60), 101, 102, 103]
        model.forward(text[n_past:], logits="none")
        fresh = make_model(architecture)
        fresh.forward(text, logits="none")
        assert np.abs(model.forward([7]) - fresh.forward([7])).max() < 0.01
