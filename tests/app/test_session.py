"""A session over several answers: what is reused, what is forgotten, and what Ctrl-C leaves behind."""

from __future__ import annotations

import pytest

from specllm.app.generation import Generation, Session
from specllm.config import GenerateConfig
from specllm.decoding.sampling import KeyedSampler
from tests.app.sessions import ARCHITECTURES, DRAFTERS, GREEDY, rounds_of, run


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("drafter", DRAFTERS)
def test_a_second_turn_reads_only_what_is_new(make_session, prompt, architecture, drafter):
    """Fault 18."""
    session = make_session(architecture, drafter)
    for stop in ((), ("e",)):
        run(session, prompt, k=5, n=30, stop=stop)
        assert session.target.n_past == len(session.context) - 1
        longer = [*session.context, *prompt[:20]]
        fresh = run(make_session(architecture), longer).tokens
        n_cached = session.target.n_past
        second = run(session, longer, k=5)
        assert second.metrics.n_reused == n_cached
        assert second.tokens == fresh


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("drafter", ["close model", "target itself"])
def test_the_draft_model_reads_only_what_is_new_too(make_session, prompt, architecture, drafter, monkeypatch):
    session = make_session(architecture, drafter)
    run(session, prompt, k=5, n=30)
    longer = [*session.context, *prompt[:20]]
    fresh = run(make_session(architecture), longer)
    model, fed = session.draft_model, []
    forward = model.forward

    def feed(tokens, **options):
        fed.append(list(tokens))
        return forward(tokens, **options)

    monkeypatch.setattr(model, "forward", feed)
    assert run(session, longer, k=5).tokens == fresh.tokens
    assert fed[0][-20:] == prompt[:20]
    assert len(fed[0]) <= 20 + 5 + 1  # of the last answer, no more than was drafted and rejected at its end


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("n_shared", [0, 1, 30])
def test_another_prompt_reuses_what_it_shares_and_forgets_the_rest(make_session, prompt, architecture, n_shared):
    other = [*prompt[:n_shared], 100, *prompt[40:70]]
    session = make_session(architecture, "target itself")
    run(session, prompt, k=5)
    generation = run(session, other, k=5)
    assert generation.metrics.n_reused == n_shared
    assert generation.tokens == run(make_session(architecture), other).tokens


def test_the_same_prompt_again_reads_only_its_last_token(make_session, prompt):
    session = make_session(drafter="lookup")
    first = run(session, prompt, k=5).tokens
    again = run(session, prompt, k=5)
    assert again.metrics.n_reused == len(prompt) - 1
    assert again.tokens == first


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("drafter", [name for name in DRAFTERS if name != "auto"])  # that one keeps what it learned
def test_nothing_of_a_long_request_leaks_into_the_next(make_session, prompt, architecture, drafter):
    """Fault 6: drafts and rounds, not only tokens, are those of a fresh session."""
    long, short = (prompt * 10)[:300], prompt[:30]
    used, fresh = make_session(architecture, drafter), make_session(architecture, drafter)
    run(used, long, k=6)
    of_both = []
    for session in (used, fresh):
        rounds = rounds_of(session.generate(short, KeyedSampler(GREEDY), 6, GenerateConfig(max_tokens=60)))
        of_both.append([(round.tokens, round.draft) for round in rounds])
    assert of_both[0] == of_both[1]


# ---- Ctrl-C ----------------------------------------------------------------------------------------------------------


class Interrupting:
    """Calls through to `function` and raises KeyboardInterrupt at its n-th call, before or after what it does."""

    def __init__(self, function, at_call: int, *, after: bool = False) -> None:
        self.function, self.calls_left, self.after = function, at_call, after

    def __call__(self, *arguments, **keywords):
        self.calls_left -= 1
        if self.calls_left == 0 and not self.after:
            raise KeyboardInterrupt
        result = self.function(*arguments, **keywords)
        if self.calls_left == 0:
            raise KeyboardInterrupt
        return result


def interrupted_turn(session: Session, prompt: list[int], place: str, at_call: int, monkeypatch) -> Generation:
    """A turn that Ctrl-C ends in the given place of some round."""
    sampler = KeyedSampler(GREEDY)
    generation = session.generate(prompt, sampler, 4, GenerateConfig(max_tokens=60))
    steps = iter(generation)
    for _ in range(4):
        next(steps)  # the prefill and some rounds
    with monkeypatch.context() as patch:
        owner, name, after = {
            "draft": (session.drafter, "propose", False),
            "end of draft": (session.drafter, "propose", True),
            "draft forward": (session.draft_model, "forward", False),
            "verify": (session.target, "forward", False),
            "end of verify": (session.target, "forward", True),
            "commit": (sampler, "pick", False),
            "end of commit": (sampler, "pick", True),
            "rollback": (session.target, "rollback", False),
            "end of rollback": (session.target, "rollback", True),
            "observe": (session.drafter, "observe", False),
            "print": (None, None, None),
        }[place]
        if owner is not None:
            patch.setattr(owner, name, Interrupting(getattr(owner, name), at_call, after=after))
            for _ in steps:
                pass
    if place == "print":
        generation.interrupt()
    assert generation.finish_reason == "interrupted"
    return generation


PLACES = [
    "draft", "end of draft", "draft forward", "verify", "end of verify", "commit", "end of commit", "rollback",
    "end of rollback", "observe", "print",
]  # fmt: skip


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("place", PLACES)
def test_after_ctrl_c_anywhere_the_next_turn_is_that_of_a_fresh_process(
    make_session, prompt, monkeypatch, architecture, place
):
    """Fault 19."""
    for at_call in (1, 2, 3):
        for goes_on in (True, False):
            session = make_session(architecture, "close model")
            interrupted_turn(session, prompt, place, at_call, monkeypatch)
            following = [*session.context, 100, 101] if goes_on else [*prompt[:30], 100, *prompt[40:60]]
            fresh = run(make_session(architecture), following).tokens
            assert run(session, following, k=4).tokens == fresh, (at_call, goes_on)
            assert session.target.n_past == len(session.context) - 1


def test_ctrl_c_in_the_rollback_to_another_prompt_leaves_no_wrong_cache(make_session, prompt, monkeypatch):
    other = [*prompt[:30], 100, *prompt[40:60]]
    session = make_session()
    run(session, prompt)
    with monkeypatch.context() as patch:
        patch.setattr(session.target, "rollback", Interrupting(session.target.rollback, 1))
        assert run(session, other).finish_reason == "interrupted"
    assert run(session, other).tokens == run(make_session(), other).tokens


def test_ctrl_c_while_the_prompt_is_read_leaves_what_was_read(make_session, prompt, monkeypatch):
    long = prompt * 12
    session = make_session(n_ctx=2048)
    with monkeypatch.context() as patch:
        patch.setattr(session.target, "forward", Interrupting(session.target.forward, 2))
        generation = run(session, long)
    assert (generation.finish_reason, generation.text) == ("interrupted", "")
    again = run(session, long)
    assert again.metrics.n_reused == 512  # one step of the prefill
    assert again.tokens == run(make_session(n_ctx=2048), long).tokens
