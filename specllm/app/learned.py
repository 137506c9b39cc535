"""What was learned about a pair on this machine, kept between runs: acceptance by drafter, evidence and kind of text.

Counts only, never text or drafts. They age: what was seen a month ago counts half.
"""

from __future__ import annotations

import contextlib
import hashlib
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

from specllm.app.calibration import cache_dir, keep, read
from specllm.decoding.acceptance import Acceptance
from specllm.errors import StorageError
from specllm.models.disk import locked

HALF_LIFE_DAYS = 30.0
MOST = 60.0  # observations that old runs may count for: today's text soon knows better

TextKind = Literal["code", "prose"]

_CODE_LINE = re.compile(
    r"^\s*(def |class |import |from |#include|func |fn |let |const |var |return\b|if \(|for \()|[{};]\s*$"
)


def kind_of_text(prompt: str) -> TextKind:
    """`code` where the prompt holds some, else `prose`: acceptance differs most between these two."""
    lines = [line for line in prompt.splitlines() if line.strip()]
    n_code = sum(bool(_CODE_LINE.search(line)) for line in lines)
    return "code" if "```" in prompt or n_code > 0.2 * max(len(lines), 5) else "prose"


def file_of(target: str, draft_model: str | None) -> Path:
    digest = hashlib.sha256(f"{target}\n{draft_model}".encode()).hexdigest()[:16]
    return cache_dir() / "learned" / f"{digest}.json"


def restore(file: Path, kind: str, sources: Mapping[str, Acceptance], *, now: datetime | None = None) -> None:
    """Gives each drafter what it had learned about that kind of text; leaves it as it is where nothing usable is kept."""
    known = read(file) or {}
    try:
        age = (now or datetime.now(UTC)) - datetime.fromisoformat(known["measured_at"])
        weight = 0.5 ** max(0.0, age.total_seconds() / 86400 / HALF_LIFE_DAYS)
        for source, acceptance in sources.items():
            acceptance.restore(known["kinds"].get(kind, {}).get(source, {}), weight=weight, most=MOST)
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError):
        return


def save(file: Path, kind: str, sources: Mapping[str, Acceptance]) -> None:
    """Keeps what the drafters know now for that kind of text, beside what is kept for others."""
    with (
        contextlib.suppress(StorageError),
        locked(file.with_name("lock")),
    ):  # a cache that cannot be written is done without
        known: dict[str, Any] = read(file) or {}
        kinds = known.get("kinds")
        kinds = dict(kinds) if isinstance(kinds, dict) else {}
        kinds[kind] = {source: acceptance.counts() for source, acceptance in sources.items()}
        keep(file, {"kinds": kinds})
