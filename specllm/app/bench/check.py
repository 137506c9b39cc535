"""Whether every arm said what plain decoding says, and if not, whether that is a near tie or a defect.

llama.cpp's kernels differ with the width of a block, so logits do a little too, and two tokens that are nearly equally
likely can change places. Anything else is a bug; with specllm's kernels, which give a row the same bits at every width, so is
that.
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
    gap_in_blocks: float | None  # in the blocks that the arm fed, without what was rejected in earlier ones
    is_width_independent: bool = False  # the target's logits have the same bits at every width

    @property
    def kind(self) -> Literal["near tie", "defect"]:
        """A near tie where one of the two ways to compute it says so: in neither was anything rejected before."""
        if self.is_width_independent:
            return "defect"
        gaps = [gap for gap in (self.gap, self.gap_in_blocks) if gap is not None]
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
            "gap_in_blocks": self.gap_in_blocks,
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
            widths, draft = _blocks(sample, position)
            candidates = plain, other
            gaps = [_gap(runner, case, ours[:position], (1,) * position, (), candidates),
                    _gap(runner, case, ours[:position], widths, draft, candidates)]  # fmt: skip
        yield Difference(
            sample.prompt_id, sample.arm, sample.run, position, plain, other, gaps[0], gaps[1],
            is_width_independent=runner.lanes[0].session.target.is_width_independent,
        )  # fmt: skip


def _blocks(sample: Sample, position: int) -> tuple[list[int], tuple[Token, ...]]:
    """How many tokens the rounds before the one that committed the answer's token at `position` committed, and what that one
    drafted."""
    widths: list[int] = []
    for round in sample.rounds:
        if sum(widths) + len(round.tokens) > position:
            return widths, round.draft.tokens
        widths.append(len(round.tokens))
    raise ValueError(f"the answer of {sample.arm} has no token {position}")


def _gap(
    runner: Runner,
    case: Case,
    answer: Sequence[Token],
    widths: Sequence[int],
    draft: Sequence[Token],
    candidates: tuple[Token, Token],
) -> float:
    """How far the less likely candidate is below the likeliest token behind prompt and answer, fed in blocks of `widths`, and
    then one token with `draft`. Nothing is ever taken back, so what a rollback did wrong shows as a gap."""
    session, context = runner.lanes[0].session, [*case.tokens, *answer]
    runner.read(session, case.tokens)
    n_fed = len(case.tokens) - 1
    for width in widths:
        session.target.forward(context[n_fed : n_fed + width])
        n_fed += width
    rows = session.target.forward([context[n_fed], *draft])
    constraint = case.constraint.another() if case.constraint else None
    if constraint is not None:
        constraint.begin(len(case.tokens))
    row = KeyedSampler(runner.sampling, constraint).allowed(rows[len(answer) - sum(widths)], context)
    session.context = []  # what is cached is of no use to the next prompt
    return float(row.max() - min(row[token] for token in candidates))


def _at(tokens: Sequence[Token], position: int) -> Token | None:
    return tokens[position] if position < len(tokens) else None
