"""`--exact` and `--logprobs` on tiny real models: the same text and the same numbers as plain decoding."""

from __future__ import annotations

import numpy as np
import pytest

from specllm.app.generate import GenerateRequest
from specllm.app.generate import answer as answering
from specllm.config import ContextConfig, DraftConfig, GenerateConfig, SamplingConfig
from specllm.decoding.logprobs import LogprobSampler
from specllm.decoding.sampling import KeyedSampler
from specllm.runtime.llama import LlamaModel
from tests.app.sessions import ARCHITECTURES, GREEDY, rounds_of, run

SAMPLED = SamplingConfig(temperature=0.9, repeat_penalty=1.2, seed=4)


def kernels(monkeypatch: pytest.MonkeyPatch, limit: int) -> list[int]:
    """llama.cpp as it is where blocks of up to `limit` tokens are computed like single ones, and wider ones quite differently;
    the widths that are asked for."""
    forward, widths = LlamaModel.forward, []

    def limited(self, tokens, *, logits="all"):
        if logits != "all":
            return forward(self, tokens, logits=logits)
        widths.append(len(tokens))
        if len(tokens) <= limit:
            return np.concatenate([forward(self, [token]).copy() for token in tokens])
        return np.roll(forward(self, tokens), 1, axis=1)

    monkeypatch.setattr(LlamaModel, "forward", limited)
    return widths


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("drafter", ["none", "lookup", "close model", "target itself", "auto"])
def test_no_block_is_wider_than_what_computes_the_same(make_session, prompt, monkeypatch, architecture, drafter):
    plain = run(make_session(architecture), prompt).tokens
    widths = kernels(monkeypatch, 3)
    session = make_session(architecture, drafter)
    session.is_exact = True
    generation = session.generate(prompt, KeyedSampler(GREEDY), 9, GenerateConfig(max_tokens=40))
    rounds = rounds_of(generation)
    assert generation.tokens == plain
    assert max(round.width for round in rounds) <= 3
    assert session.target.n_past == len(session.context) - 1
    if drafter == "target itself":  # whether `auto` drafts at all is a question of costs, and these kernels' are odd
        assert 3 in {round.width for round in rounds}
        assert session.exactness()["width_by_cells"] == {"256": 3}
        assert max(widths) == 4  # the step behind it was tried, and none after that


def test_a_second_answer_measures_nothing_again(make_session, prompt, monkeypatch):
    widths = kernels(monkeypatch, 16)
    session = make_session(drafter="target itself")
    session.is_exact = True
    first = run(session, prompt, k=7).tokens
    n_measured = len(widths)
    assert run(session, prompt, k=7).tokens == first
    assert widths[n_measured:] == [8] * 5  # 40 tokens


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("sampling", [GREEDY, SAMPLED])
@pytest.mark.parametrize("drafter", ["lookup", "close model", "target itself", "auto"])
def test_log_probabilities_are_those_of_plain_decoding(make_session, prompt, architecture, sampling, drafter):
    """Fault 24."""
    found = []
    for session, k in ((make_session(architecture), 0), (make_session(architecture, drafter, sampling), 6)):
        sampler = LogprobSampler(KeyedSampler(sampling), 4)
        rounds_of(session.generate(prompt, sampler, k, GenerateConfig(max_tokens=30)))
        found.append(sampler.kept(len(prompt), len(session.context)))
    plain, drafted = found
    assert [one.token for one in plain] == [one.token for one in drafted]
    for ours, theirs in zip(plain, drafted, strict=True):
        for one, other in ((ours.raw, theirs.raw), (ours.sampled, theirs.sampled)):
            assert one.logprob == pytest.approx(other.logprob, abs=1e-3)
            assert dict(one.best) == pytest.approx(dict(other.best), abs=1e-3)
        assert ours.raw.logprob < 0


def test_a_result_says_what_exactness_allowed_and_has_a_record_for_every_token(llama_gguf, prompt):
    with answering(
        GenerateRequest(
            prompt="def it(self): return self.it", target=str(llama_gguf), sampling={"temperature": 0.0},
            context=ContextConfig(threads=1, kv_type="f32", flash_attention="off"),
            draft=DraftConfig(drafter="lookup", draft_length=4, is_exact=True),
            generate=GenerateConfig(max_tokens=24, is_raw=True, logprobs=2),
        )
    ) as answer:  # fmt: skip
        answer.finish()
    result = answer.result()
    assert set(result["exact"]) == {"width_by_cells", "measuring_s"}
    assert "exact: " in result["strategy"]
    assert answer.plan.params()["is_exact"] is True
    assert len(result["logprobs"]) == answer.metrics.n_committed
    for record in result["logprobs"]:
        assert set(record) == {"bytes", "token", "text", "raw", "sampled"}
        assert record["raw"]["best"][0]["token"] == record["token"]  # greedy
        assert [len(record[name]["best"]) for name in ("raw", "sampled")] == [2, 1]
    assert "".join(record["text"] for record in result["logprobs"]).startswith(result["text"][:5])
