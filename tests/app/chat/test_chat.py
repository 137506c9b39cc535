"""Conversations on tiny real models: every turn reads only what is new, and the cache holds only what is shown."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from specllm.app.chat.use_case import Chat
from specllm.decoding.sampling import KeyedSampler
from specllm.errors import BackendError, ConfigError
from specllm.runtime.vocab import detokenize
from tests import synthetic
from tests.app.chat.chats import ENDS, NO_EOG, again, ask, is_settled
from tests.app.test_session import Interrupting
from tests.synthetic import IM_END

THINKING = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n"
    "{% if m.role == 'assistant' %}{{ m.content.split('e')[-1] | trim }}{% else %}{{ m.content }}{% endif %}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


@pytest.fixture(scope="module")
def thinking_gguf(synthetic_models: Path) -> Path:
    """Its template keeps of an answer only what stands behind the last e."""
    return synthetic.write_llama(synthetic_models / "thinking.gguf", chat_template=THINKING)


# ---- only what is new --------------------------------------------------------------------------------------------------


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_every_turn_continues_the_ids_of_the_last_one(make_models, mamba_gguf, llama_gguf, close_draft_gguf, data):
    """Faults 18 and 20: whatever was said and however it ended, if the template only appends, nothing is read twice."""
    text = st.text(st.characters(codec="utf-8"), min_size=1, max_size=12) | st.sampled_from(
        ["<|im_end|>\n", "海 👩‍🚀", "[x]"]
    )
    models = make_models(
        data.draw(st.sampled_from([llama_gguf, mamba_gguf])),
        n=data.draw(st.integers(1, 30)), bias=data.draw(st.sampled_from([NO_EOG, ENDS])),
        temperature=data.draw(st.sampled_from([0.0, 1.3])), drafter=data.draw(st.sampled_from(["none", "lookup", "model"])),
        draft=close_draft_gguf,
    )  # fmt: skip
    chat = Chat(models, system=data.draw(st.none() | text))
    before: list[int] = []
    n_cached = 0
    for message in data.draw(st.lists(text, min_size=2, max_size=4)):
        answer = ask(chat, message)
        context = models.session.context
        assert context[: len(before)] == before
        assert answer.metrics.n_reused >= n_cached
        # Less than all is cached only where bytes that are no text were shown as a character, and are read as that.
        n_cached = models.session.target.n_past
        assert n_cached < len(context)
        if chat.unanswered is not None:  # a last token without a whole character: the message may come again
            n_cached = min(n_cached, len(before) - 1)
        assert is_settled(chat) or "\ufffd" in chat.turns[-1].text
        if chat.turns:  # an answer that is no whole character yet is none
            turn = chat.turns[-1]
            assert detokenize(models.weights.vocab, turn.tokens) == turn.text
            assert turn.n_answer == len(turn.tokens)
        if chat.unanswered is None:
            before = list(context)


@pytest.mark.parametrize("drafter", ["none", "lookup", "auto"])
def test_the_second_turn_reads_only_the_new_message(make_models, drafter):
    models = make_models(bias=ENDS, n=200, temperature=1.0, drafter=drafter, k=None if drafter == "auto" else 5)
    chat = Chat(models, system="be brief")
    ask(chat, "hello " * 20)
    assert models.session.context[-1] == IM_END
    n_cached = models.session.target.n_past
    second = ask(chat, "and now?")
    around = models.weights.vocab.tokenize(
        "<|im_end|>\n<|im_start|>user\nand now?<|im_end|>\n<|im_start|>assistant\n",
        adds_special=False,
        parses_special=True,
    )
    assert second.metrics.n_reused == n_cached
    assert second.metrics.n_prompt - second.metrics.n_reused == len(around)


def test_a_template_that_rewrites_answers_costs_only_what_it_rewrote(make_models, thinking_gguf):
    """The longest common beginning of the ids is kept, and the answers are those of a fresh process."""
    models = make_models(thinking_gguf, n=40)
    chat = Chat(models)
    n_before = 0
    for number in range(4):
        fresh = ask(again(chat, make_models(thinking_gguf, n=40)), f"message {number}")
        answer = ask(chat, f"message {number}")
        assert answer.result()["text"] == fresh.result()["text"]
        assert answer.metrics.n_prompt == fresh.metrics.n_prompt
        if number:
            assert n_before <= answer.metrics.n_reused < answer.metrics.n_prompt - 5
        n_before = answer.metrics.n_prompt


def test_a_stop_string_leaves_no_trace_in_the_cache(make_models):
    whole = ask(Chat(make_models()), "hi").result()["text"]
    for start in range(2, len(whole) - 2, 3):
        stop = whole[start : start + 2]
        chat = Chat(make_models(stop=(stop,)))
        ask(chat, "hi")
        turn = chat.turns[-1]
        assert turn.text == whole[: whole.find(stop)]
        if turn.text:
            assert detokenize(chat.models.weights.vocab, chat.models.session.context).endswith(
                f"assistant\n{turn.text}"
            )
        assert chat.models.session.target.n_past < len(chat.models.session.context)


# ---- undo, retry, edit -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("architecture", ["llama", "mamba"])
def test_undo_rolls_the_cache_back_to_what_is_shown(make_models, llama_gguf, mamba_gguf, architecture):
    chat = Chat(make_models({"llama": llama_gguf, "mamba": mamba_gguf}[architecture]))
    ask(chat, "one")
    shown = list(chat.models.session.context)
    first = ask(chat, "two").result()["text"]
    assert chat.undo() == "two"
    assert chat.models.session.target.n_past <= len(shown) + 3  # the end of the turn, which the template adds
    assert chat.models.session.context[: len(shown)] == shown
    answer = ask(chat, "two")
    assert answer.metrics.n_reused >= len(shown) - 1
    assert answer.result()["text"] == first
    assert [turn.message for turn in chat.turns] == ["one", "two"]


def test_nothing_to_undo_is_said(make_models):
    with pytest.raises(ConfigError, match="nothing to undo"):
        Chat(make_models()).undo()


def test_retry_takes_the_place_of_the_answer_and_draws_another_one(make_models):
    chat = Chat(make_models(temperature=1.5))
    ask(chat, "one")
    ask(chat, "two")
    texts = {chat.turns[-1].text}
    for n in (1, 2):
        answer = ask(chat, chat.last_message, is_again=True)
        assert answer.metrics.n_prompt - answer.metrics.n_reused == 1
        assert chat.turns[-1].n_earlier_tries == n
        texts.add(chat.turns[-1].text)
    assert len(texts) == 3
    assert len(chat.turns) == 2


def test_an_edited_message_takes_the_place_of_the_last_one(make_models):
    chat, straight = Chat(make_models()), Chat(make_models())
    for message in ("one", "two"):
        ask(chat, message)
    ask(straight, "one")
    edited, expected = ask(chat, "three", is_again=True), ask(straight, "three")
    assert edited.result()["text"] == expected.result()["text"]
    assert [turn.message for turn in chat.turns] == ["one", "three"]
    assert chat.turns[-1].n_earlier_tries == 0


def test_another_system_message_is_read_and_the_conversation_stays(make_models):
    chat = Chat(make_models(), system="be brief")
    ask(chat, "one")
    chat.system = "be long"
    fresh = ask(again(chat, make_models()), "two")
    assert ask(chat, "two").result()["text"] == fresh.result()["text"]
    chat.system = None
    assert ask(chat, "three").metrics.n_prompt < fresh.metrics.n_prompt + 60


# ---- Ctrl-C ------------------------------------------------------------------------------------------------------------

PLACES = [
    "draft",
    "draft forward",
    "verify",
    "end of verify",
    "commit",
    "end of commit",
    "rollback",
    "observe",
    "print",
]


def interrupting(function, at_call: int, after: bool):
    """As a plain function, which a class hands its `self`."""
    call = Interrupting(function, at_call, after=after)
    return lambda *arguments, **keywords: call(*arguments, **keywords)


@pytest.mark.parametrize("architecture", ["llama", "mamba"])
@pytest.mark.parametrize("place", PLACES)
def test_after_ctrl_c_anywhere_the_next_answer_is_that_of_a_fresh_process(
    make_models, llama_gguf, mamba_gguf, close_draft_gguf, monkeypatch, architecture, place
):
    """Fault 19."""
    path = {"llama": llama_gguf, "mamba": mamba_gguf}[architecture]
    models = make_models(path, n=60, drafter="model", k=4, draft=close_draft_gguf)
    session = models.session
    for at_call in (1, 2, 3):
        chat = Chat(models)
        chat.replace(None, ())
        ask(chat, "one")
        with monkeypatch.context() as patch, chat.ask("two " * 10, print) as answer:
            steps = iter(answer)
            for _ in range(4):
                next(steps)  # the prefill and some rounds
            owner, name, after = {
                "draft": (session.drafter, "propose", False),
                "draft forward": (session.draft_model, "forward", False),
                "verify": (session.target, "forward", False),
                "end of verify": (session.target, "forward", True),
                "commit": (KeyedSampler, "pick", False),
                "end of commit": (KeyedSampler, "pick", True),
                "rollback": (session.target, "rollback", False),
                "observe": (session.drafter, "observe", False),
                "print": (None, "", False),
            }[place]
            if owner is None:
                raise KeyboardInterrupt
            patch.setattr(owner, name, interrupting(getattr(owner, name), at_call, after))
            for _ in steps:
                pass
        turn = chat.turns[-1]
        assert (turn.message, turn.finish_reason) == ("two " * 10, "interrupted")
        assert detokenize(models.weights.vocab, turn.tokens) == turn.text
        assert is_settled(chat)
        fresh = ask(again(chat, make_models(path, n=60)), "three")
        assert ask(chat, "three").result()["text"] == fresh.result()["text"], at_call


def test_text_that_was_held_back_for_a_stop_string_is_kept_at_ctrl_c(make_models):
    whole = ask(Chat(make_models()), "hi").result()["text"]
    chat = Chat(make_models(stop=tuple(f"{whole[i : i + 2]}never" for i in range(len(whole)))))
    for n_steps in range(4, 12):
        chat.replace(None, ())
        with chat.ask("hi", print) as answer:
            steps = iter(answer)
            for _ in range(n_steps):
                next(steps)
            tokens = chat.models.session.context[answer.metrics.n_prompt :]
            raise KeyboardInterrupt
        assert chat.turns[-1].text == detokenize(chat.models.weights.vocab, tokens)


def test_ctrl_c_while_forwards_are_measured_leaves_no_wrong_cache(make_models, monkeypatch):
    chat = Chat(make_models(drafter="none"))
    ask(chat, "one")

    def measure(target, *arguments, **keywords):
        target.rollback(0)
        target.forward([100] * 50, logits="none")
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("specllm.app.loading.target_cost", measure)
        with pytest.raises(KeyboardInterrupt):
            chat.models.use_drafter("auto", print)
    assert chat.models.plan.draft.drafter == "none"
    fresh = ask(again(chat, make_models(drafter="none")), "two")
    assert ask(chat, "two").result()["text"] == fresh.result()["text"]


def test_after_ctrl_c_in_the_prefill_the_message_waits_for_retry(make_models, monkeypatch):
    chat = Chat(make_models(n_ctx=4096))
    ask(chat, "one")
    target, long = chat.models.session.target, "word " * 300
    with monkeypatch.context() as patch, chat.ask(long, print) as answer:
        patch.setattr(target, "forward", Interrupting(target.forward, 2))
        answer.finish()
    assert (answer.finish_reason, chat.unanswered, len(chat.turns)) == ("interrupted", long, 1)
    assert chat.last_message == long
    fresh = ask(again(chat, make_models(n_ctx=4096)), "two")
    other = again(chat, chat.models)
    assert ask(other, "two").result()["text"] == fresh.result()["text"]
    retried = ask(chat, chat.last_message, is_again=True)
    other.undo()
    assert ask(other, long).result()["text"] == retried.result()["text"]
    assert [turn.message for turn in chat.turns] == ["one", long]
    assert chat.unanswered is None


def test_an_interrupted_retry_keeps_the_answer_that_was_there(make_models, monkeypatch):
    chat = Chat(make_models())
    ask(chat, "one")
    kept = chat.turns[-1]
    with monkeypatch.context() as patch, chat.ask("one", print, is_again=True) as answer:
        patch.setattr(chat.models.session.target, "forward", Interrupting(chat.models.session.target.forward, 1))
        answer.finish()
    assert chat.turns == [kept]
    assert chat.unanswered is None


def test_a_failure_leaves_the_conversation_as_it_was(make_models, monkeypatch):
    chat = Chat(make_models())
    ask(chat, "one")
    turns, target = list(chat.turns), chat.models.session.target

    def fail(*arguments, **keywords):
        raise BackendError("no", "")

    with monkeypatch.context() as patch:
        patch.setattr(target, "forward", fail)
        with pytest.raises(BackendError):
            ask(chat, "two")
    assert chat.turns == turns
    fresh = ask(again(chat, make_models()), "two")
    assert ask(chat, "two").result()["text"] == fresh.result()["text"]


@pytest.mark.parametrize("is_foreign", [False, True])
def test_another_try_reads_nothing_again_for_the_draft_model(
    make_models, close_draft_gguf, tmp_path, monkeypatch, is_foreign
):
    """Nor does a message of another kind, or another temperature."""
    draft = close_draft_gguf
    if is_foreign:
        draft = synthetic.write_llama(tmp_path / "foreign.gguf", token_texts={300: "zzz"})
    chat = Chat(make_models(drafter="model", draft=draft, temperature=0.7))
    model, fed = chat.models.session.draft_model, []
    forward = model.forward
    monkeypatch.setattr(
        model, "forward", lambda tokens, **options: fed.append(len(tokens)) or forward(tokens, **options)
    )
    sea = "tell me of the sea " * 8
    ask(chat, sea)
    assert max(fed) > 60
    fed.clear()
    for _ in range(2):
        ask(chat, sea, is_again=True)
    chat.models.set("temperature", "0.9")
    ask(chat, sea, is_again=True)
    ask(chat, "def f(x):\n    return x;\n")
    assert 0 < max(fed) < 60
