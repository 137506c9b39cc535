"""What a model file, a name or llama.cpp says reaches the terminal as text, and at a length somebody can read."""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specllm.ui.console import MAX_SHOWN, shown, write_error, write_note, write_warning
from tests import synthetic
from tests.cli.conftest import QUICK, Result, run, run_all

HOSTILE = "\x1b[2J\x1b]0;owned\x07\x9b31m\u202e\r"
OBEYED = ("\x1b", "\x07", "\x9b", "\u202e", "\r", "\x00")


def require_harmless(result: Result) -> None:
    for text in (result.stdout, result.stderr):
        assert not any(sign in text for sign in OBEYED), text[:500]
        assert len(text) < 4 * MAX_SHOWN


@given(st.text())
def test_nothing_in_a_note_is_obeyed_or_endless(text):
    for write in (write_note, write_warning, partial(write_error, hint=text)):
        printed: list[str] = []
        stream = type(
            "Stream", (), {"write": printed.append, "flush": lambda self=None: None, "isatty": lambda self: False}
        )()
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(sys, "stderr", stream)
            write(text)
        assert not any(ord(c) < 32 and c not in "\t\n" for c in "".join(printed))
    assert len(shown("a" * 10**6)) < MAX_SHOWN + 100


def test_a_model_file_cannot_speak_to_the_terminal(tmp_path: Path) -> None:
    long = "a" * 5_000_000
    refusing = synthetic.write_llama(
        tmp_path / "refuses.gguf", chat_template=f"{{{{ raise_exception('{HOSTILE}' ~ 'a' * 5000000) }}}}"
    )
    broken = synthetic.write_llama(tmp_path / "broken.gguf", chat_template=f"{{% {HOSTILE}{long} %}}")
    bare = synthetic.write_llama(tmp_path / f"{HOSTILE.replace(chr(13), '')}.gguf".replace("/", ""), chat_template=None)
    rest = (*QUICK[:4], "--drafter", "none", "-n", "3")
    results = run_all([
        partial(run, "generate", "hi", "-m", str(refusing), *rest),
        partial(run, "generate", "hi", "-m", str(refusing), *rest, "--json"),
        partial(run, "-vv", "generate", "hi", "-m", str(broken), *rest),
        partial(run, "generate", "hi", "-m", str(bare), *rest, "--json"),
        partial(run, "generate", "hi", "-m", str(bare), *rest, "--debug", "--template-var", f"{HOSTILE}=1"),
        partial(run, "generate", "hi", "-m", f"{HOSTILE}{long[:90000]}", *rest),
        partial(run, "models", "show", HOSTILE),
        partial(run, "generate", "hi", "--drafter", HOSTILE),
    ])  # fmt: skip
    assert [result.code for result in results[:4]] == [2, 2, 2, 0]
    assert "has no chat template" in results[3].stderr
    for result in (*results[:2], *results[3:]):
        require_harmless(result)
    assert not any(sign in results[2].stderr for sign in OBEYED)
    assert max(map(len, results[2].stderr.splitlines())) < 2 * MAX_SHOWN
