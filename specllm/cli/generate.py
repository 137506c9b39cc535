"""`specllm generate`: one prompt, one answer."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from specllm.cli import envelope, options
from specllm.cli.prompt import read_prompt
from specllm.cli.signals import interrupts_deferred
from specllm.errors import Interrupted


@options.spread
def generate(
    *,
    words: Annotated[
        list[str] | None,
        typer.Argument(metavar="PROMPT", help="The prompt; - stands for what is piped in, which follows it."),
    ] = None,
    prompt_file: Annotated[
        Path | None,
        typer.Option("--prompt-file", "-f", metavar="FILE", help="Read the prompt from it.", rich_help_panel="Request"),
    ] = None,
    request: options.RequestOptions,
    models: options.ModelOptions,
    drafting: options.DraftOptions,
    sampling: options.SamplingOptions,
    machine: options.MachineOptions,
    output: options.OutputOptions,
) -> None:
    """Stream the answer to a prompt."""
    draft, context, draft_layers = drafting.config(), machine.config(), machine.draft_layers()
    config, chosen = request.config(output.trace), sampling.chosen()
    prompt = read_prompt(words or [], prompt_file)

    with interrupts_deferred():
        from specllm.app import generate as app
        from specllm.ui.generate import AnswerView

    wanted = app.GenerateRequest(
        prompt=prompt, target=models.model, draft_model=models.draft_model, sampling=chosen, context=context,
        draft_gpu_layers=draft_layers, draft=draft, generate=config,
    )  # fmt: skip
    with (
        AnswerView(
            has_text=not output.as_json, has_status=not output.quiet, colours_accepted=output.color_accepted
        ) as view,
        app.answer(wanted, view.notice) as answer,
    ):
        view.stream(answer)
    if output.as_json:
        envelope.emit(
            "generate", answer.result(), host=answer.host(), models=answer.plan.models(), params=answer.plan.params()
        )
    view.close(answer, has_table=output.stats)
    if answer.finish_reason == "interrupted":
        raise Interrupted("interrupted")
