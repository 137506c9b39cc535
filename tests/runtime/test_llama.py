"""Forward and rollback of real llama.cpp contexts on tiny models, and every way they can fail."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import llama_cpp
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from specllm.config import ContextConfig
from specllm.errors import (
    BackendError,
    ContextFull,
    OutOfMemory,
    RollbackUnsupported,
)
from specllm.runtime.llama import LlamaModel, Weights
from tests.synthetic import N_VOCAB

ARCHITECTURES = ["llama", "mamba", "jamba", "lfm2", "gemma3"]
Make = Callable[..., LlamaModel]

# One thread: the models are so small that a second one only waits for the first. Nothing in f16 (flash attention
# computes in it): that would turn the last bit, in which forwards of different width differ, into a thousandth.
SMALL = {"threads": 1, "n_ctx": 512, "n_outputs_max": 64, "kv_type": "f32", "flash_attention": "off"}


@pytest.fixture(scope="module")
def make_model(weights: dict[str, Weights]) -> Iterator[Make]:
    """Makes contexts that are freed before their weights."""
    made = []

    def make(architecture: str = "llama", **config) -> LlamaModel:
        made.append(LlamaModel(weights[architecture], ContextConfig(**{**SMALL, **config})))
        return made[-1]

    yield make
    for model in made:
        model.close()


@pytest.fixture(scope="module")
def pairs(make_model: Make) -> dict[str, tuple[LlamaModel, LlamaModel]]:
    """For each architecture the model under test and one that is always filled from the beginning."""
    return {name: (make_model(name), make_model(name)) for name in ARCHITECTURES}


def prefilled(reference: LlamaModel, tokens: list[int]) -> np.ndarray:
    """The row after `tokens`, read in one go from an empty cache."""
    reference.rollback(0)
    return reference.forward(tokens, logits="last")[0].copy()


def is_same(ours: np.ndarray, theirs: np.ndarray, architecture: str = "llama") -> bool:
    """Equal but for the order in which sums were taken: logits here have a deviation of 3, one wrong token moves them by 1."""
    within = 0.05 if architecture == "gemma3" else 1e-4  # its GELU is looked up in a table of f16
    return ours.shape == theirs.shape and bool(np.abs(ours - theirs).max() < within)


ids = st.integers(3, N_VOCAB - 1)
rounds = st.lists(
    st.tuples(st.lists(ids, max_size=12), st.floats(0, 1), ids),  # draft, share accepted, the target's own token
    min_size=1, max_size=8,
)  # fmt: skip


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(prompt=st.lists(ids, min_size=2, max_size=40), history=rounds)
def test_after_any_history_of_drafts_the_next_logits_are_those_of_a_fresh_prefill(pairs, architecture, prompt, history):
    """Faults 7 and 12, the way the decode loop works."""
    model, reference = pairs[architecture]
    model.rollback(0)
    context = list(prompt)
    model.forward(context[:-1], logits="none")
    for draft, share, token in history:
        rows = model.forward([context[-1], *draft])
        assert rows.shape == (len(draft) + 1, N_VOCAB)
        assert is_same(rows[-1], prefilled(reference, context + draft), architecture)
        context += [*draft[: round(share * len(draft))], token]
        model.rollback(len(context) - 1)
        assert model.n_past == len(context) - 1
    assert is_same(model.forward(context[-1:])[0], prefilled(reference, context), architecture)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(steps=st.lists(st.lists(ids, min_size=1, max_size=6) | st.floats(0, 1), min_size=1, max_size=15))
def test_rollback_to_anywhere_leaves_exactly_the_tokens_before(pairs, architecture, steps):
    """Lists are fed, fractions roll back to that share of what is there: also behind the last snapshot, and to nothing."""
    model, reference = pairs[architecture]
    model.rollback(0)
    tokens: list[int] = []
    for step in steps:
        if isinstance(step, list):
            model.forward(step, logits="none")
            tokens += step
        else:
            del tokens[round(step * len(tokens)) :]
            model.rollback(len(tokens))
        assert model.n_past == len(tokens)
    assert is_same(model.forward([7])[0], prefilled(reference, [*tokens, 7]), architecture)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_a_snapshot_of_a_text_that_is_gone_is_not_restored(pairs, architecture):
    """Back to before the last snapshot, then forward past its place with other tokens, one at a time."""
    model, reference = pairs[architecture]
    model.rollback(0)
    model.forward(list(range(40, 60)), logits="none")
    model.forward([101, 102, 103], logits="none")  # a snapshot at 20
    model.rollback(10)
    for token in range(200, 215):
        model.forward([token], logits="none")
    model.rollback(22)
    assert is_same(model.forward([7])[0], prefilled(reference, [*range(40, 50), *range(200, 212), 7]), architecture)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("n_accepted", range(6))
def test_a_rejection_at_each_position_leaves_no_trace(pairs, architecture, n_accepted):
    model, reference = pairs[architecture]
    context, draft = list(range(40, 60)), [101, 102, 103, 104, 105]
    model.rollback(0)
    model.forward(context[:-1], logits="none")
    model.forward([context[-1], *draft])
    context += [*draft[:n_accepted], 200]
    model.rollback(len(context) - 1)
    assert is_same(model.forward([200, 201, 202])[-1], prefilled(reference, [*context, 201, 202]), architecture)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_a_block_fed_again_after_a_rollback_gives_the_same_bits(pairs, architecture):
    model, _ = pairs[architecture]
    block = [101, 102, 103, 104, 105]
    model.rollback(0)
    model.forward(list(range(40, 60)), logits="none")
    first = model.forward(block).copy()
    model.rollback(20)
    assert np.array_equal(model.forward(block), first)


@pytest.fixture(scope="module")
def usual_pairs(make_model: Make) -> dict[str, tuple[LlamaModel, LlamaModel]]:
    """As `pairs`, with caches and attention as they are by default."""
    usual = {"kv_type": "f16", "flash_attention": "auto"}
    return {name: (make_model(name, **usual), make_model(name, **usual)) for name in ARCHITECTURES}


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(prompt=st.lists(ids, min_size=2, max_size=40), history=rounds)
def test_what_was_rejected_leaves_not_a_bit_behind(usual_pairs, architecture, prompt, history):
    """Two models take the same forwards and differ only in drafts that are taken back: so they do not differ afterwards."""
    models = usual_pairs[architecture]
    context = list(prompt)
    for model in models:
        model.rollback(0)
        model.forward(context[:-1], logits="none")
    for draft, share, token in history:
        n_accepted = round(share * len(draft))
        for model, other in zip(models, (0, 1), strict=True):
            rejected = [(one + other) % N_VOCAB for one in draft[n_accepted:]]
            model.forward([context[-1], *draft[:n_accepted], *rejected])
        context += [*draft[:n_accepted], token]
        for model in models:
            model.rollback(len(context) - 1)
    assert np.array_equal(*(model.forward(context[-1:]).copy() for model in models))


def test_every_kind_of_memory_has_its_way_back(pairs):
    assert {name: model.rollback_kind for name, (model, _) in pairs.items()} == {
        "llama": "trim", "mamba": "snapshot", "jamba": "snapshot", "lfm2": "states", "gemma3": "trim",
    }  # fmt: skip


def test_a_context_that_cannot_drop_tokens_says_so_instead_of_going_on(make_model, monkeypatch):
    model = make_model()
    model.forward([5, 6, 7], logits="none")
    monkeypatch.setattr(llama_cpp, "llama_memory_seq_rm", lambda *_: False)
    with pytest.raises(RollbackUnsupported, match="position 1") as error:
        model.rollback(1)
    assert "--drafter none" in error.value.hint
    model.rollback(3)  # nothing to drop
    model.rollback(0)  # dropping everything always works


def test_a_snapshot_that_cannot_be_taken_or_restored_is_an_error(make_model, monkeypatch):
    model = make_model("mamba")
    model.forward([5, 6, 7], logits="none")
    with monkeypatch.context() as patch:
        patch.setattr(llama_cpp, "llama_state_seq_get_data_ext", lambda *_: 3)
        with pytest.raises(BackendError, match="3 of"):
            model.forward([8, 9])
    model.forward([8, 9])
    monkeypatch.setattr(llama_cpp, "llama_state_seq_set_data_ext", lambda *_: 0)
    with pytest.raises(BackendError, match="restore"):
        model.rollback(4)


@pytest.mark.parametrize("n_past", [-1, 4])
def test_a_rollback_to_where_nothing_is_is_refused(make_model, n_past):
    model = make_model()
    model.forward([5, 6, 7], logits="none")
    with pytest.raises(ValueError, match="of 3 tokens"):
        model.rollback(n_past)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_small_batches_give_the_logits_of_large_ones(make_model, architecture):
    """Fault 17: neither prompt nor draft fits into one batch."""
    rng = np.random.default_rng(0)
    prompt, block = rng.integers(3, N_VOCAB, 1000).tolist(), rng.integers(3, N_VOCAB, 41).tolist()
    results = []
    for n_batch in (32, 512):
        model = make_model(architecture, n_batch=n_batch, n_ctx=2048, n_outputs_max=41)
        model.forward(prompt, logits="none")
        rows = model.forward(block).copy()
        model.rollback(1010)
        results.append((rows, model.forward([9], logits="last").copy()))
        assert model.n_past == 1011
    (small, small_next), (large, large_next) = results
    assert small.shape == large.shape == (41, N_VOCAB)
    assert is_same(small, large, architecture)
    assert is_same(small_next, large_next, architecture)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_logits_come_for_all_for_the_last_or_for_no_token(pairs, architecture):
    model, _ = pairs[architecture]
    tokens = [5, 80, 300, 17]
    rows = {}
    for which in ("all", "last", "none"):
        model.rollback(0)
        rows[which] = model.forward(tokens, logits=which).copy()
        assert model.n_past == 4
    assert {which: row.shape for which, row in rows.items()} == {
        "all": (4, N_VOCAB), "last": (1, N_VOCAB), "none": (0, N_VOCAB),
    }  # fmt: skip
    assert is_same(rows["all"][-1], rows["last"][0], architecture)
    assert model.forward([]).shape == (0, N_VOCAB)
    assert model.n_past == 4


@pytest.mark.parametrize("config", [{}, {"kv_type": "f16", "flash_attention": "on"}])
def test_a_copied_cache_goes_on_to_the_bit_as_the_one_it_was_copied_from(make_model, config):
    one, other = make_model(n_ctx=1024, **config), make_model(n_ctx=1024, **config)
    one.forward(list(range(40, 340)), logits="none")
    one.forward([7, 8, 9, 10])
    one.rollback(301)
    other.forward([99] * 500, logits="none")
    other.copy_cache(one)
    assert other.n_past == one.n_past == 301
    for block in ([5], [6, 7, 8, 9], [3]):
        assert (one.forward(block) == other.forward(block)).all()
    for model in (one, other):
        model.rollback(120)
    assert (one.forward([11, 12]) == other.forward([11, 12])).all()
    one.rollback(0)  # a prompt of one token has nothing cached
    other.copy_cache(one)
    assert other.n_past == 0


def test_a_cache_that_is_not_written_out_whole_is_not_copied(pairs):
    can = {architecture: model.can_copy_cache for architecture, (model, _) in pairs.items()}
    assert can == {name: name == "llama" for name in ARCHITECTURES}


def test_a_cache_that_cannot_be_copied_is_an_error(make_model, monkeypatch):
    one, other = make_model(), make_model()
    one.forward([5, 6, 7])
    monkeypatch.setattr(llama_cpp, "llama_state_seq_set_data_ext", lambda *arguments: 0)
    with pytest.raises(BackendError, match="copy a KV cache"):
        other.copy_cache(one)


def test_more_rows_than_one_decode_may_give_come_in_parts(make_model):
    tokens = list(range(50, 70))
    few, many = make_model(n_outputs_max=3), make_model(n_outputs_max=20)
    assert is_same(few.forward(tokens), many.forward(tokens))
    assert few.n_past == 20


def test_a_full_context_says_how_much_was_asked_and_how_much_there_is(make_model):
    model = make_model(n_ctx=256)
    model.forward([5] * 250, logits="none")
    with pytest.raises(ContextFull, match=r"257 .* 256") as error:
        model.forward([5] * 7)
    assert "--ctx" in error.value.hint
    assert model.n_past == 250
    model.forward([5] * 6)


@pytest.mark.parametrize(
    ("code", "kind", "says"),
    [
        (1, ContextFull, "no room"),
        (2, KeyboardInterrupt, None),
        (-1, BackendError, "-1"),
        (-2, OutOfMemory, "memory"),
        (-3, BackendError, "-3"),
    ],
)
def test_every_return_code_of_llama_decode_becomes_an_exception(make_model, monkeypatch, code, kind, says):
    model = make_model()
    model.forward([5, 6], logits="none")
    with monkeypatch.context() as patch:
        patch.setattr(llama_cpp, "llama_decode", lambda *_: code)
        with pytest.raises(kind, match=says) as error:
            model.forward([7])
    if kind is not KeyboardInterrupt:
        assert error.value.hint
    model.forward([7])
    assert model.n_past == 3


def test_a_token_id_that_does_not_exist_is_an_error_and_is_not_cached(make_model):
    model = make_model()
    model.forward([5, 6], logits="none")
    with pytest.raises(BackendError):
        model.forward([N_VOCAB + 100])
    assert model.n_past == 2


def test_a_context_holds_what_was_asked_for_and_not_its_padding(make_model):
    assert make_model(n_ctx=300).n_ctx == 300
