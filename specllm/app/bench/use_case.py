"""The use case behind `specllm bench`: the same prompts through plain decoding and every drafter, in one process.

A speed-up is worth something only if both sides ran side by side: one loaded model, the same loop, the same prompts, arms
taking turns round by round. Drafters start cold with every prompt, a first round is thrown away, and what fails is told.
"""

from __future__ import annotations

import contextlib
import logging
from collections import ChainMap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Protocol

from specllm.app import learned
from specllm.app.bench.arms import BASELINE, Arm, Case, Sample
from specllm.app.bench.cases import cases, failure, structure_of
from specllm.app.bench.check import differences
from specllm.app.bench.lanes import Lane, make_lanes
from specllm.app.bench.runner import Memory, Runner
from specllm.app.bench.simulate import Supposed, simulate
from specllm.app.bench.stats import INTERVAL, k_over_time, rows
from specllm.app.bench.validation import require_validator
from specllm.app.drafting import SOURCES, Drafting
from specllm.app.generate import GenerateRequest, Plan, make_plan
from specllm.app.host import describe_build
from specllm.app.models import locate_pair
from specllm.app.opening import opening
from specllm.app.prompt import remarks
from specllm.app.prompts.reading import BenchPrompt, choose, read_prompts
from specllm.config import (
    CONTROLLED_DRAFT_LENGTH,
    ContextConfig,
    DraftConfig,
    GenerateConfig,
    GpuLayers,
    StructureConfig,
    check,
)
from specllm.decoding.calibrate import DEPTH
from specllm.decoding.cost import MAX_WIDTH, CostModel
from specllm.errors import ConfigError, SpecllmError
from specllm.runtime.interrupt import abort_on_interrupt

LOGGER = logging.getLogger("specllm")
WARM_UP_TOKENS = 16  # enough for the wider blocks to be met once
DEFAULT_ARMS = (BASELINE, "auto", "lookup", "model")


class Progress(Protocol):
    def notice(self, text: str) -> None:
        """Told what takes seconds."""
        ...

    def step(self, n_done: int, n_answers: int, what: str) -> None:
        """Told before every answer."""
        ...


@dataclass(frozen=True, kw_only=True, slots=True)
class BenchRequest:
    """Everything a user asked for."""

    prompts: Sequence[BenchPrompt]
    target: str | None = None
    draft_model: str | None = None
    arms: tuple[str, ...] | None = None  # None: plain decoding and every drafter there is
    runs: int = 1  # answers of each arm to each prompt
    max_tokens: int = 128
    sampling: Mapping[str, Any] = field(default_factory=dict)  # what was set; greedy where nothing is
    context: ContextConfig = ContextConfig()
    draft_gpu_layers: GpuLayers = "auto"
    draft: DraftConfig = DraftConfig()  # its drafter and length are the arms'
    is_forced: bool = False  # the target says what is expected, whatever its logits say
    is_learned: bool = False  # drafters start from what earlier answers taught
    is_checked: bool = False  # every answer is compared with plain decoding's
    template_vars: tuple[tuple[str, Any], ...] = ()  # variables of the chat template and their values
    structure: StructureConfig | None = None  # what answers must look like, where a prompt has no schema of its own

    def __post_init__(self) -> None:
        check(self.runs >= 1, f"{self.runs} runs", "use --runs with a positive number")
        is_greedy = self.sampling.get("temperature", 0) == 0
        check(not self.is_checked or is_greedy, "--check compares greedy answers", "leave out --temperature")
        is_free = not (self.is_checked and self.is_forced)
        check(is_free, "a forced answer has nothing to check", "leave out --forced or --check")
        is_known = not (self.is_forced and self.structure)
        check(is_known, "a forced answer is what it is", "leave out --forced, or what answers must look like")
        missing = [prompt.id for prompt in self.prompts if prompt.expected is None] if self.is_forced else []
        check(not missing, f"prompt {missing[:1]} has no expected text to force", 'give it "expected"')


def select_prompts(path: Path | None, limit: int | None, *, is_forced: bool = False) -> tuple[list[BenchPrompt], int]:
    """The prompts of the file (None: our own) that a run is about, and how many had no text to force and are left out."""
    prompts = read_prompts(path)
    usable = [prompt for prompt in prompts if prompt.expected is not None] if is_forced else prompts
    check(bool(usable), "no prompt has an expected text to force", 'give rows with "expected", or edits with "after"')
    return choose(usable, limit), len(prompts) - len(usable)


@dataclass(slots=True)
class BenchResult:
    """What was measured, from what and with what."""

    request: BenchRequest
    plan: Plan
    arms: Sequence[Arm]
    drafting: Drafting
    date: str
    verify_s_by_width: Mapping[str, float]  # V, as it was when the drafters began
    failures: list[dict[str, object]]
    samples: list[Sample] = field(default_factory=list)  # of prompts that every arm answered in every run
    differences: list[dict[str, object]] | None = None  # None where nothing was compared
    is_interrupted: bool = False
    exact_widths: Mapping[str, int] | None = None  # of blocks, by the cells up to which that holds; None: no exact arm

    @property
    def n_defects(self) -> int:
        return sum(difference["kind"] == "defect" for difference in self.differences or ())

    def host(self) -> dict[str, object]:
        """For the `host` part of a JSON document."""
        return describe_build()

    def models(self) -> dict[str, object]:
        """For the `models` part of a JSON document."""
        return self.plan.models()

    def params(self) -> dict[str, object]:
        """Every effective parameter, for the `params` part of a JSON document."""
        of_arms = ("drafter", "draft_length", "most_drafted")
        not_asked = ("trace", "system")  # each prompt brings its own system message
        shared = {name: value for name, value in self.plan.params().items() if name not in (*of_arms, *not_asked)}
        request = self.request
        return {
            **shared,
            "arms": [arm.described() for arm in self.arms],
            "runs": request.runs,
            "prompts": [prompt.id for prompt in request.prompts],
            "is_forced": request.is_forced,
            "is_learned": request.is_learned,
            "is_checked": request.is_checked,
        }

    def result(self) -> dict[str, object]:
        """For the `result` part of a JSON document."""
        cost = self.drafting.draft_cost
        return {
            "date": self.date,
            "labels": self.labels(),
            "rows": rows(self.samples) if self.samples else [],
            "interval": INTERVAL,
            "failures": self.failures,
            "differences": self.differences,
            "is_interrupted": self.is_interrupted,
            "verify_s_by_width": self.verify_s_by_width,
            "draft_cost": cost and {"token_s": cost.token_s, "prefill_token_s": cost.prefill_token_s},
            "k_over_time": k_over_time(self.samples),
            "width_by_cells": self.exact_widths,
            "samples": [sample.as_dict() for sample in self.samples],
        }

    def labels(self) -> list[str]:
        """How the figures came about, in words that belong beside them."""
        sampling = self.plan.sampling
        return [
            "forced output" if self.request.is_forced else "the model's own output",
            "greedy" if sampling.temperature == 0 else f"temperature {sampling.temperature:g}",
            "learned drafters" if self.request.is_learned else "cold drafters",
        ]


def run_bench(request: BenchRequest, progress: Progress) -> BenchResult:
    """Answers every prompt with every arm. Ctrl-C ends it early with the prompts that are complete, where there are some.

    A prompt that fails becomes an entry of `failures`, and the others go on.
    """
    check(bool(request.prompts), "there are no prompts", "give a file with some")
    if any(structure_of(request, prompt)[1] for prompt in request.prompts):
        require_validator()
    arms, plan = plan_bench(request)
    result = None
    try:
        with _opened(request, plan, arms, progress) as opened:
            cost, date = opened.drafting.target_cost, datetime.now(UTC).isoformat(timespec="seconds")
            result = BenchResult(request, opened.plan, arms, opened.drafting, date, _table(cost), opened.failures)
            names = (plan.target.name, plan.draft_model.name if plan.draft_model else None)
            memory = Memory(learned.file_of(*names) if request.is_learned else None)
            runner = Runner(opened.lanes, plan.sampling, plan.generate, memory)
            try:
                _measure(runner, opened.cases, result, progress)
            finally:
                exact = [lane.session.exact_widths.as_dict() for lane in opened.lanes if lane.arm.config.is_exact]
                result.exact_widths = dict(ChainMap(*exact)) if exact else None
    except KeyboardInterrupt:
        if result is None or not (result.samples or result.failures):
            raise
        result.is_interrupted = True
    return result


def simulate_draft(request: BenchRequest, supposed: Supposed, progress: Progress) -> tuple[Plan, dict[str, Any]]:
    """What a draft model like `supposed` would bring here, from the measured cost of the target's forwards alone."""
    arms, plan = plan_bench(replace(request, prompts=(), arms=(BASELINE,)))
    with _opened(replace(request, prompts=()), plan, arms, progress) as opened:
        cost = opened.drafting.target_cost
        assert cost is not None
        return opened.plan, {"simulation": simulate(cost, supposed), "verify_s_by_width": _table(cost)}


def _table(cost: CostModel | None) -> dict[str, float]:
    """V, for a document."""
    return {str(width): cost.seconds(width) for width in cost.widths} if cost else {}


@dataclass(frozen=True, slots=True)
class _Opened:
    plan: Plan  # with what loading settled
    lanes: Sequence[Lane]
    drafting: Drafting
    cases: list[Case]
    failures: list[dict[str, object]]


@contextlib.contextmanager
def _opened(request: BenchRequest, plan: Plan, arms: Sequence[Arm], progress: Progress) -> Iterator[_Opened]:
    """Loads what the plan names, with a lane for each arm, and tokenizes the prompts; everything is freed afterwards."""
    failures: list[dict[str, object]] = []
    with contextlib.ExitStack() as stack:
        stack.enter_context(abort_on_interrupt())
        opened = stack.enter_context(opening(plan, progress.notice, loads_all=True))
        for remark in remarks(opened.weights, plan.generate):
            LOGGER.warning(remark)
        read = list(cases(request, opened.weights, plan.generate, failures))
        longest = max((len(case.tokens) for case in read), default=DEPTH + MAX_WIDTH)
        session, drafting, context = opened.session(opened.context_size(longest, plan.generate))
        lanes = list(make_lanes(arms, session.target, drafting, stack))
        yield _Opened(replace(plan, context=context), lanes, drafting, read, failures)


def plan_bench(request: BenchRequest) -> tuple[list[Arm], Plan]:
    """The arms, plain decoding first, and every default filled in; raises ConfigError for an arm that cannot be."""
    has_draft_model = locate_pair(request.target, request.draft_model)[1] is not None
    names = request.arms or tuple(name for name in DEFAULT_ARMS if name != "model" or has_draft_model)
    base = replace(request.draft, drafter="auto", draft_length=None)
    arms = list({arm.name: arm for arm in (Arm.parse(name, base) for name in (BASELINE, *names))}.values())
    drafters = {arm.config.drafter for arm in arms}
    if "model" in drafters and not has_draft_model:
        raise ConfigError("the arm model needs a draft model", "name one with --draft-model, or leave the arm out")
    needs_model = any("model" in SOURCES[drafter] for drafter in drafters)
    plan = make_plan(
        GenerateRequest(
            prompt="",
            target=request.target,
            draft_model=request.draft_model,
            sampling={"temperature": 0.0, "seed": 0, **request.sampling},
            context=request.context,
            draft_gpu_layers=request.draft_gpu_layers,
            draft=base if needs_model else replace(base, drafter="lookup"),
            generate=GenerateConfig(
                max_tokens=request.max_tokens, structure=request.structure, template_vars=request.template_vars
            ),
        ),
        needs_draft_model="model" in drafters,
    )
    most_drafted = max(CONTROLLED_DRAFT_LENGTH, *(arm.config.most_drafted for arm in arms))
    return arms, replace(plan, context=replace(plan.context, n_outputs_max=most_drafted + 1))


def _measure(runner: Runner, cases: Sequence[Case], result: BenchResult, progress: Progress) -> None:
    """Fills in samples, failures and differences."""
    request = result.request
    n_each = len(runner.lanes) * request.runs
    result.differences = [] if request.is_checked else None
    _warm_up(runner, cases, progress)
    for n, case in enumerate(cases):
        samples: list[Sample] = []
        try:
            progress.step(n * n_each, len(cases) * n_each, case.prompt.id)
            for sample in runner.answers(case, request.runs):
                samples.append(sample)
                progress.step(n * n_each + len(samples), len(cases) * n_each, f"{case.prompt.id} {sample.arm}")
            found = list(differences(runner, case, samples)) if request.is_checked else []
        except SpecllmError as error:
            result.failures.append(failure(case.prompt, error))
            continue
        result.samples += samples
        if result.differences is not None:
            vocab = runner.lanes[0].session.target.vocab
            result.differences += [difference.as_dict(vocab) for difference in found]


def _warm_up(runner: Runner, cases: Sequence[Case], progress: Progress) -> None:
    """One short round of all arms on the first prompt that fits."""
    progress.notice("warming up")
    for case in cases:
        try:
            return runner.warm_up(case, WARM_UP_TOKENS)
        except SpecllmError:  # told when it is its turn
            continue
    return None
