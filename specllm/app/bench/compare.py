"""Two benchmark documents side by side: where the newer one is slower by more than chance explains."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from specllm.errors import ConfigError

SCHEMA = 1
_HOST = ("processor", "machine", "llama_cpp_python", "build", "specllm")
_LARGE_CHANGE = 0.1  # of plain decoding's speed: speed-ups are then not of the same machine


@dataclass(frozen=True, slots=True)
class Slower:
    """A category and arm whose interval lies below the older one's."""

    category: str
    arm: str
    old: tuple[float, float, float]  # speed-up, low, high
    new: tuple[float, float, float]

    def as_dict(self) -> dict[str, object]:
        names = ("speedup", "speedup_low", "speedup_high")
        return {
            "category": self.category,
            "arm": self.arm,
            "old": dict(zip(names, self.old, strict=True)),
            "new": dict(zip(names, self.new, strict=True)),
        }


@dataclass(frozen=True, slots=True)
class Comparison:
    slower: list[Slower]
    n_compared: int
    warnings: list[str]

    def as_dict(self) -> dict[str, object]:
        return {
            "slower": [one.as_dict() for one in self.slower],
            "n_compared": self.n_compared,
            "warnings": self.warnings,
        }


def read_document(path: Path) -> dict[str, Any]:
    """A document that `bench --json` wrote; raises ConfigError for anything else."""
    hint = "give a file written by `specllm bench --json > FILE`"
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}", hint) from None
    except ValueError:
        raise ConfigError(f"{path} is no JSON document", hint) from None
    if not isinstance(document, dict) or document.get("command") != "bench":
        raise ConfigError(f"{path} is no document of bench", hint)
    if document.get("schema") != SCHEMA:
        raise ConfigError(f"{path} has schema {document.get('schema')}, this is schema {SCHEMA}", hint)
    result = document.get("result")
    rows = result.get("rows") if isinstance(result, dict) else None
    names = {"category", "arm"}
    if not isinstance(rows, list) or not all(isinstance(row, dict) and names <= row.keys() for row in rows):
        raise ConfigError(f"{path} has no rows to compare with", hint)
    return document


def compare(old: Mapping[str, Any], new: Mapping[str, Any]) -> Comparison:
    """Every category and arm that both have an interval for; slower is one whose whole interval is below the old one."""
    before, after = _by_name(old), _by_name(new)
    slower, warnings, n_compared = [], _changes(old, new), 0
    for name, row in before.items():
        category, arm = name
        if arm == "none":
            continue
        if name not in after:
            warnings.append(f"{category} {arm} is not in the new one")
            continue
        was, now = _interval(row), _interval(after[name])
        if was is None or now is None:
            warnings.append(f"{category} {arm}: no interval (one prompt only), not compared")
            continue
        n_compared += 1
        if now[2] < was[1]:
            slower.append(Slower(category, arm, was, now))
    return Comparison(slower, n_compared, warnings)


def _by_name(document: Mapping[str, Any]) -> dict[tuple[str, str], Mapping[str, Any]]:
    return {(row["category"], row["arm"]): row for row in document["result"]["rows"]}


def _interval(row: Mapping[str, Any]) -> tuple[float, float, float] | None:
    values = tuple(row.get(name) for name in ("speedup", "speedup_low", "speedup_high"))
    return values if all(isinstance(value, int | float) for value in values) else None  # type: ignore[return-value]


def _changes(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    """What else than specllm may explain a difference."""
    warnings = []
    for part, names in (("host", _HOST), ("models", None), ("params", None)):
        was, now = old.get(part) or {}, new.get(part) or {}
        for name in names or sorted({*was, *now} - {"seed"}):
            if was.get(name) != now.get(name):
                warnings.append(f"{part}: {name} was {_short(was.get(name))}, is {_short(now.get(name))}")
    before, after = (_by_name(document).get(("all", "none"), {}).get("decode_tok_per_s") for document in (old, new))
    if before and after and abs(after / before - 1) > _LARGE_CHANGE:
        warnings.append(f"plain decoding ran at {before:.1f} tok/s, now at {after:.1f}")
    return warnings


def _short(value: object) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 60 else f"{text[:57]}..."
