"""Saved conversations: whole or not at all, and never in the place of something else."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specllm.app.chat.transcript import Transcript, clean, load, save
from specllm.app.chat.use_case import Turn
from specllm.errors import ConfigError, StorageError

TURNS = [
    Turn(
        message="one\ntwo", text="drei 海 👩‍🚀", n_message=2, n_answer=5, finish_reason="length", stats={"n_reused": 7}
    ),
    Turn(message="/save", text="", n_message=1, n_answer=0),
]
TALK = Transcript("be brief", TURNS, "and?")


def written(folder: Path, *lines: str) -> Path:
    path = folder / "talk.jsonl"
    path.write_text("\n".join(lines), encoding="utf-8")
    return path


def test_a_conversation_is_a_line_a_message_with_its_tokens(tmp_path):
    path = tmp_path / "talk.jsonl"
    save(path, TALK, "some-model", may_replace=False)
    lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    assert lines[:3] == [
        {"role": "system", "content": "be brief"},
        {"role": "user", "content": "one\ntwo", "n_tokens": 2},
        {"role": "assistant", "content": "drei 海 👩‍🚀", "n_tokens": 5, "finish_reason": "length", "model": "some-model",
         "n_reused": 7},
    ]  # fmt: skip
    assert lines[-1] == {"role": "user", "content": "and?"}
    assert list(tmp_path.iterdir()) == [path]
    assert path.stat().st_mode & 0o077 == 0  # for the user's eyes


@given(st.none() | st.text(), st.lists(st.tuples(st.text(), st.text())), st.none() | st.text())
def test_what_is_saved_is_loaded(tmp_path_factory, system, pairs, unanswered):
    pairs = [(clean(message), clean(text)) for message, text in pairs]
    system, unanswered = system and clean(system), unanswered and clean(unanswered)
    turns = [Turn(message=message, text=text, n_message=len(message), n_answer=len(text)) for message, text in pairs]
    path = tmp_path_factory.getbasetemp() / "roundtrip.jsonl"
    path.unlink(missing_ok=True)
    save(path, Transcript(system, turns, unanswered), "m", may_replace=False)
    if system is None and not turns and unanswered is None:
        with pytest.raises(ConfigError, match="is empty"):
            load(path, len)
    else:
        assert load(path, len) == Transcript(system, turns, unanswered)


def test_a_file_that_is_there_stays_unless_it_may_be_replaced(tmp_path):
    path = written(tmp_path, "precious")
    with pytest.raises(StorageError, match="is there already") as error:
        save(path, TALK, "m", may_replace=False)
    assert "--force" in error.value.hint
    assert path.read_text(encoding="utf-8") == "precious"
    path.chmod(0o640)
    save(path, TALK, "m", may_replace=True)
    assert load(path, len).turns[0].message == "one\ntwo"
    assert path.stat().st_mode & 0o777 == 0o640
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("may_replace", [False, True])
def test_what_cannot_be_written_is_told_and_leaves_nothing(tmp_path, monkeypatch, may_replace):
    for path in (tmp_path, tmp_path / "missing" / "talk.jsonl", Path("/dev/full")):
        with pytest.raises(StorageError, match="cannot write"):
            save(path, TALK, "m", may_replace=may_replace)

    def full(number: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(StorageError, match="No space left"):
        save(tmp_path / "talk.jsonl", TALK, "m", may_replace=may_replace)
    assert list(tmp_path.iterdir()) == []


def test_a_full_disk_costs_no_file_that_was_there(tmp_path, monkeypatch):
    path = written(tmp_path, "precious")

    def full(number: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(StorageError):
        save(path, TALK, "m", may_replace=True)
    assert path.read_text(encoding="utf-8") == "precious"
    assert list(tmp_path.iterdir()) == [path]


USER, ASSISTANT = '{"role": "user", "content": "a"}', '{"role": "assistant", "content": "b"}'


@pytest.mark.parametrize(
    ("lines", "says"),
    [
        ([], "is empty"),
        (["once upon a time"], "line 1: this is no JSON"),
        ([USER, ASSISTANT[:-3]], "line 2: this is no JSON"),
        ([USER, "[1]"], "line 2: there is no text"),
        (['{"role": "user", "content": 5}'], "line 1: there is no text"),
        (['{"role": "tool", "content": "a"}'], "line 1: no role 'tool'"),
        ([USER, "", USER], "line 3: user where assistant"),
        ([ASSISTANT], "line 1: assistant where user"),
        ([USER, ASSISTANT, '{"role": "system", "content": "a"}'], "line 3: system where user"),
        (["[" * 100_000], "line 1: this is no JSON"),
    ],
)
def test_a_broken_file_is_told_with_its_line(tmp_path, lines, says):
    with pytest.raises(ConfigError, match=says) as error:
        load(written(tmp_path, *lines), len)
    assert error.value.hint


def test_files_that_cannot_be_read_are_told(tmp_path):
    (tmp_path / "latin.jsonl").write_bytes(USER.replace("a", "ä").encode("latin1"))
    for name, says in (("latin.jsonl", "not UTF-8"), ("missing", "No such file"), (".", "cannot read")):
        with pytest.raises(ConfigError, match=says):
            load(tmp_path / name, len)


def test_other_programs_files_are_read(tmp_path):
    path = written(tmp_path, "\ufeff" + USER, "", '{"role": "assistant", "content": "\\ud800b", "id": 7}')
    assert [(turn.message, turn.text) for turn in load(path, len).turns] == [("a", "?b")]
