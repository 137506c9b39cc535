"""A target made of another one: what is tried, which is kept, and when nothing is."""

from __future__ import annotations

from pathlib import Path

import pytest

from specllm.app import make_target as module
from specllm.app.generate import GenerateRequest, answer
from specllm.app.make_target import Candidate, TargetRequest, make_target
from specllm.app.models import locate
from specllm.config import ContextConfig, DraftConfig, GenerateConfig
from specllm.errors import AnswerIsNo, ConfigError
from specllm.models.gguf_header import read_header

COSTS = {"source": {1: 1.0, 4: 2.5, 16: 5.0}, "q8_0": {1: 1.4, 4: 1.5, 16: 3.0}, "q4_0": {1: 0.9, 4: 1.6, 16: 4.0}}


def quiet(text: str) -> None: ...


@pytest.fixture
def costs(monkeypatch: pytest.MonkeyPatch) -> dict[str, dict[int, float]]:
    """Seconds by width and label, in place of a measurement whose result no test could foresee."""
    table = dict(COSTS)

    def measured(path: Path, label: str, threads: int) -> Candidate:
        return Candidate(label=label, n_bytes=path.stat().st_size, seconds=table[label])

    monkeypatch.setattr(module, "_measured", measured)
    return table


def test_what_is_compared_is_the_best_width_for_drafts_that_are_mostly_right() -> None:
    one = Candidate(label="x", n_bytes=1, seconds={1: 1.0, 2: 1.8, 4: 2.5})
    assert one.plain_tok_per_s == 1.0
    assert one.drafted_tok_per_s == pytest.approx((1 + 0.8 + 0.64 + 0.512) / 2.5)
    assert Candidate(label="steep", n_bytes=1, seconds={1: 1.0, 4: 4.0}).drafted_tok_per_s == 1.0


def test_the_one_that_checks_drafts_fastest_is_kept_under_a_name(llama_gguf: Path, tmp_path: Path, costs) -> None:
    output = tmp_path / "quick.gguf"
    made = make_target(TargetRequest(source=str(llama_gguf), output=output, types=("q4_0", "q8_0")), quiet)
    assert [one.label for one in made.candidates] == ["source", "q4_0", "q8_0"], (
        "q8_0 is slower alone, and faster in blocks"
    )
    assert made.gain == pytest.approx(made.candidates[2].drafted_tok_per_s / made.candidates[0].drafted_tok_per_s)
    assert locate("quick").path == output
    assert not made.is_quantized_twice
    assert read_header(output).weight_bytes < read_header(llama_gguf).weight_bytes
    assert not list(tmp_path.glob(".make-*"))
    request = GenerateRequest(
        prompt="a", target="quick", sampling={}, context=ContextConfig(threads=1), draft=DraftConfig(drafter="none"),
        generate=GenerateConfig(max_tokens=3),
    )  # fmt: skip
    with answer(request) as answered:  # it is a whole model
        answered.finish()
    assert answered.metrics.n_committed == 3


def test_without_a_gain_nothing_is_written(llama_gguf: Path, tmp_path: Path, costs) -> None:
    costs["q4_0"] = {1: 0.5, 4: 3.0, 16: 9.0}  # faster alone only: 2 tok/s, and with drafts no more
    costs["source"] = {1: 1.0, 4: 1.0, 16: 2.0}
    output = tmp_path / "slow.gguf"
    with pytest.raises(AnswerIsNo, match=r"nothing gained: 3\.0 tokens/s with drafts before, 2\.0 after"):
        make_target(TargetRequest(source=str(llama_gguf), output=output, types=("q4_0",)), quiet)
    assert [path for path in tmp_path.iterdir() if path.name != "home"] == []  # there the lock was


def test_a_source_that_was_slow_at_first_is_measured_again(
    llama_gguf: Path, tmp_path: Path, costs, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen, measured = [], module._measured

    def disturbed(path: Path, label: str, threads: int) -> Candidate:
        seen.append(label)
        one = measured(path, label, threads)
        slow = {width: 9 * seconds for width, seconds in one.seconds.items()}
        return Candidate(label=label, n_bytes=1, seconds=slow) if seen == ["source"] else one

    monkeypatch.setattr(module, "_measured", disturbed)
    costs["q4_0"] = costs["source"]
    with pytest.raises(AnswerIsNo):
        make_target(TargetRequest(source=str(llama_gguf), output=tmp_path / "x.gguf", types=("q4_0",)), quiet)


def test_it_is_measured_for_real(llama_gguf: Path) -> None:
    one = module._measured(llama_gguf, "source", 1)
    assert set(module.WIDTHS) <= one.seconds.keys()
    assert all(seconds > 0 for seconds in one.seconds.values())
    assert one.drafted_tok_per_s >= one.plain_tok_per_s


def test_readings_that_cannot_be_are_taken_again(llama_gguf: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A single token that seems to cost more than four of them was measured beside other work."""
    readings = [{1: 9.0, 4: 2.0}, {1: 1.0, 4: 3.0}]
    monkeypatch.setattr(module, "measure_target", lambda model, budget_s: readings.pop(0))
    assert module._measured(llama_gguf, "source", 1).seconds == {1: 1.0, 4: 2.0}
    assert readings == []


def test_where_they_never_can_be_nothing_is_compared(llama_gguf: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "measure_target", lambda model, budget_s: {1: 9.0, 4: 2.0})
    with pytest.raises(AnswerIsNo, match="other work") as error:
        module._measured(llama_gguf, "source", 1)
    assert "again" in error.value.hint


@pytest.mark.parametrize(("n_bytes", "is_told"), [(1000, True), (1890, False), (3560, False)])  # Q4_K, Q8_0, F16
def test_a_source_of_few_bits_is_told(tmp_path: Path, n_bytes: int, is_told: bool) -> None:
    source, made = (Candidate(label="x", n_bytes=n, seconds={1: 1.0}) for n in (n_bytes, 1000))
    whole = module.MadeTarget(name="x", path=tmp_path / "x.gguf", candidates=(source, made))
    assert whole.as_result()["is_quantized_twice"] is is_told


def test_the_sources_own_numbers_make_no_other_target(llama_gguf: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="is the source"):
        make_target(TargetRequest(source=str(llama_gguf), output=tmp_path / "x.gguf", types=()), pytest.fail)
