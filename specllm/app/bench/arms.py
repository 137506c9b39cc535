"""One prompt through every arm of a benchmark, on one loaded model: paired, interleaved, with cold drafters."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from time import perf_counter
from typing import Self

from specllm.app import learned
from specllm.app.bench.validation import problem
from specllm.app.drafting import Drafting, new_acceptance
from specllm.app.generation import Session
from specllm.app.prompts.reading import BenchPrompt
from specllm.config import DRAFTERS, DraftConfig, GenerateConfig
from specllm.decoding.acceptance import Acceptance
from specllm.decoding.constraint import TimedConstraint
from specllm.decoding.decode import prefill
from specllm.decoding.forced import ForcedSampler
from specllm.decoding.metrics import Metrics
from specllm.decoding.protocols import Drafter, Round, Sampler, Token
from specllm.decoding.sampling import KeyedSampler
from specllm.drafters.none import NoDrafter
from specllm.errors import ConfigError

BASELINE = "none"
EXACT = "+exact"
_FIGURES = (  # that a sample is recorded with
    "n_prompt", "n_committed", "n_rounds", "n_drafted", "n_accepted", "prefill_s", "decode_s", "tpot_s", "ttft_s",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Arm:
    """A drafter under test, its length chosen round by round or fixed: `auto`, `model:4`; with `+exact` only in blocks that
    compute what single tokens do."""

    name: str
    config: DraftConfig

    @classmethod
    def parse(cls, text: str, base: DraftConfig) -> Self:
        """From `NAME` or `NAME:K`, perhaps with `+exact` behind it; raises ConfigError."""
        is_exact = text.strip().endswith(EXACT)
        drafter, colon, length = text.strip().removesuffix(EXACT).partition(":")
        hint = f"use {', '.join(DRAFTERS)}, or one of them with a length, e.g. model:4, or exact: auto{EXACT}"
        if drafter not in DRAFTERS or (colon and (not length.isdecimal() or int(length) < 1 or drafter == BASELINE)):
            raise ConfigError(f"no arm {text.strip()!r}", hint)
        chosen = replace(base, drafter=drafter, draft_length=int(length) if colon else None, is_exact=is_exact)
        return cls(f"{drafter}{colon}{int(length) if colon else ''}{EXACT if is_exact else ''}", chosen)

    def described(self) -> dict[str, object]:
        """For the parameters of a result."""
        return {
            "name": self.name,
            "drafter": self.config.drafter,
            "draft_length": 0 if self.name == BASELINE else self.config.draft_length,
            "most_drafted": self.config.most_drafted,
            "is_controlled": self.config.is_controlled,
            "is_exact": self.config.is_exact,
        }


@dataclass(frozen=True, slots=True)
class Case:
    """A prompt as the model reads it, what its answer may resemble, and what it is made to answer, if anything."""

    prompt: BenchPrompt
    tokens: tuple[Token, ...]
    expected: tuple[Token, ...] | None = None
    prediction: tuple[Token, ...] = ()
    constraint: TimedConstraint | None = None  # what the answer must look like
    schema: str | None = None  # that the answer is validated against


@dataclass(frozen=True, slots=True)
class Sample:
    """One answer of one arm."""

    prompt_id: str
    category: str
    arm: str
    run: int  # from 0; answers of one run stand beside each other in time
    tokens: tuple[Token, ...]
    rounds: tuple[Round, ...]
    metrics: Metrics  # with the prompt's cold prefill
    finish_reason: str | None
    is_valid: bool | None = None  # against its schema; None where there is none
    problem: str | None = None  # why not
    constraint_s: float | None = None  # of the decode time, spent on asking what may follow; None where anything may

    def as_dict(self) -> dict[str, object]:
        figures = self.metrics.as_dict()
        return {
            "prompt": self.prompt_id,
            "category": self.category,
            "arm": self.arm,
            "run": self.run,
            "finish_reason": self.finish_reason,
            "is_valid": self.is_valid,
            "problem": self.problem,
            "constraint_s": self.constraint_s,
            **{name: figures[name] for name in _FIGURES},
        }


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
    """Answers prompts with every arm on one session."""

    session: Session
    drafting: Drafting
    arms: Sequence[Arm]
    sampler: Sampler
    config: GenerateConfig
    memory: Memory = field(default_factory=Memory)
    _turn: int = 0  # which arm begins

    def answers(self, case: Case, n_runs: int) -> Iterator[Sample]:
        """Every arm's answer `n_runs` times, each run beginning with another arm; the prompt is read cold,
        and only once where the target can drop tokens again.

        Raises SpecllmError where the prompt cannot be answered.
        """
        can_return = self.session.target.rollback_kind == "trim"  # to the state behind the prompt
        prefill_s = None
        for run in range(n_runs):
            for arm in rotated(self.arms, self._turn):
                if prefill_s is None or not can_return:
                    prefill_s = self.read(case.tokens)
                yield self._answer(arm, case, run, prefill_s)
            self._turn += 1

    def warm_up(self, case: Case, max_tokens: int) -> None:
        """Pages are mapped, caches filled and buffers allocated; nothing of it is counted or learned."""
        short = replace(self.config, max_tokens=min(max_tokens, self.config.max_tokens))
        runner = Runner(self.session, self.drafting, self.arms, self.sampler, short)
        for _ in runner.answers(case, 1):
            pass

    def sampler_of(self, case: Case) -> Sampler:
        """What picks the answers to it."""
        if case.constraint is None:
            return self.sampler
        assert isinstance(self.sampler, KeyedSampler)
        return KeyedSampler(self.sampler.config, case.constraint)

    def read(self, tokens: Sequence[Token]) -> float:
        """The target has read the prompt from an empty cache; returns how many seconds that took."""
        session = self.session
        session.drafter = NoDrafter()
        session.generate(tokens, self.sampler, 0, self.config)  # refuses what does not fit, before any work
        session.context = []
        session.reuse(tokens)
        started = perf_counter()
        for _ in prefill(session.target, session.context):
            pass
        return perf_counter() - started

    def _answer(self, arm: Arm, case: Case, run: int, prefill_s: float) -> Sample:
        session, config, sampler = self.session, self.config, self.sampler_of(case)
        acceptance = self.memory.start(arm.name, case.prompt.prompt)
        session.drafter, session.is_exact = self._fresh_drafter(arm, case, acceptance), arm.config.is_exact
        if case.expected is not None:
            sampler = ForcedSampler(sampler, len(case.tokens), case.expected)
            config = replace(config, max_tokens=min(config.max_tokens, len(case.expected)))
        constraint = case.constraint
        generation = session.generate(case.tokens, sampler, arm.config.most_drafted, config, constraint)
        asked_s = constraint.seconds if constraint else 0.0
        rounds: list[Round] = []
        for _ in generation:
            if generation.metrics.n_rounds > len(rounds) and generation.last_round is not None:
                rounds.append(generation.last_round)
        if generation.finish_reason == "interrupted":
            raise KeyboardInterrupt
        self.memory.keep(arm.name, case.prompt.prompt, acceptance)
        # The prompt was read for all arms together: each one's first token waits for it as if alone.
        generation.metrics.prefill_s += prefill_s
        generation.metrics.n_reused = 0
        generation.metrics.n_prediction = len(case.prediction)
        found = None if case.schema is None else problem(generation.text, case.schema)
        return Sample(
            case.prompt.id, case.prompt.category, arm.name, run, tuple(generation.tokens), tuple(rounds),
            generation.metrics, generation.finish_reason, None if case.schema is None else found is None, found,
            constraint.seconds - asked_s if constraint else None,
        )  # fmt: skip

    def _fresh_drafter(self, arm: Arm, case: Case, acceptance: dict[str, Acceptance]) -> Drafter:
        """Begins from the calibration, not from what earlier answers made of it."""
        drafting = self.drafting
        return replace(
            drafting,
            config=arm.config,
            sampler=self.sampler_of(case),
            constraint=case.constraint,
            reference=case.prediction,
            acceptance=acceptance,
            target_cost=copy.deepcopy(drafting.target_cost),
            draft_cost=copy.deepcopy(drafting.draft_cost),
        ).chosen()


def rotated(arms: Sequence[Arm], n: int) -> list[Arm]:
    """The arms in their order, beginning with the n-th: none always runs first, or behind the same one."""
    n %= len(arms)
    return [*arms[n:], *arms[:n]]
