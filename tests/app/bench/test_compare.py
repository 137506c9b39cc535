"""Two documents of benchmarks: what has become slower, and what cannot be compared."""

from __future__ import annotations

from pathlib import Path

import pytest

from specllm.app.bench.compare import compare, read_document
from specllm.errors import ConfigError


def document(*speeds: tuple[str, str, float, float | None, float | None], **parts) -> dict:
    table = [
        {"category": category, "arm": arm, "speedup": mean, "speedup_low": low, "speedup_high": high}
        for category, arm, mean, low, high in speeds
    ]
    return {"schema": 1, "command": "bench", "host": {}, "models": {}, "params": {}, "result": {"rows": table}, **parts}


def test_slower_is_an_interval_below_the_old_one():
    old = document(("code", "auto", 1.5, 1.4, 1.6), ("chat", "auto", 1.0, 0.9, 1.1), ("all", "auto", 1.2, 1.1, 1.3))
    new = document(("code", "auto", 1.3, 1.2, 1.39), ("chat", "auto", 0.85, 0.8, 0.91), ("all", "auto", 1.5, 1.4, 1.6))
    found = compare(old, new)
    assert [(one.category, one.arm) for one in found.slower] == [("code", "auto")]
    assert (found.n_compared, found.warnings) == (3, [])
    assert compare(new, new).slower == []


def test_what_cannot_be_compared_and_what_has_changed_is_told():
    old = document(
        ("code", "auto", 1.5, None, None), ("chat", "auto", 1.0, 0.9, 1.1), host={"processor": "A"}, params={"runs": 1}
    )
    new = document(("code", "auto", 1.1, 1.0, 1.2), host={"processor": "B"}, params={"runs": 2})
    warnings = "\n".join(compare(old, new).warnings)
    for part in ('processor was "A", is "B"', "runs was 1, is 2", "code auto: no interval", "chat auto is not in"):
        assert part in warnings


@pytest.mark.parametrize("text", ["", "[]", '{"command": "generate"}', '{"command": "bench", "schema": 2}',
                                  '{"command": "bench", "schema": 1, "result": {"simulation": {}}}'])  # fmt: skip
def test_documents_of_another_kind_are_refused(tmp_path: Path, text):
    file = tmp_path / "old.json"
    file.write_text(text, encoding="utf-8")
    with pytest.raises(ConfigError):
        read_document(file)
