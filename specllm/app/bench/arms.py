"""What a benchmark compares and what it gets: arms, the prompts they answer, and one arm's answer to one of them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Self

from specllm.app.prompts.reading import BenchPrompt
from specllm.config import DRAFTERS, DraftConfig
from specllm.decoding.metrics import Metrics
from specllm.decoding.protocols import Round, Token
from specllm.errors import ConfigError
from specllm.runtime.grammar import GrammarConstraint

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
    constraint: GrammarConstraint | None = None  # what the answer must look like; each answer follows one of its own
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
