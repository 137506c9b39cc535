"""Options that several commands share, each defined once."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Optional

import typer

from specllm.config import GpuLayers
from specllm.errors import ConfigError

_MODELS, _SAMPLING, _DRAFTING, _MACHINE = "Models", "Sampling", "Drafting", "Machine"


def gpu_layers(value: str) -> GpuLayers:
    """`auto`, `all` or a number."""
    if value == "auto" or value == "all":
        return value  # type: ignore[return-value]
    if value.isdecimal():
        return int(value)
    raise ConfigError(f"--gpu-layers {value}", "use auto, all, or a number from 0")


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


Model = Annotated[
    Optional[str],
    typer.Option("--model", "-m", help="Target: a model or pair by name, a .gguf path, or hub:owner/repo:file.gguf."),
]
DraftModel = Annotated[Optional[str], typer.Option("--draft-model", help="A small model of the same vocabulary.")]
Drafter = Annotated[Optional[str], typer.Option("--drafter", "-d", help="none, lookup or model.")]
DraftLength = Annotated[
    Optional[int], typer.Option("-k", "--draft-length", help="Most tokens drafted per round; 0 is plain decoding.")
]
MaxTokens = Annotated[int, typer.Option("-n", "--max-tokens", help="Most tokens to generate.")]
Temperature = Annotated[Optional[float], typer.Option("--temperature", "-t", help="0 is greedy.")]
TopK = Annotated[Optional[int], typer.Option("--top-k", help="Keep the K likeliest tokens; 0 is off.")]
TopP = Annotated[Optional[float], typer.Option("--top-p", help="Keep the likeliest tokens up to this mass; 1 is off.")]
MinP = Annotated[Optional[float], typer.Option("--min-p", help="Drop tokens below this share of the best; 0 is off.")]
RepeatPenalty = Annotated[Optional[float], typer.Option("--repeat-penalty", help="1 is off.")]
FrequencyPenalty = Annotated[Optional[float], typer.Option("--frequency-penalty", help="0 is off.")]
PresencePenalty = Annotated[Optional[float], typer.Option("--presence-penalty", help="0 is off.")]
PenaltyLastN = Annotated[
    Optional[int], typer.Option("--penalty-last-n", help="How far back penalties look; -1 is the whole context.")
]
LogitBias = Annotated[Optional[list[str]], typer.Option("--logit-bias", help="TOKEN=BIAS, may be repeated.")]
Seed = Annotated[Optional[int], typer.Option("--seed", help="Same seed, same text, whatever drafts.")]
Ctx = Annotated[int, typer.Option("--ctx", "-c", help="Context size in tokens; 0 fits prompt and answer.")]
Threads = Annotated[int, typer.Option("--threads", help="0 takes the physical cores.")]
GpuLayersText = Annotated[str, typer.Option("--gpu-layers", help="auto, all or a number.")]
DraftGpuLayersText = Annotated[str, typer.Option("--draft-gpu-layers", help="The same for the draft model.")]
KvType = Annotated[str, typer.Option("--kv-type", help="KV cache: f16, q8_0, q4_0, ..")]
FlashAttention = Annotated[str, typer.Option("--flash-attention", help="auto, on or off.")]
BatchSize = Annotated[int, typer.Option("--batch", help="Tokens per llama_decode call.")]
UbatchSize = Annotated[int, typer.Option("--ubatch", help="Tokens computed at once; memory grows with it.")]
UseMmap = Annotated[bool, typer.Option("--mmap/--no-mmap", help="Map the file instead of reading it.")]
UseMlock = Annotated[bool, typer.Option("--mlock", help="Keep the weights in RAM.")]
AsJson = Annotated[bool, typer.Option("--json", help="Exactly one JSON document on stdout.")]
TraceFile = Annotated[Optional[Path], typer.Option("--trace", help="Write one JSON line per round.")]
