"""`specllm tune`: what forwards cost on this machine, and the setting that follows from it."""

from __future__ import annotations

from typing import Annotated

import typer

from specllm.cli import envelope, options
from specllm.cli.signals import interrupts_deferred
from specllm.errors import ConfigError, Interrupted


@options.spread
def tune(
    *,
    pair: Annotated[
        str | None, typer.Argument(metavar="PAIR", help="A pair or model by name; the default pair without one.")
    ] = None,
    models: options.ModelOptions,
    machine: options.MachineOptions,
    apply: Annotated[
        bool, typer.Option("--apply", help="Write the pair with the best setting to your models.toml.")
    ] = False,
    recalibrate: Annotated[
        bool, typer.Option("--recalibrate", help="Keep what is measured even where an earlier calibration was quieter.")
    ] = False,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON document on stdout.")] = False,
) -> None:
    """Measure what drafting costs here and name the best setting. Later runs use what was measured."""
    context, draft_layers = machine.config(), machine.draft_layers()
    if pair is not None and models.model is not None:
        raise ConfigError(f"both {pair} and --model {models.model} are named", "name the target once")
    with interrupts_deferred():
        from specllm.app.tune.use_case import TuneRequest
        from specllm.app.tune.use_case import tune as measure
        from specllm.ui.tune import TuneProgress, print_tuning, tell_kept

    request = TuneRequest(
        target=pair or models.model, draft_model=models.draft_model, context=context,
        draft_gpu_layers=draft_layers, is_applied=apply, is_recalibrated=recalibrate,
    )  # fmt: skip
    with TuneProgress() as progress:
        result = measure(request, progress)
    with interrupts_deferred():  # what was measured is told first
        tell_kept(result.kept)
        if json:
            envelope.emit(
                "tune", result.as_result(), host=result.host(), models=result.plan.models(),
                params=result.plan.params(), is_ok=not result.is_interrupted,
            )  # fmt: skip
        else:
            print_tuning(result)
    if result.is_interrupted:
        raise Interrupted("interrupted")
