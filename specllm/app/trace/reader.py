"""From a trace to the run it was written in. The file may come from anywhere: every line is checked before one is used."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, BinaryIO, Literal, NamedTuple, NoReturn, TypeGuard, cast, get_args

from specllm.decoding.protocols import FORCED, Draft, Round, StopReason
from specllm.errors import ConfigError

FinishReason = Literal["stop", "length", "interrupted"]

TARGET = "target"  # the source of corrected and bonus tokens, as `shown` has it
_MAX_LINE = 4 * 2**20  # bytes; a round of 512 tokens has 30 KB
_MAX_COUNT = 2**31 - 1  # token ids and positions of llama.cpp are of 32 bits
_MAX_S = 1e7  # no step took longer
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,31}")
_MAKE_ONE = "write one with `specllm generate --trace FILE ..`"


class Chunk(NamedTuple):
    text: str
    source: str


class Step(NamedTuple):
    """One line of a trace: a round, the text that was released after it, and the log probabilities it has."""

    round: Round
    shown: tuple[Chunk, ...]
    logprobs: tuple[Mapping[str, Any], ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class Trace:
    """A run as it was."""

    steps: tuple[Step, ...]  # at least one
    n_prompt: int
    n_reused: int
    n_prediction: int
    prefill_s: float
    finish_reason: FinishReason | None  # None: the run failed, or was killed
    strategy: str


def read_trace(path: Path) -> Trace:
    """The trace in `path` (`-` is stdin); raises ConfigError with the line that is none."""
    name = "the piped trace" if str(path) == "-" else str(path)
    try:
        if str(path) == "-":
            return _read(sys.stdin.buffer, name)
        with path.open("rb") as file:
            return _read(file, name)
    except OSError as error:
        raise ConfigError(f"cannot read {name}: {error.strerror}", _MAKE_ONE) from None


def _read(file: BinaryIO, name: str) -> Trace:
    steps: list[Step] = []
    first: Mapping[str, Any] = {}
    last: Mapping[str, Any] = {}
    while data := file.readline(_MAX_LINE + 1):
        line = _Line(name, len(steps) + 1)
        if "end" in last or (steps and steps[-1].round.reason is not None):
            line.fail(
                "the answer ended before this line",
                f"replay what is before it: head -n {len(steps)} FILE | specllm replay -",
            )
        last = line.object_of(data)
        first = first or last
        steps.append(line.step_of(last, has_text="shown" in first))
    if not steps:
        raise ConfigError(f"{name} is empty: the answer ended before its first round", _MAKE_ONE)
    one = _Line(name, 1)
    prompt, end = one.prompt_of(first), _Line(name, len(steps)).end_of(last)
    reason = steps[-1].round.reason
    finish_reason: FinishReason | None = None if reason is None else "length" if reason == "length" else "stop"
    if speed := end.get("plain_tok_per_s"):  # an older trace has one for the whole answer
        rounds = (replace(step.round, plain_s=len(step.round.tokens) / speed) for step in steps)
        steps = [step._replace(round=round) for step, round in zip(steps, rounds, strict=True)]
    return Trace(
        steps=tuple(steps), **prompt,
        finish_reason=end.get("finish_reason", finish_reason), strategy=end.get("strategy", _strategy_of(steps)),
    )  # fmt: skip


def _strategy_of(steps: list[Step]) -> str:
    """Who drafted, for a trace that does not say it."""
    names = dict.fromkeys(step.round.draft.source for step in steps if step.round.draft.tokens)
    return ", ".join(names) or "plain decoding"


class _Line:
    """Checks one line of a trace; whatever is wrong is a ConfigError that names it."""

    def __init__(self, name: str, number: int) -> None:
        self._name, self._number = name, number

    def fail(self, problem: str, hint: str = _MAKE_ONE) -> NoReturn:
        raise ConfigError(f"{self._name}, line {self._number}: {problem}", hint)

    def object_of(self, data: bytes) -> dict[str, Any]:
        if len(data) > _MAX_LINE:
            self.fail(f"longer than {_MAX_LINE >> 20} MiB, so no round of a trace")
        try:
            value = json.loads(data.decode(), parse_constant=_no_number)
        except (ValueError, RecursionError):
            if self._number > 1 and not data.endswith(b"\n"):
                self.fail("cut off in the middle: the run was killed, or the disk full",
                          f"replay what is whole: head -n {self._number - 1} FILE | specllm replay -")  # fmt: skip
            self.fail("no JSON, so no round of a trace")
        if not isinstance(value, dict) or "round" not in value:
            self.fail("not a round of a trace")
        return value

    def step_of(self, line: dict[str, Any], *, has_text: bool) -> Step:
        optional = {"end", "plain_s", "evidence", "logprobs", *(["prompt"] if self._number == 1 else [])}
        needed = _ROUND.keys() | ({"shown"} if has_text else set())
        values = self._checked(line, _ROUND | _MORE, needed, optional)
        if values["round"] != self._number - 1:
            self.fail(
                f"round {values['round']} where {self._number - 1} should be: lines are missing, or from two runs"
            )
        tokens, draft, n_accepted = values["tokens"], values["draft"], values["n_accepted"]
        if (
            n_accepted != len(tokens) - 1
            or tokens[:-1] != draft[: len(tokens) - 1]
            or values["width"] != len(draft) + 1
            or len(values["texts"]) != len(tokens)
            or len(values.get("evidence", ())) > len(draft)
        ):
            self.fail("tokens, texts, draft, n_accepted and width contradict each other")
        logprobs = tuple(values.get("logprobs", ()))
        if logprobs and [record["token"] for record in logprobs] != tokens:
            self.fail("the logprobs are not those of its tokens")
        round = Round(
            tuple(tokens),
            Draft(tuple(draft), values["source"], tuple(values.get("evidence", ()))),
            values["draft_s"],
            values["verify_s"],
            values["rest_s"],
            values["reason"],
            values.get("plain_s"),
        )
        if has_text:
            return Step(round, tuple(Chunk(*chunk) for chunk in values["shown"]), logprobs)
        sources = [round.draft.source] * n_accepted + [TARGET]
        texts = (
            values["texts"][:-1] if round.reason == "eog" else values["texts"]
        )  # its text marks the end, and is not shown
        shown = tuple(Chunk(*chunk) for chunk in zip(texts, sources, strict=False) if chunk[0])
        return Step(round, shown, logprobs)

    def prompt_of(self, line: Mapping[str, Any]) -> dict[str, Any]:
        if not isinstance(line.get("prompt"), dict):
            self.fail("nothing about the prompt: the first lines of the trace are missing")
        values = self._checked(line["prompt"], _PROMPT, _PROMPT.keys() - {"n_prediction"}, {"n_prediction"})
        if values["n_reused"] > values["n_prompt"]:
            self.fail("more of the prompt is reused than there is")
        return {"n_prediction": 0, **values}

    def end_of(self, line: Mapping[str, Any]) -> dict[str, Any]:
        if "end" not in line:
            return {}
        if not isinstance(line["end"], dict):
            self.fail("end cannot be " + _short(line["end"]))
        return self._checked(line["end"], _END, _END.keys() - {"plain_tok_per_s"}, {"plain_tok_per_s"})

    def _checked(
        self, line: dict[str, Any], checks: Mapping[str, Callable[[Any], bool]], needed: Any, optional: set[str]
    ) -> dict[str, Any]:
        for key in sorted(needed - line.keys()):
            self.fail(f"no {key}")
        for key, value in line.items():
            if key not in needed and key not in optional:
                self.fail(f"unknown key {_short(key)}", "replay it with the version of specllm that wrote it")
            if not checks[key](value):
                self.fail(f"{key} cannot be {_short(value)}")
        return line


def _no_number(name: str) -> NoReturn:
    raise ValueError(name)


def _short(value: object) -> str:
    text = ascii(value)
    return text if len(text) <= 40 else f"{text[:37]}..."


def _is_any(value: object) -> bool:
    return True  # looked into later


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= _MAX_COUNT


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_seconds(value: object) -> bool:
    return _is_number(value) and 0 <= cast(float, value) <= _MAX_S


def _is_name(value: object) -> bool:
    return isinstance(value, str) and _NAME.fullmatch(value) is not None


def _is_tokens(value: object) -> bool:
    return isinstance(value, list) and all(map(_is_count, value))


def _is_texts(value: object) -> bool:
    return isinstance(value, list) and all(isinstance(text, str) for text in value)


def _is_shown(value: object) -> bool:
    return isinstance(value, list) and all(
        isinstance(chunk, list) and len(chunk) == 2 and isinstance(chunk[0], str) and _is_name(chunk[1])
        for chunk in value
    )


def _is_logprobs(value: object) -> bool:
    return isinstance(value, list) and all(
        _is_named_token(record, {"raw", "sampled"}) and all(_is_ranking(record[name]) for name in ("raw", "sampled"))
        for record in value
    )


def _is_ranking(value: object) -> bool:
    return (
        _has_keys(value, {"logprob", "best"})
        and _is_logprob(value["logprob"])
        and isinstance(value["best"], list)
        and all(_is_named_token(one, {"logprob"}) and _is_logprob(one["logprob"]) for one in value["best"])
    )


def _is_named_token(value: object, keys: set[str]) -> bool:
    """Whether it has a token's id and text, its `bytes` (earlier traces have none), and what is under `keys`."""
    if not isinstance(value, dict) or value.keys() - {"bytes"} != {"token", "text", *keys}:
        return False
    spelled = value.get("bytes", [])
    is_bytes = isinstance(spelled, list) and all(_is_count(byte) and byte < 256 for byte in spelled)
    return _is_count(value["token"]) and isinstance(value["text"], str) and is_bytes


def _is_logprob(value: object) -> bool:
    return value is None or _is_number(value)


def _has_keys(value: object, keys: set[str]) -> TypeGuard[dict[str, Any]]:
    return isinstance(value, dict) and value.keys() == keys


_ROUND: dict[str, Callable[[Any], bool]] = {
    "round": _is_count,
    "tokens": lambda value: _is_tokens(value) and bool(value),
    "texts": _is_texts,
    "draft": _is_tokens,
    "source": _is_name,
    "n_accepted": _is_count,
    "width": _is_count,
    "draft_s": _is_seconds,
    "verify_s": _is_seconds,
    "rest_s": _is_seconds,
    "reason": lambda value: value is None or value in get_args(StopReason),
}
_MORE: dict[str, Callable[[Any], bool]] = {
    "shown": _is_shown,
    "plain_s": _is_seconds,
    "evidence": lambda value: isinstance(value, list) and all(item == FORCED or _is_count(item) for item in value),
    "logprobs": _is_logprobs,
    "prompt": _is_any,
    "end": _is_any,
}
_PROMPT: dict[str, Callable[[Any], bool]] = {
    "n_prompt": _is_count,
    "n_reused": _is_count,
    "n_prediction": _is_count,
    "prefill_s": _is_seconds,
}
_END: dict[str, Callable[[Any], bool]] = {
    "finish_reason": lambda value: value is None or value in get_args(FinishReason),
    "strategy": lambda value: isinstance(value, str) and value.isprintable() and bool(value.strip()),
    "plain_tok_per_s": lambda value: value is None or (_is_number(value) and 0 < value <= _MAX_COUNT),
}
