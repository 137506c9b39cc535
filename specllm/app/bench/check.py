"""Whether every arm said what plain decoding says, and if not, whether that is a near tie or a defect.

llama.cpp's kernels differ with the width of a block, so logits do a little too, and two tokens that are nearly equally
likely can change places. Anything else is a bug.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from specllm.app.bench.arms import BASELINE, Runner, Sample
from specllm.decoding.protocols import Token
from specllm.decoding.sampling import KeyedSampler
from specllm.runtime.vocab import Vocab

# Logits near the top differ by up to 0.2 between block widths, and only ties of 0.14 or less flipped in 64 positions (default
# pair, widths 2 to 64).
NEAR_TIE = 0.3


@dataclass(frozen=True, slots=True)
class Difference:
    """The first token at which an answer is not plain decoding's."""

    prompt_id: str
    arm: str
    run: int
    position: int  # in the answer, from 0
    plain: Token | None  # None: the answer had ended
    other: Token | None
    gap: float | None  # nats from the likeliest token to the less likely one of the two, at width 1

    @property
    def kind(self) -> Literal["near tie", "defect"]:
        return "near tie" if self.gap is not None and self.gap < NEAR_TIE else "defect"

    def as_dict(self, vocab: Vocab) -> dict[str, object]:
        def text(token: Token | None) -> str | None:
            return None if token is None else vocab.piece(token, shows_special=True).decode("utf-8", "replace")

        return {
            "prompt": self.prompt_id,
            "arm": self.arm,
            "run": self.run,
            "position": self.position,
            "plain_token": self.plain,
            "plain_text": text(self.plain),
            "arm_token": self.other,
            "arm_text": text(self.other),
            "gap": self.gap,
            "kind": self.kind,
        }


def differences(
    runner: Runner, sampler: KeyedSampler, prompt: Sequence[Token], samples: Sequence[Sample]
) -> Iterator[Difference]:
    """The first difference of each answer to `prompt` from plain decoding's first one, if there is any."""
    reference = next((sample for sample in samples if sample.arm == BASELINE), None)
    if reference is None:
        return
    for sample in samples:
        ours, theirs = reference.tokens, sample.tokens
        if ours == theirs:
            continue
        pairs = enumerate(zip(ours, theirs, strict=False))
        position = next((i for i, (a, b) in pairs if a != b), min(len(ours), len(theirs)))
        gap, plain, other = None, _at(ours, position), _at(theirs, position)
        if plain is not None and other is not None:
            gap = gap_at_width_1(runner, sampler, prompt, ours[:position], (plain, other))
        yield Difference(sample.prompt_id, sample.arm, sample.run, position, plain, other, gap)


def gap_at_width_1(
    runner: Runner,
    sampler: KeyedSampler,
    prompt: Sequence[Token],
    answer: Sequence[Token],
    candidates: tuple[Token, Token],
) -> float:
    """How far the less likely candidate is below the likeliest token behind prompt and answer, fed one by one as plain
    decoding does."""
    runner.read(prompt)
    context = [*prompt, *answer]
    target = runner.session.target
    for token in context[len(prompt) - 1 :]:
        logits = target.forward([token])
    runner.session.context = context  # all of it is cached, its last token too: the next prompt starts anew anyway
    row = sampler.allowed(logits[0], context)
    return float(row.max() - min(row[token] for token in candidates))


def _at(tokens: Sequence[Token], position: int) -> Token | None:
    return tokens[position] if position < len(tokens) else None
