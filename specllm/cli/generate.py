"""`specllm generate`: one prompt, one answer."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any, Optional

import typer

from specllm.cli import envelope, options
from specllm.cli.prompt import read_prompt
from specllm.config import ContextConfig, DraftConfig, GenerateConfig
from specllm.errors import Interrupted


def generate(
    words: Annotated[
        Optional[list[str]], typer.Argument(metavar="[PROMPT] [-]", help="The prompt; - appends what is piped in.")
    ] = None,
    prompt_file: Annotated[Optional[Path], typer.Option("--prompt-file", "-f", help="Read the prompt from it.")] = None,
    system: Annotated[Optional[str], typer.Option("--system", "-s", help="System message.")] = None,
    raw: Annotated[bool, typer.Option("--raw", help="No chat template: continue the prompt as it is.")] = False,
    model: options.Model = None,
    draft_model: options.DraftModel = None,
    drafter: options.Drafter = None,
    draft_length: options.DraftLength = None,
    max_tokens: options.MaxTokens = GenerateConfig().max_tokens,
    stop: Annotated[Optional[list[str]], typer.Option("--stop", help="End before this text, may be repeated.")] = None,
    temperature: options.Temperature = None,
    top_k: options.TopK = None,
    top_p: options.TopP = None,
    min_p: options.MinP = None,
    repeat_penalty: options.RepeatPenalty = None,
    frequency_penalty: options.FrequencyPenalty = None,
    presence_penalty: options.PresencePenalty = None,
    penalty_last_n: options.PenaltyLastN = None,
    logit_bias: options.LogitBias = None,
    seed: options.Seed = None,
    ctx: options.Ctx = 0,
    threads: options.Threads = 0,
    gpu_layers: options.GpuLayersText = "auto",
    draft_gpu_layers: options.DraftGpuLayersText = "auto",
    kv_type: options.KvType = ContextConfig().kv_type,
    flash_attention: options.FlashAttention = "auto",
    batch: options.BatchSize = ContextConfig().n_batch,
    ubatch: options.UbatchSize = ContextConfig().n_ubatch,
    mmap: options.UseMmap = True,
    mlock: options.UseMlock = False,
    confidence: Annotated[
        float, typer.Option("--confidence", help="The draft model stops below this probability.")
    ] = DraftConfig().confidence_floor,
    min_match: Annotated[
        int, typer.Option("--min-match", help="Lookup needs so many repeated tokens.")
    ] = DraftConfig().lookup_min_match,
    draft_ctx: Annotated[
        int, typer.Option("--draft-ctx", help="The draft model's own window, tokens.")
    ] = DraftConfig().draft_ctx,
    trace: options.TraceFile = None,
    as_json: options.AsJson = False,
    stats: Annotated[bool, typer.Option("--stats", help="Print a table of all figures at the end.")] = False,
    color_accepted: Annotated[bool, typer.Option("--color-accepted", help="Colour tokens by their source.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No status line and no stats line.")] = False,
) -> None:
    """Stream the answer to a prompt."""
    sampling: dict[str, Any] = {
        "temperature": temperature, "top_k": top_k, "top_p": top_p, "min_p": min_p, "repeat_penalty": repeat_penalty,
        "frequency_penalty": frequency_penalty, "presence_penalty": presence_penalty, "penalty_last_n": penalty_last_n,
        "seed": seed, "logit_bias": options.logit_bias(logit_bias) or None,
    }  # fmt: skip
    context = ContextConfig(
        n_ctx=ctx, threads=threads, gpu_layers=options.gpu_layers(gpu_layers), kv_type=kv_type,  # type: ignore[arg-type]
        flash_attention=flash_attention, n_batch=batch, n_ubatch=ubatch, use_mmap=mmap, use_mlock=mlock,  # type: ignore[arg-type]
    )  # fmt: skip
    draft = DraftConfig(
        drafter=drafter, draft_length=draft_length, confidence_floor=confidence, lookup_min_match=min_match,
        draft_ctx=draft_ctx,
    )  # fmt: skip
    config = GenerateConfig(max_tokens=max_tokens, stop=tuple(stop or ()), system=system, is_raw=raw, trace=trace)
    prompt = read_prompt(words or [], prompt_file)

    from specllm.app import generate as app
    from specllm.ui import generate as ui

    request = app.GenerateRequest(
        prompt=prompt, target=model, draft_model=draft_model, context=context, draft=draft, generate=config,
        draft_gpu_layers=options.gpu_layers(draft_gpu_layers),
        sampling={name: value for name, value in sampling.items() if value is not None},
    )  # fmt: skip
    with app.answer(request) as answer:
        if as_json:
            answer.finish()
        else:
            ui.stream(answer, has_status=not quiet, colours_accepted=color_accepted)
    if as_json:
        envelope.emit("generate", answer.result(), models=answer.plan.models(), params=answer.plan.params())
    elif not quiet:
        print(ui.stats_line(answer.metrics, answer.draft_length, answer.source, answer.finish_reason), file=sys.stderr)
    if stats:
        ui.print_stats_table(answer.metrics)
    if answer.finish_reason == "interrupted":
        raise Interrupted("interrupted")
