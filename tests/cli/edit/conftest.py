"""The command in this process, with a model that says what each test needs."""

from __future__ import annotations

import io
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from specllm.cli import envelope
from specllm.cli.main import Invocation
from specllm.decoding.sampling import KeyedSampler
from tests.cli.conftest import Result
from tests.cli.edit.says import pick_of

QUICK = ("--threads", "1", "-k", "0")
BEFORE = "def add(a, b):\n    return a - b\n\n\ndef mul(a, b):\n    return a * b\n"
AFTER = BEFORE.replace("a - b", "a + b")
DIFF = "\n".join([
    "--- a/t.py", "+++ b/t.py", "@@ -1,5 +1,5 @@", " def add(a, b):", "-    return a - b", "+    return a + b", " ", " ",
    " def mul(a, b):", "",
])  # fmt: skip

Edit = Callable[..., Result]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, with `t.py` in it."""
    folder = tmp_path / "work"
    folder.mkdir()
    monkeypatch.chdir(folder)
    (folder / "t.py").write_text(BEFORE, newline="")
    return folder


@pytest.fixture
def edit(
    llama_gguf: Path, folder: Path, monkeypatch: pytest.MonkeyPatch, capsysbinary: pytest.CaptureFixture[bytes]
) -> Edit:
    """`specllm edit ARGUMENTS` in this process, the model saying `reply`; stdout holds bytes, undecodable ones as surrogates."""
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO()))

    def edit(*arguments: str, reply: str | bytes | list[bytes | int] = "") -> Result:
        data = reply.encode() if isinstance(reply, str) else reply
        monkeypatch.setattr(KeyedSampler, "pick", pick_of(data))
        envelope.forget()
        words = [] if "--undo" in arguments else ["-m", str(llama_gguf), *QUICK]
        code = Invocation(["edit", *arguments[:1], *words, *arguments[1:]]).run()
        captured = capsysbinary.readouterr()
        return Result(code, captured.out.decode("utf-8", "surrogateescape"), captured.err.decode())

    return edit


def untouched(folder: Path) -> bool:
    return (folder / "t.py").read_bytes() == BEFORE.encode() and [p.name for p in folder.iterdir()] == ["t.py"]
