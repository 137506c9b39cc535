"""What a user can choose, as frozen values that are valid once they exist. Defaults live here and nowhere else."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from specllm.errors import ConfigError

MAX_DRAFT_LENGTH = 512  # the widest block llama.cpp computes in one piece here (n_ubatch)

DRAFTERS = ("auto", "none", "reference", "lookup", "store", "model")
CHAT_DRAFTERS = tuple(name for name in DRAFTERS if name != "reference")  # which needs a text to predict the answer from

OUR_TEMPLATE_VARS = ("messages", "add_generation_prompt", "bos_token", "eos_token")  # which no user sets

MAX_LOGPROBS = 20  # alternatives to a token

Overflow = Literal["drop", "error"]  # what a chat does when its context is full: drop the oldest turns, or refuse
OVERFLOWS: tuple[Overflow, ...] = ("drop", "error")

CONTROLLED_DRAFT_LENGTH = 127  # the most a controller may choose: the widest block that is measured is 128

GpuLayers = int | Literal["auto", "all"]
StructureKind = Literal["json_schema", "json_object", "regex", "choice", "grammar"]
KvType = Literal["f32", "f16", "bf16", "q8_0", "q5_1", "q5_0", "q4_1", "q4_0"]
KERNELS_MODES = ("auto", "on", "off")  # use specllm's where they work; an error where they do not; never
KERNELS_VARIABLE = "SPECLLM_KERNELS"  # the environment's, because they are put in place once per process
KV_TYPES: tuple[KvType, ...] = ("f32", "f16", "bf16", "q8_0", "q5_1", "q5_0", "q4_1", "q4_0")


def check(is_valid: bool, message: str, hint: str) -> None:
    """Raises ConfigError unless `is_valid`."""
    if not is_valid:
        raise ConfigError(message, hint)


@dataclass(frozen=True, kw_only=True, slots=True)
class SamplingConfig:
    """How a token is picked from a row of logits; the defaults are llama.cpp's."""

    temperature: float = 0.8  # 0 is greedy
    top_k: int = 40  # 0 keeps all
    top_p: float = 0.95  # 1 keeps all
    min_p: float = 0.05  # 0 keeps all
    repeat_penalty: float = 1.0  # 1 is off
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    penalty_last_n: int = 64  # how far back penalties look; 0 is off, -1 the whole context
    logit_bias: tuple[tuple[int, float], ...] = ()  # (token, added to its logit); -inf forbids
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("temperature", "top_p", "min_p", "repeat_penalty", "frequency_penalty", "presence_penalty"):
            value = getattr(self, name)
            check(math.isfinite(value), f"{name} is {value}", "give a finite number")
        check(self.temperature >= 0, f"temperature is {self.temperature}", "use 0 for greedy or a positive number")
        check(self.top_k >= 0, f"top_k is {self.top_k}", "use 0 for all tokens or a positive number")
        check(0 < self.top_p <= 1, f"top_p is {self.top_p}", "use a number above 0 and at most 1 (1 is off)")
        check(0 <= self.min_p <= 1, f"min_p is {self.min_p}", "use a number from 0 (off) to 1")
        check(self.repeat_penalty > 0, f"repeat_penalty is {self.repeat_penalty}", "use 1 (off) or a number above 0")
        check(self.penalty_last_n >= -1, f"penalty_last_n is {self.penalty_last_n}", "use -1, 0 or a positive number")
        check(0 <= self.seed < 2**64, f"seed is {self.seed}", "use a whole number from 0 to 2^64 - 1")
        for token, bias in self.logit_bias:
            check(
                token >= 0 and not math.isnan(bias) and bias != math.inf,
                f"logit bias {token}={bias}",
                "use TOKEN=NUMBER, or TOKEN=-inf to forbid a token",
            )


@dataclass(frozen=True, kw_only=True, slots=True)
class ContextConfig:
    """How one model is loaded and its context made."""

    n_ctx: int = 0  # tokens; 0: as many as the prompt and the answer need
    n_batch: int = 512  # tokens handed to one llama_decode
    n_ubatch: int = 512  # tokens computed at once; compute buffers grow with it
    n_outputs_max: int = 1  # logits rows one forward may ask for: draft length + 1
    threads: int = 0  # 0: the physical cores
    gpu_layers: GpuLayers = "auto"
    kv_type: KvType = "f16"
    flash_attention: Literal["auto", "on", "off"] = "auto"
    use_mmap: bool = True
    use_mlock: bool = False

    def __post_init__(self) -> None:
        check(self.n_ctx >= 0, f"context size is {self.n_ctx}", "use --ctx with a positive number of tokens")
        check(self.n_batch >= 1, f"n_batch is {self.n_batch}", "use a positive number of tokens")
        check(self.n_ubatch >= 1, f"n_ubatch is {self.n_ubatch}", "use a positive number of tokens")
        check(self.n_outputs_max >= 1, f"n_outputs_max is {self.n_outputs_max}", "use a positive number of rows")
        check(
            self.flash_attention in ("auto", "on", "off"),
            f"flash attention {self.flash_attention!r}",
            "use auto, on or off",
        )
        check(self.threads >= 0, f"threads is {self.threads}", "use 0 for all physical cores or a positive number")
        check(self.kv_type in KV_TYPES, f"KV cache type {self.kv_type!r}", f"use one of {', '.join(KV_TYPES)}")
        if isinstance(self.gpu_layers, int):
            check(self.gpu_layers >= 0, f"gpu layers is {self.gpu_layers}", "use auto, all, or a number from 0")
        else:
            check(self.gpu_layers in ("auto", "all"), f"gpu layers {self.gpu_layers!r}", "use auto, all, or a number")


@dataclass(frozen=True, kw_only=True, slots=True)
class DraftConfig:
    """Which drafter proposes, and how much."""

    drafter: str = ""  # "" takes what models.toml says, else auto
    draft_length: int | None = None  # tokens proposed in one round; 0 is plain decoding; None: chosen round by round
    lookup_min_match: int = 3  # tokens a suffix must repeat before its continuation is proposed
    confidence_floor: float = 0.4  # the draft model stops where its next token is less likely than this
    draft_ctx: int = 2048  # the draft model's own window, tokens
    is_recalibrated: bool = False  # measure this machine anew
    is_exact: bool = False  # only blocks that compute, bit for bit, what single tokens do
    store: str | None = None  # of the user's files and earlier answers, by name: drafts are taken from it

    @property
    def is_controlled(self) -> bool:
        """Whether the draft length is chosen round by round."""
        return self.drafter != "none" and (
            self.draft_length is None or (self.drafter in ("", "auto") and self.draft_length > 0)
        )

    @property
    def most_drafted(self) -> int:
        """Tokens that a round may propose at most."""
        if self.drafter == "none":
            return 0
        return CONTROLLED_DRAFT_LENGTH if self.draft_length is None else self.draft_length

    def __post_init__(self) -> None:
        check(
            self.drafter in ("", *DRAFTERS), f"no drafter named {self.drafter!r}", f"use one of {', '.join(DRAFTERS)}"
        )
        check(
            self.draft_length is None or 0 <= self.draft_length <= MAX_DRAFT_LENGTH,
            f"draft length is {self.draft_length}",
            f"use -k with 0 (plain decoding) to {MAX_DRAFT_LENGTH}",
        )
        check(self.lookup_min_match >= 1, f"lookup_min_match is {self.lookup_min_match}", "use a positive number")
        check(
            0 <= self.confidence_floor <= 1, f"confidence_floor is {self.confidence_floor}", "use a number from 0 to 1"
        )
        check(self.drafter != "store" or self.store is not None, "there is no store to draft from",
              "name one with --store, or use --drafter lookup")  # fmt: skip
        check(self.draft_ctx >= 64, f"draft context is {self.draft_ctx}", "use at least 64 tokens")


@dataclass(frozen=True, kw_only=True, slots=True)
class StructureConfig:
    """What an answer must look like. That it can be compiled is checked where a grammar library is at hand."""

    kind: StructureKind
    text: str = ""  # the JSON schema, the regular expression, the grammar (Lark or GBNF)
    choices: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        check(
            self.kind in ("json_object", "choice") or bool(self.text.strip()),
            f"the {self.kind.replace('_', ' ')} is empty",
            "give its text or its file",
        )
        check(
            self.kind != "choice" or (bool(self.choices) and all(self.choices)),
            "a choice is empty",
            "give --choice with some text, once for every answer that is allowed",
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class GenerateConfig:
    """One request: what to continue and when to end."""

    max_tokens: int = 1024
    stop: tuple[str, ...] = ()
    system: str | None = None
    is_raw: bool = False  # no chat template
    n_typed: int | None = None  # characters that a raw prompt begins with in which special tokens are read; None: all
    template_vars: tuple[tuple[str, Any], ...] = ()  # variables of the chat template and their values
    answer_start: str = ""  # what the answer begins with: given to the model, not generated
    structure: StructureConfig | None = None  # what the answer must look like; None: anything
    logprobs: int | None = None  # log probabilities of every token and so many alternatives; None: none at all
    trace: Path | None = None

    def __post_init__(self) -> None:
        check(self.max_tokens >= 1, f"max tokens is {self.max_tokens}", "use -n with a positive number")
        check(all(self.stop), "a stop string is empty", "leave out --stop, or give it some text")
        check(
            self.logprobs is None or 0 <= self.logprobs <= MAX_LOGPROBS,
            f"log probabilities of {self.logprobs} alternatives",
            f"use --logprobs with 0 (the token's own alone) to {MAX_LOGPROBS}",
        )
