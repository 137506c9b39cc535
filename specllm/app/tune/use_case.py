"""The use case behind `specllm tune`: measures this machine thoroughly, and says what would be the best setting here."""

from __future__ import annotations

import contextlib
import statistics
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Protocol

from specllm.app.calibration import Identity, Kept, keep_quieter_draft_cost, keep_quieter_points
from specllm.app.drafting import Drafting
from specllm.app.generate import GenerateRequest, Plan, make_plan
from specllm.app.generation import Session
from specllm.app.host import describe_build
from specllm.app.loading import CTX_STEP
from specllm.app.opening import opening
from specllm.app.prompt import tokenize_prompt
from specllm.app.prompts.reading import BenchPrompt, read_prompts
from specllm.app.tune import tuning
from specllm.app.tune.pair import apply, as_toml, check_applicable, pair_entry
from specllm.config import ContextConfig, DraftConfig, GenerateConfig, GpuLayers, SamplingConfig
from specllm.decoding.calibrate import DEPTH, measure_draft, measure_here, measure_target, spread_of
from specllm.decoding.controller import Controller
from specllm.decoding.cost import CALIBRATION_WIDTHS, MAX_WIDTH, CostModel, DraftCost
from specllm.decoding.protocols import Token
from specllm.decoding.rollback_trial import RollbackTrial, try_rollback
from specllm.decoding.sampling import KeyedSampler
from specllm.models.entries import DrafterName, Pair
from specllm.runtime.interrupt import abort_on_interrupt
from specllm.runtime.llama import Weights

N_REPEATS = 3  # readings of every width, a round of all widths after the other
N_TOKENS = 32  # of an answer: enough to tell kinds of text apart, short enough for a minute over all of them
SAMPLING_BUDGET_S = 60.0  # for all answers; the first one comes whatever it takes
N_LARGEST_CTX = 4096  # a longer prompt is no sample
_FIRST = ("code", "edit")  # kinds of text that matter most here, in case time is up early
_DEEP_WIDTHS = (1, 4, 16)  # that are measured again behind the longest sample
BEST_DRAFTER: DrafterName = "auto"  # it knows what was measured here, and decides round by round
_GREEDY = SamplingConfig(temperature=0.0)


class Progress(Protocol):
    """Told what goes on."""

    def stage(self, text: str) -> None: ...

    def step(self, text: str) -> None: ...


@dataclass(slots=True)
class Tuning:
    """What was measured, as far as it came, and what follows from it."""

    plan: Plan
    readings: dict[int, list[float]] = field(default_factory=lambda: defaultdict(list))  # seconds by width
    depth: int = DEPTH  # tokens before the block while they were taken
    rollback_kind: str = ""
    rollback: RollbackTrial | None = None  # None: not tried
    draft_cost: DraftCost | None = None
    deep_depth: int = 0  # of the second depth
    deep_points: dict[int, float] = field(default_factory=dict)
    categories: list[tuning.Category] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)  # categories there was no time or room for
    kept: list[Kept] = field(default_factory=list)  # what later runs use, of the target and of the draft model
    is_interrupted: bool = False
    applied: Path | None = None

    @property
    def points(self) -> dict[int, float]:
        """The least seconds by width: whatever disturbs makes a reading longer."""
        return {width: min(seconds) for width, seconds in sorted(self.readings.items())}

    @property
    def cost(self) -> CostModel:
        return CostModel(self.points)

    @property
    def spread(self) -> float | None:
        """How noisy the readings were; 0 is a quiet machine, None one where none was repeated."""
        return spread_of(self.readings.values())

    @property
    def deep_factor(self) -> float | None:
        """How many times longer a forward takes behind the longest sample, in the middle of the widths measured there."""
        ratios = [seconds / self.points[width] for width, seconds in self.deep_points.items() if width in self.points]
        return statistics.median(ratios) if ratios else None

    @property
    def good_steps(self) -> list[int]:
        return tuning.good_steps(self.cost)

    @property
    def promises(self) -> list[tuning.Promise]:
        return tuning.promises(self.cost, self.draft_cost)

    @property
    def best(self) -> tuning.Replay:
        """The best fixed setting over the samples."""
        return tuning.best_fixed(self.categories)

    @property
    def pair(self) -> Pair | None:
        """The entry for the user's models.toml; None where the models have no names there."""
        return pair_entry(self.plan, BEST_DRAFTER) if self.categories else None

    @property
    def snippet(self) -> str | None:
        return as_toml(self.pair) if self.pair else None

    @property
    def can_model_pay(self) -> bool | None:
        """Whether the draft model could win here at all; None where there is none, or its cost is not known."""
        return Controller(self.cost, {}, self.draft_cost).can_model_pay() if self.draft_cost else None

    def host(self) -> dict[str, object]:
        return describe_build()

    def as_result(self) -> dict[str, object]:
        draft, best = self.draft_cost, self.best
        return {
            "is_complete": not self.is_interrupted,
            "depth": self.depth,
            "cost": {str(width): seconds for width, seconds in self.points.items()},
            "n_readings": {str(width): len(seconds) for width, seconds in sorted(self.readings.items())},
            "spread": self.spread,
            "calibrations": [asdict(kept) for kept in self.kept],
            "good_widths": self.good_steps,
            "deep": {
                "depth": self.deep_depth or None,
                "cost": {str(width): seconds for width, seconds in self.deep_points.items()},
                "factor": self.deep_factor,
            },
            "rollback": self.rollback and {
                "kind": self.rollback_kind,
                "is_exact": self.rollback.is_exact,
                "rejection_s": self.rollback.rejection_s,
            },
            "draft_cost": draft and {
                "token_s": draft.token_s,
                "prefill_token_s": draft.prefill_token_s,
                "share_of_forward": draft.token_s / self.points[1],
            },
            "break_even": [row.as_result() for row in self.promises],
            "categories": [kind.as_result() for kind in self.categories],
            "left_out": self.left_out,
            "recommendation": {
                "flags": f"--drafter {BEST_DRAFTER}",
                "can_draft_model_pay": self.can_model_pay,
                "best_fixed": {"drafter": best.drafter, **best.as_result()} if self.categories else None,
                "models_toml": self.snippet,
                "applied_to": self.applied and str(self.applied),
            },
        }  # fmt: skip


@dataclass(frozen=True, kw_only=True, slots=True)
class TuneRequest:
    target: str | None = None  # None: the default pair
    draft_model: str | None = None
    context: ContextConfig = ContextConfig()
    draft_gpu_layers: GpuLayers = "auto"
    is_applied: bool = False  # write the pair into the user's models.toml
    is_recalibrated: bool = False  # keep what is measured also where an earlier calibration was quieter


def tune(request: TuneRequest, progress: Progress) -> Tuning:
    """Measures the models of the request and keeps what later runs need; Ctrl-C keeps what was measured until then."""
    plan = make_plan(
        GenerateRequest(
            prompt="", target=request.target, draft_model=request.draft_model, sampling={"temperature": 0.0, "seed": 0},
            context=request.context, draft_gpu_layers=request.draft_gpu_layers, draft=DraftConfig(drafter="auto"),
            generate=GenerateConfig(max_tokens=N_TOKENS),
        )
    )  # fmt: skip
    result = Tuning(plan)
    if request.is_applied:
        check_applicable(plan)
    try:
        with _loaded(request, result, progress) as bench:
            bench.measure_target()
            bench.measure_draft()
            bench.answer_samples()
    except KeyboardInterrupt:
        if 1 not in result.readings:
            raise
        result.is_interrupted = True
    if request.is_applied and not result.is_interrupted and result.pair:
        result.applied = apply(result.pair)
    return result


@contextlib.contextmanager
def _loaded(request: TuneRequest, result: Tuning, progress: Progress) -> Iterator[_Bench]:
    """The models in memory, and freed afterwards."""
    # A fixed length: opening must not measure, that is done here.
    draft = DraftConfig(drafter="model" if result.plan.draft_model else "none", draft_length=1)
    plan = replace(result.plan, draft=draft, sampling=_GREEDY)
    with abort_on_interrupt(), opening(plan, progress.stage) as opened:
        weights = opened.weights
        prompts = _sample_prompts(weights)
        longest = max((len(tokens) for _, tokens in prompts), default=0)
        n_ctx = -(-max(longest + N_TOKENS, DEPTH) // CTX_STEP) * CTX_STEP + MAX_WIDTH + CTX_STEP
        n_ctx = plan.context.n_ctx or min(n_ctx, weights.n_ctx_train or n_ctx)
        session, drafting, context = opened.session(n_ctx)
        drafting.target_identity = Identity.of(weights.path, session.target.config, "target")
        result.plan = replace(result.plan, context=context)
        yield _Bench(result, progress, session, drafting, prompts, request.is_recalibrated)


@dataclass(slots=True)
class _Bench:
    """Loaded models on which the result is filled in, stage by stage."""

    result: Tuning
    progress: Progress
    session: Session
    drafting: Drafting
    prompts: list[tuple[BenchPrompt, list[Token]]]
    is_forced: bool  # an earlier calibration does not count

    def measure_target(self) -> None:
        readings, target = self.result.readings, self.session.target
        identity = self.drafting.target_identity
        assert identity is not None
        self.progress.stage(f"measuring forwards of {target.weights.path.name}, {N_REPEATS} readings of each width")

        def told(width: int, seconds: float) -> None:
            readings[width].append(seconds)
            self.progress.step(
                f"width {width}: {seconds * 1e3:,.1f} ms (round {len(readings[width])} of {N_REPEATS}, "
                f"{len(readings)} of {len(CALIBRATION_WIDTHS)} widths)"
            )

        def filled(depth: int) -> None:
            self.result.depth = depth

        self.result.rollback_kind, self.result.rollback = target.rollback_kind, try_rollback(target)
        try:
            measure_target(target, budget_s=float("inf"), n_repeats=N_REPEATS, told=told, filled=filled)
        finally:
            if 1 in readings:
                self.result.kept.append(
                    keep_quieter_points(
                        identity,
                        self.result.points,
                        self.result.spread,
                        is_forced=self.is_forced,
                        depth=self.result.depth,
                    )
                )

    def measure_draft(self) -> None:
        model, plan = self.session.draft_model, self.result.plan
        if model is None or plan.draft_model is None:
            return
        self.progress.stage(f"measuring {model.weights.path.name}")
        costs = [measure_draft(model) for _ in range(N_REPEATS)]
        cost = DraftCost(min(one.token_s for one in costs), min(one.prefill_token_s for one in costs))
        identity, spread = (
            Identity.of(model.weights.path, model.config, "draft"),
            spread_of([[c.token_s for c in costs]]),
        )
        self.result.kept.append(keep_quieter_draft_cost(identity, cost, spread, is_forced=self.is_forced))
        self.result.draft_cost = cost

    def answer_samples(self) -> None:
        """A short greedy answer of each kind, as far as the time allows; the second depth behind the longest of them."""
        self.progress.stage("answering a prompt of each kind to see what drafts would hit")
        left_s = SAMPLING_BUDGET_S
        deepest = max(self.prompts, key=lambda prompt: len(prompt[1]), default=None)
        for prompt, tokens in self.prompts:
            seconds = self._expected_s(len(tokens))
            if len(tokens) + N_TOKENS > self.session.target.n_ctx or (seconds > left_s and self.result.categories):
                self.result.left_out.append(prompt.category)
                continue
            left_s -= seconds
            self.progress.step(f"{prompt.category}: a prompt of {len(tokens):,} tokens (about {seconds:.0f} s)")
            sample = self._sample(prompt.category, tokens)
            if deepest and prompt is deepest[0] and self.session.target.n_past > 2 * self.result.depth:
                self.result.deep_depth = self.session.target.n_past
                self.result.deep_points = measure_here(self.session.target, _DEEP_WIDTHS)
            if sample.answer:
                lookup = self.drafting.make("lookup", is_controlled=False)
                cost, draft_cost = self.result.cost, self.result.draft_cost
                self.result.categories.append(tuning.category(sample, lookup, cost, draft_cost))

    def _expected_s(self, n_prompt: int) -> float:
        cost, draft = self.result.cost, self.result.draft_cost
        target_s = n_prompt * cost.seconds(64) / 64 + N_TOKENS * cost.seconds(1)
        return target_s + (n_prompt * draft.prefill_token_s + N_TOKENS * draft.token_s if draft else 0.0)

    def _sample(self, category: str, prompt: list[Token]) -> tuning.Sample:
        self.drafting.target_cost = self.result.cost  # a fresh one: the controller corrects it as it goes
        self.session.drafter = self.drafting.make("lookup", is_controlled=True)  # the same text, sooner
        generation = self.session.generate(
            prompt, KeyedSampler(_GREEDY), MAX_WIDTH - 1, GenerateConfig(max_tokens=N_TOKENS)
        )
        for _ in generation:
            pass
        if generation.finish_reason == "interrupted":
            raise KeyboardInterrupt
        answer = list(generation.tokens)
        agrees: list[bool | None] = []
        if self.session.draft_model is not None:
            model = self.drafting.make("model", is_controlled=False)
            model.begin(prompt)
            for i, token in enumerate(answer):
                drafted = model.propose(prompt + answer[:i], 1).tokens
                agrees.append(drafted[0] == token if drafted else None)
        return tuning.Sample(category, tuple(prompt), tuple(answer), tuple(agrees))


def _sample_prompts(weights: Weights) -> list[tuple[BenchPrompt, list[Token]]]:
    """The shortest prompt of each kind in our mix: what matters most first, then what takes the least time."""
    shortest: dict[str, BenchPrompt] = {}
    for prompt in sorted(read_prompts(None), key=lambda one: len(one.prompt)):
        shortest.setdefault(prompt.category, prompt)
    config = GenerateConfig()
    rows = [(prompt, tokenize_prompt(weights, prompt.prompt, config)) for prompt in shortest.values()]
    rows = [row for row in rows if len(row[1]) + N_TOKENS <= min(weights.n_ctx_train or N_LARGEST_CTX, N_LARGEST_CTX)]
    return sorted(rows, key=lambda row: (row[0].category not in _FIRST, len(row[1])))
