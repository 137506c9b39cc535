"""From samples to the rows of a benchmark: sums over answers, and speed-ups from pairs with their interval."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from statistics import fmean, median, stdev

from specllm.app.bench.arms import BASELINE, Sample
from specllm.decoding.metrics import Metrics

ALL = "all"  # the row over every category
INTERVAL = "95 % t interval on the logarithms of the speed-ups by prompt (median over runs of paired ratios)"

# Student's t, 97.5 %, for 1 to 30 degrees of freedom (any table of it)
_T = (
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131,
    2.120, 2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042,
)  # fmt: skip
_Z = 1.959964


def t_quantile(freedom: int) -> float:
    """The 97.5 % quantile of Student's t."""
    if freedom <= len(_T):
        return _T[freedom - 1]
    # Cornish-Fisher expansion (Abramowitz & Stegun 26.7.5), right to 0.001 from 31 on
    return _Z + (_Z**3 + _Z) / (4 * freedom) + (5 * _Z**5 + 16 * _Z**3 + 3 * _Z) / (96 * freedom**2)


@dataclass(frozen=True, slots=True)
class Speedup:
    """A geometric mean with its 95 % interval; no interval from a single value."""

    mean: float | None
    low: float | None = None
    high: float | None = None

    @classmethod
    def of(cls, ratios: Sequence[float]) -> Speedup:
        if not ratios:
            return cls(None)
        logs = [math.log(ratio) for ratio in ratios]
        mean = fmean(logs)
        if len(logs) == 1:
            return cls(math.exp(mean))
        half = t_quantile(len(logs) - 1) * stdev(logs) / math.sqrt(len(logs))
        return cls(math.exp(mean), math.exp(mean - half), math.exp(mean + half))


def speedups(samples: Iterable[Sample]) -> dict[tuple[str, str], float]:
    """By (prompt, arm): the median over runs of plain decoding's seconds per token over the arm's in the same run."""
    tpot = {(s.prompt_id, s.arm, s.run): s.metrics.tpot_s for s in samples}
    ratios = defaultdict(list)
    for (prompt, arm, run), seconds in tpot.items():
        plain = tpot.get((prompt, BASELINE, run))
        if seconds and plain:
            ratios[prompt, arm].append(plain / seconds)
    return {pair: median(values) for pair, values in ratios.items()}


def total(metrics: Iterable[Metrics]) -> Metrics:
    """Every count and time summed: speeds and rates of it are those over all answers together."""
    result = Metrics()
    for n, one in enumerate(metrics):
        for field in fields(Metrics):
            setattr(result, field.name, getattr(result, field.name) + getattr(one, field.name))
        result.n_reused += n > 0  # of every prompt, not of one, the last token is no part of the prefill
    return result


def rows(samples: Sequence[Sample]) -> list[dict[str, object]]:
    """One for each category and arm in the order they came up, then one for each arm over everything."""
    categories = dict.fromkeys([*(sample.category for sample in samples), ALL])
    arms = sorted(dict.fromkeys(sample.arm for sample in samples), key=lambda arm: arm != BASELINE)
    ratios = speedups(samples)
    built = []
    for category in categories:
        members = [sample for sample in samples if category in (sample.category, ALL)]
        plain = total(sample.metrics for sample in members if sample.arm == BASELINE)
        ceiling = _quotient(plain.prefill_tok_per_s, plain.decode_tok_per_s)
        for arm in arms:
            of_arm = [sample for sample in members if sample.arm == arm]
            if of_arm:
                built.append({"category": category, "arm": arm, **_row(of_arm, ratios), "ceiling": ceiling})
    return built


def _row(samples: Sequence[Sample], ratios: Mapping[tuple[str, str], float]) -> dict[str, object]:
    pairs = dict.fromkeys((sample.prompt_id, sample.arm) for sample in samples)
    speedup = Speedup.of([ratios[pair] for pair in pairs if pair in ratios])
    metrics = total(sample.metrics for sample in samples)
    drafted = [round for sample in samples for round in sample.rounds if round.draft.tokens]
    first_s = [sample.metrics.ttft_s for sample in samples if sample.metrics.ttft_s is not None]
    share = {name: _quotient(getattr(metrics, f"{name}_s"), metrics.decode_s) for name in ("draft", "verify", "rest")}
    return {
        "n_prompts": len(pairs),
        "n_samples": len(samples),
        "speedup": speedup.mean,
        "speedup_low": speedup.low,
        "speedup_high": speedup.high,
        "decode_tok_per_s": metrics.decode_tok_per_s,
        "tokens_per_forward": metrics.tokens_per_forward,
        "acceptance_rate": metrics.acceptance_rate,
        "acceptance_by_position": metrics.acceptance_by_position,
        "zero_accept_share": metrics.zero_accept_share,
        "mean_accepted_draft": metrics.mean_accepted_draft,
        "ttft_s": fmean(first_s) if first_s else None,
        "prefill_tok_per_s": metrics.prefill_tok_per_s,
        "share_by_source": {source: n / metrics.n_rounds for source, n in metrics.rounds_by_source.items()},
        "accepted_lengths": _histogram(round.n_accepted for round in drafted),
        "drafted_lengths": _histogram(len(round.draft.tokens) for round in drafted),
        **_structured(samples, metrics.decode_s),
        "draft_s": metrics.draft_s,
        "verify_s": metrics.verify_s,
        "rest_s": metrics.rest_s,
        **{f"{name}_share": value for name, value in share.items()},
    }


def _structured(samples: Sequence[Sample], decode_s: float) -> dict[str, object]:
    """Of answers with a structure: the share that is valid against its schema, and of the decode time that asking what may
    follow took. None where there are no such answers."""
    judged = [sample.is_valid for sample in samples if sample.is_valid is not None]
    asked_s = [sample.constraint_s for sample in samples if sample.constraint_s is not None]
    return {
        "n_valid": sum(judged) if judged else None,
        "n_invalid": len(judged) - sum(judged) if judged else None,
        "valid_share": sum(judged) / len(judged) if judged else None,
        "constraint_share": sum(asked_s) / decode_s if asked_s and decode_s else None,
    }


def k_over_time(samples: Sequence[Sample]) -> dict[str, dict[str, object]]:
    """For each arm the drafted length and source of every round of one answer: that of the longest plain one."""
    longest = max((s for s in samples if s.arm == BASELINE), key=lambda s: s.metrics.n_committed, default=None)
    if longest is None:
        return {}
    return {
        sample.arm: {
            "prompt": sample.prompt_id,
            "lengths": [len(round.draft.tokens) for round in sample.rounds],
            "accepted": [round.n_accepted for round in sample.rounds],
            "sources": [round.draft.source if round.draft.tokens else "none" for round in sample.rounds],
        }
        for sample in samples
        if (sample.prompt_id, sample.run) == (longest.prompt_id, longest.run)
    }


def _histogram(lengths: Iterable[int]) -> dict[str, int]:
    return {str(length): n for length, n in sorted(Counter(lengths).items())}


def _quotient(numerator: float | None, denominator: float | None) -> float | None:
    return numerator / denominator if numerator is not None and denominator else None
