"""`specllm bench`: plain decoding and every drafter, side by side."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from specllm.cli import envelope, options
from specllm.cli.signals import interrupts_deferred
from specllm.cli.structure import StructureOptions
from specllm.cli.template import TemplateOptions
from specllm.errors import AnswerIsNo, Interrupted

if TYPE_CHECKING:
    from specllm.app.bench.use_case import BenchRequest, BenchResult

_bench = functools.partial(typer.Option, rich_help_panel="Benchmark")
_output = functools.partial(typer.Option, rich_help_panel="Output")


@dataclasses.dataclass(frozen=True, kw_only=True)
class BenchOptions(TemplateOptions):
    """What is measured."""

    arms: Annotated[
        str | None,
        _bench("--arms", metavar="A,B,..",
               help="Of none, auto, reference, lookup, store, model, or e.g. model:4 for drafts of four tokens, auto+exact for "
               "text that no near tie can change; by default all there is. Plain decoding (none) always runs."),
    ] = None  # fmt: skip
    prompts: Annotated[
        Path | None,
        _bench("--prompts", metavar="FILE",
               help="JSONL of our format (a row's \"schema\" binds its answer), Spec-Bench, HumanEval or edits; by default "
                    "our mix."),
    ] = None  # fmt: skip
    limit: Annotated[int | None, _bench("--limit", metavar="N", help="N prompts, spread over the categories.")] = None
    max_tokens: Annotated[int, _bench("--max-tokens", "-n", metavar="N", help="Most tokens of an answer.")] = 128
    runs: Annotated[int, _bench("--runs", metavar="N", help="How often each arm answers each prompt.")] = 1
    forced: Annotated[
        bool,
        _bench("--forced", help="The target says each prompt's expected text: measures drafters on a known output."),
    ] = False
    learned: Annotated[bool, _bench("--learned", help="Drafters start from what earlier answers taught, not cold.")] = (
        False
    )
    check: Annotated[
        bool, _bench("--check", help="Compare every answer with plain decoding's; exit code 3 for a defect.")
    ] = False
    simulate: Annotated[
        str | None,
        _bench("--simulate", metavar="accept=A,draft_cost=C",
               help="Only tell what a draft model would bring that is right with chance A and costs C forwards a token."),
    ] = None  # fmt: skip
    store: Annotated[str | None, _bench("--store", metavar="NAME", help="Draft from this store too.")] = None
    recalibrate: Annotated[bool, _bench("--recalibrate", help="Measure anew what forwards cost on this machine.")] = (
        False
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class BenchOutput:
    """Where it goes."""

    as_json: Annotated[bool, _output("--json", help="Exactly one JSON document on stdout.")] = False
    html: Annotated[Path | None, _output("--html", metavar="FILE", help="Write a page with charts.")] = None
    compare: Annotated[
        Path | None,
        _output("--compare", metavar="OLD.json", help="Exit code 3 where it is slower than in that document."),
    ] = None
    quiet: Annotated[bool, _output("--quiet", "-q", help="No progress.")] = False


@options.spread
def bench(
    *,
    wanted: BenchOptions,
    models: options.ModelOptions,
    sampling: options.SamplingOptions,
    structure: StructureOptions,
    machine: options.MachineOptions,
    output: BenchOutput,
) -> None:
    """Measure every drafter beside plain decoding, prompt by prompt."""
    with interrupts_deferred():
        from specllm.app.bench import use_case as app
        from specllm.app.bench.compare import compare, read_document
        from specllm.ui import bench as ui
        from specllm.ui.console import write_note
    from specllm.config import DraftConfig

    old = read_document(output.compare) if output.compare else None
    prompts, n_left_out = ([], 0) if wanted.simulate else (
        app.select_prompts(wanted.prompts, wanted.limit, is_forced=wanted.forced)
    )  # fmt: skip
    request = app.BenchRequest(
        prompts=prompts, target=models.model, draft_model=models.draft_model,
        arms=tuple(wanted.arms.split(",")) if wanted.arms is not None else None, runs=wanted.runs,
        max_tokens=wanted.max_tokens, sampling=sampling.chosen(), context=machine.config(),
        draft_gpu_layers=machine.draft_layers(), draft=DraftConfig(is_recalibrated=wanted.recalibrate, store=wanted.store),
        is_forced=wanted.forced, is_learned=wanted.learned, is_checked=wanted.check,
        structure=structure.config(), template_vars=wanted.variables(),
    )  # fmt: skip
    if wanted.simulate:
        _simulate(request, wanted.simulate, output)
        return
    if n_left_out and not output.quiet:
        write_note(f"{n_left_out} prompts have no expected text and are left out")
    with ui.BenchView(is_quiet=output.quiet) as view:
        result = app.run_bench(request, view)
    with interrupts_deferred():  # what was measured is told first
        document = _document(result)
        comparison = compare(old, document) if old else None
        n_slower = len(comparison.slower) if comparison else 0
        document["ok"] = not (n_slower or result.n_defects or result.is_interrupted)
        if comparison:
            document["result"]["comparison"] = comparison.as_dict()
        if output.html:
            from specllm.ui.report import write_report

            write_report(document, output.html)
        if output.as_json:
            _emit(document)
        else:
            ui.print_bench(document["result"])
            if comparison:
                ui.print_comparison(comparison.as_dict())
    _conclude(result, n_slower)


def _conclude(result: BenchResult, n_slower: int) -> None:
    """Raises what the exit code says."""
    if result.is_interrupted:
        raise Interrupted("interrupted")
    if result.n_defects:
        raise AnswerIsNo(f"{result.n_defects} answers are not plain decoding's, and it is no near tie", "report them")
    if n_slower:
        raise AnswerIsNo(f"slower than before in {n_slower} categories and arms", "run again with --runs 3 to be sure")


def _document(result: BenchResult) -> dict[str, Any]:
    """What --json prints and --html draws."""
    return {
        "schema": envelope.SCHEMA,
        "command": "bench",
        "ok": True,
        "host": result.host(),
        "models": result.models(),
        "params": result.params(),
        "result": result.result(),
    }


def _emit(document: Mapping[str, Any]) -> None:
    parts = {name: document[name] for name in ("host", "models", "params")}
    envelope.emit("bench", document["result"], **parts, is_ok=document["ok"])


def _simulate(request: BenchRequest, text: str, output: BenchOutput) -> None:
    from specllm.app.bench.simulate import Supposed
    from specllm.app.bench.use_case import simulate_draft
    from specllm.app.host import describe_build
    from specllm.ui.bench import BenchView, print_simulation

    supposed = Supposed.parse(text)
    with BenchView(is_quiet=output.quiet) as view:
        plan, result = simulate_draft(request, supposed, view)
    if output.as_json:
        envelope.emit("bench", result, host=describe_build(), models=plan.models(), params=plan.params())
    else:
        print_simulation(result["simulation"])
