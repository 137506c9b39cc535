"""`specllm generate`: one prompt, one answer."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from specllm.cli import envelope, options
from specllm.cli.prompt import STDIN, read_prediction, read_prompt, typed
from specllm.cli.signals import interrupts_deferred
from specllm.cli.structure import StructureOptions
from specllm.errors import ConfigError, Interrupted, SpecllmError

if TYPE_CHECKING:
    from specllm.app.generate import Answer, GenerateRequest
    from specllm.ui.generate import AnswerView

_request = partial(typer.Option, rich_help_panel="Request")


@options.spread
def generate(
    *,
    words: Annotated[
        list[str] | None,
        typer.Argument(metavar="PROMPT", help="The prompt; a - among its words adds what is piped in."),
    ] = None,
    prompt_file: Annotated[
        Path | None,
        _request("--prompt-file", "-f", metavar="FILE", help="Read the prompt from it."),
    ] = None,
    prediction: Annotated[
        Path | None,
        _request("--prediction", metavar="FILE|-", help="A text that the answer will resemble: drafts come from it."),
    ] = None,
    request: options.RequestOptions,
    models: options.ModelOptions,
    drafting: options.DraftOptions,
    sampling: options.SamplingOptions,
    structure: StructureOptions,
    machine: options.MachineOptions,
    output: options.OutputOptions,
) -> None:
    """Stream the answer to a prompt. That is words, a file, or where there are neither, what is piped in."""
    draft, context, layers = drafting.config(), machine.config(), machine.draft_layers()
    config = request.config(structure.config(), output.trace, n_typed=len(typed(words or [])))
    chosen = sampling.chosen()
    if config.logprobs is not None and not output.as_json and output.trace is None:
        raise ConfigError("--logprobs has nowhere to go", "add --json, or --trace FILE")
    if prediction is not None and draft.drafter in ("lookup", "model"):
        raise ConfigError(f"--drafter {draft.drafter} drafts from no prediction", "use --drafter auto or reference")
    prompt = read_prompt(words or [], prompt_file, reads_pipe=str(prediction) != STDIN, is_quiet=output.quiet)
    predicted = None if prediction is None else read_prediction(prediction)

    with interrupts_deferred():
        from specllm.app import generate as app
        from specllm.ui.generate import AnswerView
        from specllm.ui.live import LiveView

    wanted = app.GenerateRequest(
        prompt=prompt, prediction=predicted, sources=tuple(filter(None, (prompt_file, prediction))), target=models.model,
        draft_model=models.draft_model, sampling=chosen, context=context, draft_gpu_layers=layers, draft=draft, generate=config
    )  # fmt: skip
    view_of = LiveView if output.live else AnswerView
    view = view_of(
        has_text=not output.as_json,
        has_status=not output.quiet,
        colours_accepted=output.color_accepted or output.live,
    )
    answer, error = _streamed(wanted, view)
    with interrupts_deferred():  # what there is comes out whole
        if output.as_json:
            envelope.emit(
                "generate", answer.result(), host=answer.host(), models=answer.plan.models(),
                params=answer.plan.params(), is_ok=error is None,
            )  # fmt: skip
        view.close(answer, has_table=output.stats)
    if error:
        raise error


def _streamed(wanted: GenerateRequest, view: AnswerView) -> tuple[Answer, SpecllmError | None]:
    """The answer, as far as Ctrl-C let it come, and what is to be raised once that was told."""
    from specllm.app import generate as app

    answer: Answer | None = None
    is_interrupted = False
    try:
        with view, app.answer(wanted, view.notice) as answer:
            view.stream(answer)
    except KeyboardInterrupt:
        if answer is None:
            raise
        answer.interrupt()
        is_interrupted = True
    if is_interrupted or answer.finish_reason == "interrupted":
        return answer, Interrupted("interrupted")
    return answer, answer.shortfall
