"""What somebody types who knows another tool: told what it is called here."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from specllm.cli.foreign import WORDS
from specllm.cli.main import Invocation, command_tree


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize(
    ("line", "meant"),
    [
        ("generate -p hello", 'specllm generate "TEXT"'), ("generate --prompt=hello", 'specllm generate "TEXT"'),
        ("chat -p hello", "--message"), ("generate -ngl 99 hello", "--gpu-layers"), ("tune -ngl 3", "--gpu-layers"),
        ("generate -fa on hello", "--flash-attention"), ("generate --temp 0.5 hello", "--temperature"),
        ("generate --n-predict 5 hello", "--max-tokens"), ("generate -md small hello", "--draft-model"),
        ("generate -ctk q8_0 hello", "--kv-type"), ("bench --ctx-size 512", "--ctx"),
        ("generate --draft-max 8 hello", "--draft-length"), ("models make-draft x -t 4", "--threads"),
        ("generate -cnv hello", "specllm chat"), ("run qwen2.5", "specllm chat -m"), ("pull x", "specllm models pull"),
        ("list", "specllm models list"), ("generate --num-draft-tokens 3 hello", "--draft-length"),
    ],
)  # fmt: skip
def test_another_tools_word_is_told(line: str, meant: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert Invocation(shlex.split(line)).run() in (1, 2)
    hint = capsys.readouterr().err.splitlines()[-1]
    assert hint.startswith("hint: ")
    assert meant in hint


@pytest.mark.parametrize(
    "line", ["generate -m missing.gguf -- -p", "generate -c many hello", "chat -t hot", "generate --nonsense hello"]
)
def test_our_own_words_are_left_alone(line: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert Invocation(shlex.split(line)).run() in (1, 2)
    assert "did you mean" not in capsys.readouterr().err


def test_what_is_suggested_exists() -> None:
    root = command_tree()
    options = {name for command in root.commands.values() for option in command.params for name in option.opts}
    suggested = [word.partition(" ")[0] for word in WORDS.values() if word.startswith("--")]
    assert set(suggested) <= options
    assert len(suggested) > 20
