"""Chats whose context fills, and whose settings change between turns."""

from __future__ import annotations

import gc
from pathlib import Path

import pytest

from specllm.app.chat.use_case import Chat
from specllm.errors import ConfigError, ContextFull
from specllm.runtime.trim_vocab import write_trimmed
from tests import synthetic
from tests.app.chat.chats import ask, is_settled

# ---- a full context ----------------------------------------------------------------------------------------------------


def test_a_full_context_drops_the_oldest_turns_whole_and_says_so(make_models):
    chat, said = Chat(make_models(n_ctx=512, n=60), system="be brief"), []
    n_reads = []
    for number in range(30):
        answer = ask(chat, f"message {number} " + "x" * 40, said)
        assert answer.finish_reason == "length"
        assert answer.metrics.n_committed == 60
        n_reads.append(answer.metrics.n_prompt - answer.metrics.n_reused)
        vocab, context = chat.models.weights.vocab, chat.models.session.context
        text = "".join(vocab.piece(token, shows_special=True).decode("utf-8", "replace") for token in context)
        assert text.count("<|im_start|>system\nbe brief<|im_end|>") == 1
        kept = [turn.message for turn in chat.turns[chat.n_dropped :]]
        assert text.count("<|im_start|>user\n") == len(kept)
        assert all(message in text for message in kept)
    assert len(chat.turns) == 30
    assert all("no longer reads" in text for text in said)
    assert 3 <= len(said) <= 15  # room is made for several turns at once
    assert sum(n > 120 for n in n_reads) == len(said)


def test_a_full_context_can_be_an_error(make_models):
    chat = Chat(make_models(n_ctx=256, n=60), overflow="error")
    while len(chat.turns) < 2:
        ask(chat, "x" * 30)
    with pytest.raises(
        ContextFull, match=r"conversation and message are \d+ tokens and the context holds 256"
    ) as error:
        ask(chat, "x" * 150)
    assert "--overflow drop" in error.value.hint
    n_turns = len(chat.turns)
    assert chat.undo() == "x" * 150
    chat.undo()
    ask(chat, "short")
    assert len(chat.turns) == n_turns


@pytest.mark.parametrize("overflow", ["drop", "error"])
def test_a_message_too_long_for_the_context_is_refused_and_nothing_is_lost(make_models, overflow):
    chat = Chat(make_models(n_ctx=256, n=20), overflow=overflow)
    ask(chat, "one")
    with pytest.raises(ContextFull, match=r"the message is 2,001 tokens, 2,0\d\d with .* holds 256") as error:
        ask(chat, "ab " * 1000)
    assert "--ctx 20" in error.value.hint
    assert "make it shorter with /edit, " in error.value.hint
    assert chat.last_message == "ab " * 1000
    assert chat.n_dropped == 0
    assert ask(chat, "two", is_again=True).metrics.n_reused > 20
    assert [turn.message for turn in chat.turns] == ["one", "two"]
    with pytest.raises(ContextFull) as error:
        ask(chat, "ab " * 1000, is_again=True)
    assert "/edit" not in error.value.hint
    assert chat.last_message == "two"  # what an edit was to replace stays


def test_undo_of_all_that_is_read_brings_older_turns_back(make_models):
    chat = Chat(make_models(n_ctx=512, n=60))
    while not chat.n_dropped:
        ask(chat, "x" * 60)
    while len(chat.turns) > chat.n_dropped > 0:
        chat.undo()
    assert chat.n_dropped == 0
    assert ask(chat, "on").metrics.n_prompt > 100


def test_a_hundred_turns_in_a_small_context_take_no_more_memory(make_models):
    def resident_kb() -> int:
        gc.collect()
        status = Path("/proc/self/status")
        if not status.exists():
            pytest.skip("only Linux tells the resident memory")
        return int(status.read_text(encoding="ascii").partition("VmRSS:")[2].split()[0])

    models = make_models(n=8, temperature=1.0, bias=())
    chat = Chat(models, system="be brief")
    for number in range(100):
        ask(chat, f"message {number}: " + "on and on " * 20)
        if number == 19:
            assert chat.n_dropped  # once full, the largest forwards have been seen
            after_20 = resident_kb()
    assert resident_kb() - after_20 < 1 << 10
    assert chat.n_dropped > 50
    assert is_settled(chat)


# ---- settings ----------------------------------------------------------------------------------------------------------


def test_sampling_changes_between_turns(make_models):
    models = make_models(temperature=0.0)
    chat = Chat(models)
    greedy = ask(chat, "hi").result()["text"]
    models.set("temperature", "1.5")
    models.set("max_tokens", "7")
    models.set("temp", "1.6")
    warm = ask(chat, "hi", is_again=True)
    assert warm.metrics.n_committed == 7
    assert not greedy.startswith(warm.result()["text"])
    assert models.settings()["temperature"] == 1.6


@pytest.mark.parametrize(
    ("name", "value", "says", "hint"),
    [
        ("temprature", "1", "nothing named 'temprature'", "temperature"),
        ("zzz", "1", "nothing named", "top_k"),
        ("temperature", "hot", "temperature is 'hot'", "/set temperature"),
        ("top_k", "1.5", "top_k is '1.5'", "whole number"),
        ("top_p", "7", "top_p is 7", "at most 1"),
        ("max_tokens", "0", "max tokens is 0", "positive"),
        ("logit_bias", "1", "nothing named", ""),
    ],
)
def test_what_cannot_be_set_is_said(make_models, name, value, says, hint):
    models = make_models()
    before = models.settings()
    with pytest.raises(ConfigError, match=says) as error:
        models.set(name, value)
    assert hint in error.value.hint
    assert models.settings() == before


def test_the_drafter_changes_between_turns_and_the_text_does_not(make_models, close_draft_gguf):
    models = make_models(drafter="none", k=None, draft=close_draft_gguf, n=60)
    assert models.session.draft_model is None
    chat, plain = Chat(models), Chat(make_models(drafter="none", k=None, n=60))
    for drafter in ("model", "lookup", "auto", "none", "model"):
        models.use_drafter(drafter, lambda text: None)
        answer, expected = ask(chat, "more of the same same same"), ask(plain, "more of the same same same")
        assert answer.result()["text"] == expected.result()["text"]
        assert answer.strategy.startswith("plain" if drafter == "none" else drafter)
    assert models.session.draft_model is not None


def test_a_draft_model_that_was_being_measured_drafts_as_well_as_before(make_models, llama_gguf, monkeypatch):
    """Ctrl-C while its forwards are timed, as `auto` wants it: what it had read is gone."""
    models = make_models(drafter="model", k=4, draft=llama_gguf, n=60)
    chat = Chat(models)
    ask(chat, "hello " * 20)

    def measure(model, *arguments, **keywords):
        model.rollback(0)
        model.forward([100] * 150, logits="none")
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("specllm.app.loading.target_cost", lambda *arguments, **keywords: None)
        patch.setattr("specllm.app.loading.draft_cost", measure)
        with pytest.raises(KeyboardInterrupt):
            models.use_drafter("auto", print)
    assert ask(chat, "and more").metrics.acceptance_rate == 1.0


def test_a_drafter_that_is_not_there_is_said(make_models, draft_gguf, synthetic_models):
    models = make_models()
    for name, says in (("model", "no draft model"), ("reference", "no drafter 'reference'"), ("x", "no drafter 'x'")):
        with pytest.raises(ConfigError, match=says):
            models.use_drafter(name, lambda text: None)
    assert models.plan.draft.drafter == "lookup"
    assert ask(Chat(models), "hi").strategy == "lookup k=5"


def test_a_draft_model_that_does_not_fit_leaves_the_drafter_as_it_was(make_models, synthetic_models):
    texts = {token: f"other{token}" for token in range(262, synthetic.N_VOCAB)}
    whole = synthetic.write_llama(synthetic_models / "stranger.gguf", token_texts=texts)
    stranger = synthetic_models / "trimmed_stranger.gguf"
    write_trimmed(whole, stranger, range(synthetic.N_VOCAB))
    models = make_models(draft=stranger)
    with pytest.raises(Exception, match="vocabulary"):
        models.use_drafter("model", lambda text: None)
    assert models.plan.draft.drafter == "lookup"
    ask(Chat(models), "hi")


def test_a_model_without_a_template_is_refused(make_models, synthetic_models):
    path = synthetic.write_llama(synthetic_models / "raw.gguf", chat_template=None)
    with pytest.raises(ConfigError, match="no chat template"):
        make_models(path)
