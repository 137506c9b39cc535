"""Every figure specllm shows, as a fold over rounds. One function each, one meaning each (README, "Words")."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from specllm.decoding.protocols import Round

PREDICTION_SOURCE = "reference"  # the drafter that proposes from a prediction
RECENT_S = 1.0  # "now": long enough to hold a few rounds, short enough to follow a change of the text


def _ratio(numerator: float, denominator: float) -> float | None:
    return numerator / denominator if denominator else None


@dataclass(slots=True)
class Metrics:
    """What happened so far in one generation. `None` means "not known yet", never 0 or NaN.

    Of a prediction (a text given to draft from), every drafted token is either accepted or rejected, so the two add up to what
    was drafted from it. Accepted ones are in the answer. The others were in the target's forward for nothing: the target
    disagreed with them or with one before them, or the answer ended there. A token that fails in two rounds counts twice.
    """

    n_prompt: int = 0  # prompt tokens
    n_reused: int = 0  # of them, already in the KV cache
    n_prediction: int = 0  # tokens of a text that was given to draft from
    prefill_s: float = 0.0
    n_committed: int = 0
    n_rounds: int = 0  # target forwards of the decode loop
    n_drafted: int = 0
    n_accepted: int = 0
    n_drafting_rounds: int = 0  # rounds with a draft of at least one token
    n_zero_accept: int = 0  # of them, with nothing accepted
    draft_s: float = 0.0
    verify_s: float = 0.0
    rest_s: float = 0.0
    n_committed_first: int = 0  # tokens of the first round, which arrive together with the first token
    first_round_s: float = 0.0
    plain_s: float = 0.0  # what plain decoding would have taken for the tokens after the first round; 0: not known
    reached_by_position: Counter[int] = field(default_factory=Counter)  # position was drafted, reached and judged
    accepted_by_position: Counter[int] = field(default_factory=Counter)
    rounds_by_source: Counter[str] = field(default_factory=Counter)
    drafted_by_source: Counter[str] = field(default_factory=Counter)
    accepted_by_source: Counter[str] = field(default_factory=Counter)

    def add(self, round: Round) -> None:
        """Counts one round."""
        n_draft, n_accepted = len(round.draft.tokens), round.n_accepted
        seconds = round.draft_s + round.verify_s + round.rest_s
        if not self.n_rounds:
            self.n_committed_first, self.first_round_s = len(round.tokens), seconds
        else:
            self.plain_s += round.plain_s or 0.0
        self.n_rounds += 1
        self.n_committed += len(round.tokens)
        self.n_drafted += n_draft
        self.n_accepted += n_accepted
        self.draft_s += round.draft_s
        self.verify_s += round.verify_s
        self.rest_s += round.rest_s
        self.rounds_by_source[round.draft.source if n_draft else "none"] += 1
        if not n_draft:
            return
        self.n_drafting_rounds += 1
        self.n_zero_accept += n_accepted == 0
        sources = round.draft.sources
        self.drafted_by_source.update(sources)
        self.accepted_by_source.update(dict.fromkeys(sources, 0))
        self.accepted_by_source.update(sources[:n_accepted])
        for i in range(n_accepted):
            self.reached_by_position[i] += 1
            self.accepted_by_position[i] += 1
        if round.is_rejected:
            self.reached_by_position[n_accepted] += 1

    @property
    def decode_s(self) -> float:
        return self.draft_s + self.verify_s + self.rest_s

    @property
    def acceptance_rate(self) -> float | None:
        """Accepted / drafted."""
        return _ratio(self.n_accepted, self.n_drafted)

    @property
    def acceptance_by_position(self) -> list[float]:
        """Accepted at i / rounds in which position i was reached and drafted; as far as any round reached."""
        n = max(self.reached_by_position, default=-1) + 1
        return [self.accepted_by_position[i] / self.reached_by_position[i] for i in range(n)]

    @property
    def mean_accepted_draft(self) -> float | None:
        """Accepted / rounds that drafted."""
        return _ratio(self.n_accepted, self.n_drafting_rounds)

    @property
    def tokens_per_forward(self) -> float | None:
        """Committed / target forwards; plain decoding is 1.00."""
        return _ratio(self.n_committed, self.n_rounds)

    @property
    def zero_accept_share(self) -> float | None:
        """Rounds that drafted and accepted nothing / rounds that drafted."""
        return _ratio(self.n_zero_accept, self.n_drafting_rounds)

    @property
    def n_prediction_accepted(self) -> int | None:
        """Tokens of the answer that were accepted from the prediction; None where none was given."""
        return self.accepted_by_source[PREDICTION_SOURCE] if self.n_prediction else None

    @property
    def n_prediction_rejected(self) -> int | None:
        """Tokens drafted from the prediction that were not accepted; None where none was given."""
        accepted = self.n_prediction_accepted
        return None if accepted is None else self.drafted_by_source[PREDICTION_SOURCE] - accepted

    @property
    def ttft_s(self) -> float | None:
        """From submission to the first token on screen: prefill and the first round."""
        return self.prefill_s + self.first_round_s if self.n_rounds else None

    @property
    def prefill_tok_per_s(self) -> float | None:
        n_fed = self.n_prompt - self.n_reused - 1  # the last prompt token is fed by the first round
        return _ratio(n_fed, self.prefill_s) if n_fed > 0 else None

    @property
    def decode_tok_per_s(self) -> float | None:
        """Tokens after the first round / seconds after the first round: (n - 1) / (t_last - t_first) where plain.

        Tokens of one round arrive at one time, so what came with the first token counts on neither side.
        """
        return _ratio(self.n_committed - self.n_committed_first, self.decode_s - self.first_round_s)

    @property
    def plain_tok_per_s(self) -> float | None:
        """The speed at which plain decoding would have made the same tokens, from the same point on.

        A round without a draft was plain decoding and counts as long as its forward took. Each token of any other round
        counts as one forward of width 1, as measured on this machine and corrected by the rounds of this answer.
        """
        return _ratio(self.n_committed - self.n_committed_first, self.plain_s)

    @property
    def speedup_over_plain(self) -> float | None:
        """Decode speed / plain decode speed."""
        speed, plain = self.decode_tok_per_s, self.plain_tok_per_s
        return speed / plain if speed and plain else None

    @property
    def tpot_s(self) -> float | None:
        """Seconds per output token, the inverse of the decode speed."""
        speed = self.decode_tok_per_s
        return 1 / speed if speed else None

    def as_dict(self) -> dict[str, object]:
        """All figures under their JSON names."""
        return {
            "n_prompt": self.n_prompt,
            "n_reused": self.n_reused,
            "n_prefilled": self.n_prompt - self.n_reused,
            "n_committed": self.n_committed,
            "n_rounds": self.n_rounds,
            "n_drafted": self.n_drafted,
            "n_accepted": self.n_accepted,
            "n_drafting_rounds": self.n_drafting_rounds,
            "acceptance_rate": self.acceptance_rate,
            "acceptance_by_position": self.acceptance_by_position,
            "mean_accepted_draft": self.mean_accepted_draft,
            "tokens_per_forward": self.tokens_per_forward,
            "zero_accept_share": self.zero_accept_share,
            "rounds_by_source": dict(self.rounds_by_source),
            "accepted_by_source": dict(self.accepted_by_source),
            "n_prediction_accepted": self.n_prediction_accepted,
            "n_prediction_rejected": self.n_prediction_rejected,
            "ttft_s": self.ttft_s,
            "prefill_s": self.prefill_s,
            "prefill_tok_per_s": self.prefill_tok_per_s,
            "decode_s": self.decode_s,
            "decode_tok_per_s": self.decode_tok_per_s,
            "tpot_s": self.tpot_s,
            "plain_tok_per_s": self.plain_tok_per_s,
            "speedup_over_plain": self.speedup_over_plain,
            "draft_s": self.draft_s,
            "verify_s": self.verify_s,
            "rest_s": self.rest_s,
        }


def recent_tok_per_s(rounds: Sequence[Round]) -> float | None:
    """Tokens per second of decoding over the last rounds that took `RECENT_S` together; None without rounds."""
    n_tokens, seconds = 0, 0.0
    for round in reversed(rounds):
        n_tokens += len(round.tokens)
        seconds += round.draft_s + round.verify_s + round.rest_s
        if seconds >= RECENT_S:
            break
    return _ratio(n_tokens, seconds)
