"""What `specllm doctor` finds: one fact per check, how bad it is, and the step that mends it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from specllm.errors import SpecllmError

Status = Literal["ok", "warn", "fail"]


@dataclass(frozen=True, slots=True)
class Check:
    """`warn` works, though not as well as it could; `fail` does not work."""

    name: str
    status: Status
    fact: str
    fix: str = ""  # a command where there is one

    def as_result(self) -> dict[str, object]:
        return {"name": self.name, "status": self.status, "fact": self.fact, "fix": self.fix or None}


@dataclass(frozen=True, slots=True)
class Diagnosis:
    checks: tuple[Check, ...]

    @property
    def failed(self) -> tuple[Check, ...]:
        return tuple(check for check in self.checks if check.status == "fail")

    @property
    def is_ok(self) -> bool:
        return not self.failed

    def as_result(self) -> dict[str, object]:
        counts = {
            f"n_{status}": sum(check.status == status for check in self.checks) for status in ("ok", "warn", "fail")
        }
        return {"is_ok": self.is_ok, **counts, "checks": [check.as_result() for check in self.checks]}


def attempt(name: str, look: Callable[[], Check], *, status: Status = "fail") -> Check:
    """What `look` finds; an expected failure of it becomes a check of that status."""
    try:
        return look()
    except SpecllmError as error:
        return Check(name, status, error.message, error.hint)


def counted(n: int, noun: str) -> str:
    return f"{n:,} {noun}{'' if n == 1 else 's'}"


def listed(words: Sequence[str]) -> str:
    return ", ".join(words) or "none"
