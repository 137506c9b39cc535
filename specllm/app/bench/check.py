"""Whether every arm said what plain decoding says, and if not, whether that is a near tie or a defect.

llama.cpp's kernels differ with the width of a block, so logits do a little too, and two tokens that are nearly equally
likely can change places. Anything else is a bug.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from specllm.app.bench.arms import BASELINE, Case, Sample
from specllm.app.bench.runner import Runner
from specllm.decoding.protocols import Token
from specllm.decoding.sampling import KeyedSampler
from specllm.runtime.vocab import Vocab

# Logits near the top differ by up to 0.2 between block widths, and only ties of 0.14 or less flipped in 64 positions (default
# pair, widths 2 to 64). Further down a small model's gap went from 0.32 at widths 1 to 3 to nothing at 5.
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
    # Nats from the likeliest token to the less likely one of the two, computed anew behind the text that both have:
    gap: float | None  # token by token
    gap_in_block: float | None  # with the block that the arm fed there

    @property
    def kind(self) -> Literal["near tie", "defect"]:
        """A near tie where one of the two forwards says so: neither had anything to do with what was drafted before."""
        gaps = [gap for gap in (self.gap, self.gap_in_block) if gap is not None]
        return "near tie" if gaps and min(gaps) < NEAR_TIE else "defect"

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
            "gap_in_block": self.gap_in_block,
            "kind": self.kind,
        }


def differences(runner: Runner, case: Case, samples: Sequence[Sample]) -> Iterator[Difference]:
    """The first difference of each answer to a prompt from plain decoding's first one, if there is any."""
    reference = next((sample for sample in samples if sample.arm == BASELINE), None)
    if reference is None:
        return
    for sample in samples:
        ours, theirs = reference.tokens, sample.tokens
        if ours == theirs:
            continue
        pairs = enumerate(zip(ours, theirs, strict=False))
        position = next((i for i, (a, b) in pairs if a != b), min(len(ours), len(theirs)))
        plain, other = _at(ours, position), _at(theirs, position)
        gaps: list[float | None] = [None, None]
        if plain is not None and other is not None:
            begin, draft = _block(sample, position)
            gaps = [_gap(runner, case, ours[:position], start, block, (plain, other))
                    for start, block in ((position, ()), (begin, draft))]  # fmt: skip
        yield Difference(sample.prompt_id, sample.arm, sample.run, position, plain, other, *gaps)


def _block(sample: Sample, position: int) -> tuple[int, tuple[Token, ...]]:
    """Where in the answer the round began that committed its token at `position`, and what it drafted."""
    begin = 0
    for round in sample.rounds:
        if begin + len(round.tokens) > position:
            return begin, round.draft.tokens
        begin += len(round.tokens)
    raise ValueError(f"the answer of {sample.arm} has no token {position}")


def _gap(
    runner: Runner,
    case: Case,
    answer: Sequence[Token],
    begin: int,
    draft: Sequence[Token],
    candidates: tuple[Token, Token],
) -> float:
    """How far the less likely candidate is below the likeliest token behind prompt and answer: of the answer, tokens up to
    `begin` are fed one by one, as plain decoding does, and then the last one of these and `draft` in one block."""
    session = runner.lanes[0].session
    runner.read(session, case.tokens)
    context, n_fed = [*case.tokens, *answer], len(case.tokens) + begin
    for token in context[len(case.tokens) - 1 : n_fed - 1]:
        session.target.forward([token])
    rows = session.target.forward([context[n_fed - 1], *draft])
    constraint = case.constraint.another() if case.constraint else None
    if constraint is not None:
        constraint.begin(len(case.tokens))
    row = KeyedSampler(runner.sampling, constraint).allowed(rows[len(answer) - begin], context)
    session.context = []  # what is cached is of no use to the next prompt
    return float(row.max() - min(row[token] for token in candidates))


def _at(tokens: Sequence[Token], position: int) -> Token | None:
    return tokens[position] if position < len(tokens) else None
