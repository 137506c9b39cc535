"""llama.cpp's log as Python log records."""

from __future__ import annotations

import logging
import sys
from pathlib import Path

import pytest

from specllm.errors import BackendError
from specllm.runtime import log

INFO, WARN, ERROR, CONT = 2, 3, 4, 5


@pytest.fixture
def joiner() -> log.LineJoiner:
    return log.LineJoiner()


def test_whole_lines_keep_their_level(joiner: log.LineJoiner) -> None:
    assert joiner.feed(INFO, "loaded\n") == [(logging.INFO, "loaded")]
    assert joiner.feed(ERROR, "failed\nbadly\n") == [(logging.ERROR, "failed"), (logging.ERROR, "badly")]


def test_a_line_in_pieces_is_one_record_of_its_first_level(joiner: log.LineJoiner) -> None:
    assert joiner.feed(WARN, "tensor ") == []
    assert joiner.feed(CONT, "'output'") == []
    assert joiner.feed(CONT, " is odd\n") == [(logging.WARNING, "tensor 'output' is odd")]


def test_an_unfinished_line_ends_where_the_next_begins(joiner: log.LineJoiner) -> None:
    joiner.feed(INFO, "progress")
    joiner.feed(CONT, "...")
    assert joiner.feed(ERROR, "stopped\n") == [(logging.INFO, "progress..."), (logging.ERROR, "stopped")]


def test_blank_lines_are_dropped(joiner: log.LineJoiner) -> None:
    assert joiner.feed(INFO, "\n\n  \n") == []


def test_a_failed_load_says_why(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    log.install()
    import llama_cpp

    log.forget_errors()
    path = tmp_path / "broken.gguf"
    path.write_bytes(b"GGUF\x03\0\0\0")
    with caplog.at_level(logging.DEBUG, logger="specllm.llama"):
        assert not llama_cpp.llama_model_load_from_file(str(path).encode(), llama_cpp.llama_model_default_params())
    assert any("failed" in line for line in log.recent_errors())
    assert {record.name for record in caplog.records} == {"specllm.llama"}
    assert capfd.readouterr() == ("", "")
    log.forget_errors()
    assert log.recent_errors() == []


def test_errors_hide_warnings(monkeypatch: pytest.MonkeyPatch) -> None:
    log.forget_errors()
    log._receive(WARN, b"careful\n", None)
    assert log.recent_errors() == ["careful"]
    log._receive(ERROR, b"bad \xff\n", None)
    assert log.recent_errors() == ["bad \ufffd"]
    for number in range(200):
        log._receive(ERROR, b"error %d\n" % number, None)
    assert log.recent_errors() == [f"error {number}" for number in range(150, 200)]
    log.forget_errors()


def test_a_binding_that_does_not_load_names_the_rebuild_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log, "_callback", None)
    monkeypatch.setitem(sys.modules, "llama_cpp", None)  # import llama_cpp now raises ImportError
    with pytest.raises(BackendError) as caught:
        log.install()
    assert "scripts/setup --rebuild" in caught.value.hint


def test_installing_twice_keeps_one_callback() -> None:
    log.install()
    first = log._callback
    log.install()
    assert log._callback is first
