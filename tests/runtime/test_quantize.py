"""Quantizing in a process of its own: what llama.cpp says of a failure, and Ctrl-C."""

from __future__ import annotations

import os
import signal
import threading
from pathlib import Path

import pytest

from specllm.errors import BadModelFile
from specllm.runtime.quantize import quantize


def test_why_llama_cpp_refuses_is_told(llama_gguf: Path, tmp_path: Path) -> None:
    (tmp_path / "half.gguf").write_bytes(llama_gguf.read_bytes()[:5000])
    with pytest.raises(BadModelFile, match=r"cannot quantize half\.gguf to q8_0: .*fail") as failure:
        quantize(tmp_path / "half.gguf", tmp_path / "out.gguf", "q8_0", has_small_output=True)
    assert "\n" not in failure.value.message
    assert failure.value.hint


def test_ctrl_c_ends_it_and_its_process(tmp_path: Path) -> None:
    """It reads a pipe into which nobody writes, and could wait for ever."""
    source = tmp_path / "pipe"
    os.mkfifo(source)
    timer = threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT))
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        quantize(source, tmp_path / "out.gguf", "q8_0", has_small_output=True)
    with pytest.raises(OSError, match="No such device"):  # nobody reads any more
        os.open(source, os.O_WRONLY | os.O_NONBLOCK)


def test_python_files_where_it_is_run_are_none_of_its_own(
    llama_gguf: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "llama_cpp.py").write_text("raise SystemExit('not ours')")
    monkeypatch.chdir(tmp_path)
    quantize(llama_gguf, tmp_path / "out.gguf", "q8_0", has_small_output=True)
    assert (tmp_path / "out.gguf").exists()
