"""One prompt through every arm of a benchmark: paired, round by round side by side, with cold drafters.

Memory speed drifts by several percent within a minute on shared machines, which is more than many a speed-up. So the arms do
not answer one after the other: whichever has said least so far computes its next round. Plain decoding against itself then
differs by 0.6 % between two answers of 100 tokens (standard deviation), one after the other by 2.9 % (1.5B in Q4_K_M, 2
threads, 30 November 2026). Each answer's time is the sum of its own rounds.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from time import perf_counter
from typing import Protocol, TypeVar

from specllm.app import learned
from specllm.app.bench.arms import Case, Sample
from specllm.app.bench.lanes import Lane
from specllm.app.bench.validation import problem
from specllm.app.drafting import new_acceptance
from specllm.app.generation import Session
from specllm.config import GenerateConfig, SamplingConfig
from specllm.decoding.acceptance import Acceptance
from specllm.decoding.constraint import TimedConstraint
from specllm.decoding.decode import prefill
from specllm.decoding.forced import ForcedSampler
from specllm.decoding.protocols import Round, Sampler, Token
from specllm.decoding.sampling import KeyedSampler
from specllm.drafters.none import NoDrafter


class Advancing(Protocol):
    """An answer in the making."""

    @property
    def n_committed(self) -> int: ...
    def advance(self) -> bool: ...


T = TypeVar("T")
A = TypeVar("A", bound=Advancing)


@dataclass(slots=True)
class Memory:
    """What an arm believes before a prompt: nothing of earlier ones, unless `file` (what answers taught) is given."""

    file: Path | None = None
    _kept: dict[tuple[str, str], dict[str, Acceptance]] = field(default_factory=dict)

    def start(self, arm: str, prompt: str) -> dict[str, Acceptance]:
        kind = learned.kind_of_text(prompt)
        acceptance = new_acceptance(kind)
        if self.file is None:
            return acceptance
        known = self._kept.get((arm, kind))
        if known is None:
            learned.restore(self.file, kind, acceptance)
        else:
            for source, earlier in known.items():
                acceptance[source].restore(earlier.counts(), weight=1.0, most=learned.MOST)
        return acceptance

    def keep(self, arm: str, prompt: str, acceptance: dict[str, Acceptance]) -> None:
        """For the next prompt of its kind; the user's cache is not touched."""
        if self.file is not None:
            self._kept[arm, learned.kind_of_text(prompt)] = acceptance


@dataclass(slots=True)
class Runner:
    """Answers prompts in every lane."""

    lanes: Sequence[Lane]
    sampling: SamplingConfig
    config: GenerateConfig
    memory: Memory = field(default_factory=Memory)
    _turn: int = 0  # which lane begins

    def answers(self, case: Case, n_runs: int) -> Iterator[Sample]:
        """Every arm's answer `n_runs` times, each run beginning with another arm; the prompt is read cold, and only once
        where the target can drop tokens again.

        Raises SpecllmError where the prompt cannot be answered.
        """
        reading_s: list[float] = []
        for run in range(n_runs):
            if not reading_s or not self._can_return:
                reading_s = self._read_everywhere(case.tokens)
            with contextlib.ExitStack() as stack:
                answers = [
                    stack.enter_context(contextlib.closing(_Answer(self, lane, case, run, seconds)))
                    for lane, seconds in zip(self.lanes, reading_s, strict=True)
                ]
                for answer in side_by_side(rotated(answers, self._turn)):
                    yield answer.sample()
            self._turn += 1

    def warm_up(self, case: Case, max_tokens: int) -> None:
        """Pages are mapped, caches filled and buffers allocated; nothing of it is counted or learned."""
        config = replace(self.config, max_tokens=min(max_tokens, self.config.max_tokens))
        for _ in Runner(self.lanes, self.sampling, config).answers(case, 1):
            pass

    def read(self, session: Session, tokens: Sequence[Token]) -> float:
        """The target has read the prompt from an empty cache; returns how many seconds that took."""
        session.drafter = NoDrafter()
        session.generate(tokens, KeyedSampler(self.sampling), 0, self.config)  # refuses what does not fit
        session.context = []
        session.reuse(tokens)
        started = perf_counter()
        for _ in prefill(session.target, session.context):
            pass
        return perf_counter() - started

    @property
    def _can_return(self) -> bool:
        """Whether every lane can go back to the state behind the prompt."""
        return self.lanes[0].session.target.rollback_kind == "trim"

    def _read_everywhere(self, tokens: Sequence[Token]) -> list[float]:
        """The prompt has been read in every lane; returns what each one's reading takes if it is alone."""
        first, *others = (lane.session for lane in self.lanes)
        seconds = [self.read(first, tokens)]
        for session in others:
            if session.target.can_copy_cache:
                session.target.copy_cache(first.target)
                session.context = list(tokens)
                seconds.append(seconds[0])
            else:
                seconds.append(self.read(session, tokens))
        return seconds


class _Answer:
    """One lane's answer to a prompt that it has read, as far as it has come."""

    def __init__(self, runner: Runner, lane: Lane, case: Case, run: int, reading_s: float) -> None:
        self._runner, self._lane, self._case, self._run, self._reading_s = runner, lane, case, run, reading_s
        session, config = lane.session, runner.config
        self._constraint = TimedConstraint(case.constraint.another()) if case.constraint else None
        sampler: Sampler = KeyedSampler(runner.sampling, self._constraint)
        self._acceptance = runner.memory.start(lane.arm.name, case.prompt.prompt)
        session.drafter = replace(
            lane.fresh(),
            sampler=sampler,
            constraint=self._constraint,
            reference=case.prediction,
            acceptance=self._acceptance,
        ).chosen()
        if case.expected is not None:
            sampler = ForcedSampler(sampler, len(case.tokens), case.expected)
            config = replace(config, max_tokens=min(config.max_tokens, len(case.expected)))
        self._generation = session.generate(
            case.tokens, sampler, lane.arm.config.most_drafted, config, self._constraint
        )
        self._steps = iter(self._generation)
        self._rounds: list[Round] = []

    @property
    def n_committed(self) -> int:
        return self._generation.metrics.n_committed

    def advance(self) -> bool:
        """Computes one more step, a round or a part of reading; False once the answer is complete."""
        generation = self._generation
        is_going_on = next(self._steps, None) is not None
        if generation.metrics.n_rounds > len(self._rounds) and generation.last_round is not None:
            self._rounds.append(generation.last_round)
        if generation.finish_reason == "interrupted":
            raise KeyboardInterrupt
        return is_going_on

    def sample(self) -> Sample:
        """What came of it, once it is complete."""
        generation, case, arm = self._generation, self._case, self._lane.arm.name
        self._runner.memory.keep(arm, case.prompt.prompt, self._acceptance)
        # The prompt was read before, and perhaps for all arms together: each one's first token waits for it as if alone.
        generation.metrics.prefill_s += self._reading_s
        generation.metrics.n_reused = 0
        generation.metrics.n_prediction = len(case.prediction)
        found = None if case.schema is None else problem(generation.text, case.schema)
        return Sample(
            case.prompt.id, case.prompt.category, arm, self._run, tuple(generation.tokens), tuple(self._rounds),
            generation.metrics, generation.finish_reason, None if case.schema is None else found is None, found,
            self._constraint.seconds if self._constraint else None,
        )  # fmt: skip

    def close(self) -> None:
        """Ends it, complete or not."""
        self._steps.close()


def side_by_side(answers: Sequence[A]) -> Iterator[A]:
    """Computes all of them, always the next step of one that has said least; yields each as it is complete."""
    going_on = list(answers)
    while going_on:
        behind = min(going_on, key=lambda answer: answer.n_committed)
        if not behind.advance():
            going_on.remove(behind)
            yield behind


def rotated(answers: Sequence[T], n: int) -> list[T]:
    """The answers in their order, beginning with the n-th: where all have said as much, none always goes first."""
    n %= len(answers)
    return [*answers[n:], *answers[:n]]
