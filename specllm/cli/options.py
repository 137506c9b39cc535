"""Options that several commands share, each defined once, in groups: a command names a group as one parameter.

`spread` turns such a command into the flat function typer wants, `Command` prints its help group by group.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import os
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import typer
from typer.core import TyperCommand

from specllm.cli.template import TemplateOptions
from specllm.config import (
    DRAFTERS,
    KERNELS_MODES,
    KERNELS_VARIABLE,
    KV_TYPES,
    MAX_DRAFT_LENGTH,
    ContextConfig,
    DraftConfig,
    GenerateConfig,
    GpuLayers,
    StructureConfig,
)
from specllm.errors import ConfigError

MAX_CTX = 2**31 - 1  # llama.cpp counts positions in 32 bits; more would wrap around to some other size
MAX_THREADS = 512  # GGML_MAX_N_THREADS; beyond it ggml crashes

FLASH_ATTENTION = ("auto", "on", "off")


def gpu_layers(value: str) -> GpuLayers:
    """`auto`, `all` or a number."""
    if value == "auto" or value == "all":
        return value  # type: ignore[return-value]
    if value.isdecimal():
        return int(value)
    raise ConfigError(f"gpu layers {value!r}", "use auto, all, or a number from 0")


def logit_bias(values: list[str] | None) -> tuple[tuple[int, float], ...]:
    """TOKEN=BIAS pairs, e.g. 42=-inf."""
    pairs = []
    for value in values or ():
        token, _, bias = value.partition("=")
        try:
            pairs.append((int(token), float(bias)))
        except ValueError:
            raise ConfigError(f"--logit-bias {value}", "use TOKEN=NUMBER, e.g. 42=-inf") from None
    return tuple(pairs)


def drafter_option(names: tuple[str, ...]) -> Any:
    """Who drafts, where these may."""
    return _drafting(
        "--drafter", "-d", metavar="|".join(names), autocompletion=_complete(names), callback=_one_of("drafter", names),
        help="Who drafts: what models.toml says, else auto, which takes what pays on this machine.",
    )  # fmt: skip


def _one_of(what: str, names: tuple[str, ...]) -> Callable[[str | None], str | None]:
    def check(value: str | None) -> str | None:
        if value is None or value in names:
            return value
        raise ConfigError(f"no {what} {value!r}", f"use one of {', '.join(names)}")

    return check


def _at_most(what: str, limit: int) -> Callable[[int], int]:
    def check(value: int) -> int:
        if value > limit:
            raise ConfigError(f"{what} is {value:,}", f"use at most {limit:,}")
        return value

    return check


def _choose_kernels(mode: str) -> str:
    """Puts the mode into the environment, where the kernels' loader reads it when the first model is loaded."""
    _one_of("kernels mode", KERNELS_MODES)(mode)
    os.environ[KERNELS_VARIABLE] = mode
    return mode


def _complete(names: tuple[str, ...]) -> Callable[[str], list[str]]:
    return lambda incomplete: [name for name in names if name.startswith(incomplete)]


def _complete_model(incomplete: str) -> list[str]:
    from specllm.app.models import list_models

    listing = list_models()
    names = [pair.pair.name for pair in listing.pairs] + [row.model.name for row in listing.models]
    return [name for name in names if name.startswith(incomplete)]


_request = functools.partial(typer.Option, rich_help_panel="Request")
_models = functools.partial(typer.Option, rich_help_panel="Models")
_drafting = functools.partial(typer.Option, rich_help_panel="Drafting")
_sampling = functools.partial(typer.Option, rich_help_panel="Sampling")
_machine = functools.partial(typer.Option, rich_help_panel="Machine")
_output = functools.partial(typer.Option, rich_help_panel="Output")


@dataclasses.dataclass(frozen=True, kw_only=True)
class RequestOptions(TemplateOptions):
    """What is asked beside the prompt."""

    system: Annotated[str | None, _request("--system", "-s", metavar="TEXT", help="System message.")] = None
    raw: Annotated[
        bool,
        _request(
            "--raw",
            help="No chat template: continue the prompt as it is. Special tokens are read in typed words, not in files.",
        ),
    ] = False
    max_tokens: Annotated[int, _request("--max-tokens", "-n", metavar="N", help="Most tokens to generate.")] = (
        GenerateConfig().max_tokens
    )
    stop: Annotated[
        list[str] | None, _request("--stop", metavar="TEXT", help="End before this text; may be repeated.")
    ] = None

    logprobs: Annotated[
        int | None,
        _request("--logprobs", metavar="N",
                 help="With --json or --trace: each token's log probability and its N best alternatives'."),
    ] = None  # fmt: skip

    def config(self, structure: StructureConfig | None, trace: Path | None, *, n_typed: int) -> GenerateConfig:
        return GenerateConfig(
            max_tokens=self.max_tokens, stop=tuple(self.stop or ()), system=self.system, is_raw=self.raw, trace=trace,
            logprobs=self.logprobs, structure=structure, template_vars=self.variables(), n_typed=n_typed,
        )  # fmt: skip


@dataclasses.dataclass(frozen=True, kw_only=True)
class ModelOptions:
    """Which files."""

    model: Annotated[
        str | None,
        _models(
            "--model", "-m", metavar="MODEL", autocompletion=_complete_model,
            help="Target: a model or pair by name, a .gguf path, or hub:owner/repo:file.gguf.",
        ),
    ] = None  # fmt: skip
    draft_model: Annotated[
        str | None,
        _models("--draft-model", metavar="MODEL", autocompletion=_complete_model,
                help="A small model of the same vocabulary."),
    ] = None  # fmt: skip


@dataclasses.dataclass(frozen=True, kw_only=True)
class DraftOptions:
    """Who proposes, and how much."""

    drafter: Annotated[str | None, drafter_option(DRAFTERS)] = None
    draft_length: Annotated[
        int | None,
        _drafting("-k", "--draft-length", metavar="N",
                  help=f"Tokens drafted per round, up to {MAX_DRAFT_LENGTH}; 0 is plain decoding; by default what pays."),
    ] = None  # fmt: skip
    confidence: Annotated[
        float, _drafting("--confidence", metavar="P", help="The draft model stops below this probability.")
    ] = DraftConfig().confidence_floor
    min_match: Annotated[int, _drafting("--min-match", metavar="N", help="Lookup needs so many repeated tokens.")] = (
        DraftConfig().lookup_min_match
    )
    draft_ctx: Annotated[
        int,
        _drafting("--draft-ctx", metavar="N", callback=_at_most("draft context", MAX_CTX),
                  help="The draft model's own window, tokens."),
    ] = DraftConfig().draft_ctx  # fmt: skip

    store: Annotated[
        str | None, _drafting("--store", metavar="NAME", help="Draft from this store too, and keep answers in it.")
    ] = None
    exact: Annotated[
        bool,
        _drafting("--exact", help="Draft only so much at a time that no near tie can flip: the text is plain decoding's in "
                  "every token, for less speed."),
    ] = False  # fmt: skip
    recalibrate: Annotated[
        bool, _drafting("--recalibrate", help="Measure anew what forwards cost on this machine.")
    ] = False

    def config(self) -> DraftConfig:
        return DraftConfig(
            drafter=self.drafter or DraftConfig().drafter, draft_length=self.draft_length, confidence_floor=self.confidence,
            lookup_min_match=self.min_match, draft_ctx=self.draft_ctx, is_recalibrated=self.recalibrate,
            is_exact=self.exact, store=self.store,
        )  # fmt: skip


@dataclasses.dataclass(frozen=True, kw_only=True)
class SamplingOptions:
    """How a token is picked; what is not set comes from the model's entry, then from llama.cpp's defaults."""

    temperature: Annotated[float | None, _sampling("--temperature", "-t", metavar="T", help="0 is greedy.")] = None
    top_k: Annotated[int | None, _sampling("--top-k", metavar="N", help="Keep the N likeliest tokens; 0 is off.")] = (
        None
    )
    top_p: Annotated[
        float | None, _sampling("--top-p", metavar="P", help="Keep the likeliest tokens up to this mass; 1 is off.")
    ] = None
    min_p: Annotated[
        float | None, _sampling("--min-p", metavar="P", help="Drop tokens below this share of the best; 0 is off.")
    ] = None
    repeat_penalty: Annotated[float | None, _sampling("--repeat-penalty", metavar="X", help="1 is off.")] = None
    frequency_penalty: Annotated[float | None, _sampling("--frequency-penalty", metavar="X", help="0 is off.")] = None
    presence_penalty: Annotated[float | None, _sampling("--presence-penalty", metavar="X", help="0 is off.")] = None
    penalty_last_n: Annotated[
        int | None,
        _sampling("--penalty-last-n", metavar="N", help="How far back penalties look; -1 is the whole context."),
    ] = None
    logit_bias: Annotated[
        list[str] | None,
        _sampling("--logit-bias", metavar="TOKEN=BIAS", help="Added to the token's logit; may be repeated."),
    ] = None
    seed: Annotated[int | None, _sampling("--seed", metavar="N", help="Same seed, same text, whatever drafts.")] = None

    def chosen(self) -> dict[str, Any]:
        """The SamplingConfig fields that were set."""
        values = dataclasses.asdict(self) | {"logit_bias": logit_bias(self.logit_bias) or None}
        return {name: value for name, value in values.items() if value is not None}


@dataclasses.dataclass(frozen=True, kw_only=True)
class MachineOptions:
    """How models are loaded and contexts made."""

    ctx: Annotated[
        int,
        _machine("--ctx", "-c", metavar="N", callback=_at_most("context size", MAX_CTX),
                 help="Context size in tokens; 0 fits prompt and answer."),
    ] = ContextConfig().n_ctx  # fmt: skip
    threads: Annotated[
        int,
        _machine("--threads", metavar="N", callback=_at_most("threads", MAX_THREADS),
                 help="0 takes the physical cores."),
    ] = ContextConfig().threads  # fmt: skip
    gpu_layers: Annotated[str, _machine("--gpu-layers", metavar="N", help="auto, all or a number.")] = "auto"
    draft_gpu_layers: Annotated[
        str, _machine("--draft-gpu-layers", metavar="N", help="The same for the draft model.")
    ] = "auto"
    kv_type: Annotated[
        str,
        _machine("--kv-type", metavar="TYPE", autocompletion=_complete(KV_TYPES), callback=_one_of("KV type", KV_TYPES),
                 help=f"Numbers in the KV cache: {', '.join(KV_TYPES)}."),
    ] = ContextConfig().kv_type  # fmt: skip
    flash_attention: Annotated[
        str,
        _machine("--flash-attention", metavar="|".join(FLASH_ATTENTION), autocompletion=_complete(FLASH_ATTENTION),
                 callback=_one_of("flash attention mode", FLASH_ATTENTION), help="Quantized KV types need it."),
    ] = ContextConfig().flash_attention  # fmt: skip
    batch: Annotated[
        int, _machine("--batch", metavar="N", callback=_at_most("batch size", MAX_CTX),
                      help="Tokens per llama_decode call."),
    ] = ContextConfig().n_batch  # fmt: skip
    ubatch: Annotated[
        int, _machine("--ubatch", metavar="N", callback=_at_most("ubatch size", MAX_CTX),
                      help="Tokens computed at once; memory grows with it."),
    ] = ContextConfig().n_ubatch  # fmt: skip
    kernels: Annotated[
        str,
        _machine("--kernels", metavar="|".join(KERNELS_MODES), envvar=KERNELS_VARIABLE, show_envvar=False,
                 autocompletion=_complete(KERNELS_MODES), callback=_choose_kernels,
                 help="Compute with specllm's kernels where they work, or not; on: an error where they do not."),
    ] = "auto"  # fmt: skip
    mmap: Annotated[bool, _machine("--mmap/--no-mmap", help="Map the file instead of reading it.")] = (
        ContextConfig().use_mmap
    )
    mlock: Annotated[bool, _machine("--mlock", help="Keep the weights in RAM.")] = ContextConfig().use_mlock

    def config(self) -> ContextConfig:
        return ContextConfig(
            n_ctx=self.ctx, threads=self.threads, gpu_layers=gpu_layers(self.gpu_layers),
            kv_type=self.kv_type, flash_attention=self.flash_attention,  # type: ignore[arg-type]
            n_batch=self.batch, n_ubatch=self.ubatch, use_mmap=self.mmap, use_mlock=self.mlock,
        )  # fmt: skip

    def draft_layers(self) -> GpuLayers:
        return gpu_layers(self.draft_gpu_layers)


@dataclasses.dataclass(frozen=True, kw_only=True)
class OutputOptions:
    """What is shown beside the text."""

    as_json: Annotated[bool, _output("--json", help="Exactly one JSON document on stdout.")] = False
    stats: Annotated[bool, _output("--stats", help="Print a table of all figures at the end.")] = False
    color_accepted: Annotated[bool, _output("--color-accepted", help="Colour the text by who proposed it.")] = False
    live: Annotated[bool, _output("--live", help="Show the rounds, acceptance and speed below the text.")] = False
    trace: Annotated[Path | None, _output("--trace", metavar="FILE", help="Write one JSON line per round.")] = None
    quiet: Annotated[bool, _output("--quiet", "-q", help="No status line and no stats line.")] = False


def spread(command: Callable[..., None]) -> Callable[..., None]:
    """The command as typer wants it: every parameter that is a dataclass becomes that class's fields, each an option."""
    hints = get_type_hints(command, include_extras=True)
    groups: dict[str, Any] = {name: hint for name, hint in hints.items() if dataclasses.is_dataclass(hint)}
    parameters = []
    for name, parameter in inspect.signature(command).parameters.items():
        if name in groups:
            of_fields = get_type_hints(groups[name], include_extras=True)
            parameters += [
                parameter.replace(name=field.name, default=field.default, annotation=of_fields[field.name])
                for field in dataclasses.fields(groups[name])
            ]
        else:
            parameters.append(parameter.replace(annotation=hints[name]))

    def flat(**values: Any) -> None:
        for name, group in groups.items():
            values[name] = group(**{field.name: values.pop(field.name) for field in dataclasses.fields(group)})
        command(**values)

    flat.__name__, flat.__doc__ = command.__name__, command.__doc__
    flat.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    flat.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return flat


class Command(TyperCommand):
    """A command whose help lists its options under headings."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        sections: dict[str, list[tuple[str, str]]] = {}
        for parameter in self.get_params(ctx):
            record = parameter.get_help_record(ctx)
            if record is None:
                continue
            panel = getattr(parameter, "rich_help_panel", None) or "Other options"
            if parameter.param_type_name == "argument":
                panel, record = "Arguments", (parameter.metavar or parameter.name, record[1])
            sections.setdefault(panel, []).append(record)
        for heading, records in sections.items():
            with formatter.section(heading):
                formatter.write_dl(records)
