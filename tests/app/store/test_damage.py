"""Damaged files of stores: refused with the next step, and made anew."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from specllm.app.store.file import FIXED
from specllm.app.store.stores import stats
from specllm.errors import ConfigError, StorageError
from specllm.runtime.vocab import Vocab
from tests.app.store.stores import Add, Told, opened


def flipped(data: bytes, at: int) -> bytes:
    at %= len(data)
    return data[:at] + bytes([data[at] ^ 0x10]) + data[at + 1 :]


@pytest.mark.parametrize("share", [0.0, 0.001, 0.01, 0.3, 0.5, 0.99])
def test_a_file_that_was_cut_short_is_refused_and_made_anew(
    add: Add, project: Path, vocab: Vocab, share: float
) -> None:
    index = Path(add(project).path)
    whole = index.read_bytes()
    index.write_bytes(whole[: int(len(whole) * share)])
    with pytest.raises(StorageError, match="damaged") as failure:
        opened(vocab)
    assert failure.value.hint == "make it anew: specllm store add PATH.. --store mine"
    with pytest.raises(ConfigError):
        add()  # what it was made of is lost with it
    told = Told()
    assert add(project, progress=told).n_new == 2
    assert "what it held is lost" in told.messages[0]
    assert index.read_bytes() == whole


def test_a_flipped_bit_anywhere_is_found(add: Add, project: Path, vocab: Vocab) -> None:
    index = Path(add(project).path)
    whole = index.read_bytes()
    for at in [*range(28), *range(28, len(whole), 37), -1, -4]:
        index.write_bytes(flipped(whole, at))
        with pytest.raises(StorageError):
            opened(vocab)


@pytest.mark.parametrize("n_tokens", ["4", -40, 4.5, None])
def test_a_number_of_tokens_that_is_none_is_found_in_the_head_alone(add: Add, project: Path, n_tokens: object) -> None:
    """Listing stores reads no more than that."""
    index = Path(add(project).path)
    whole = index.read_bytes()
    fixed = list(FIXED.unpack_from(whole))
    start = FIXED.size + fixed[2]
    head = json.loads(whole[FIXED.size : start])
    head["documents"][0]["n_tokens"] = n_tokens
    content = json.dumps(head).encode()
    fixed[2] = len(content)
    index.write_bytes(FIXED.pack(*fixed) + content + whole[start:])
    assert "its head cannot be read" in str(stats("mine").parts[0].problem)


def test_a_file_that_is_too_long_of_another_version_or_machine_is_refused(
    add: Add, project: Path, vocab: Vocab
) -> None:
    index = Path(add(project).path)
    whole = index.read_bytes()
    index.write_bytes(whole + b"\0" * 8)
    with pytest.raises(StorageError, match="longer than it should be"):
        opened(vocab)
    index.write_bytes(whole[:8] + (2).to_bytes(4, "little") + whole[12:])
    with pytest.raises(StorageError, match="of version 2"):
        opened(vocab)
    index.write_bytes(whole.replace(b'"little"', b'"big"   '))
    with pytest.raises(StorageError, match="another kind of machine"):
        opened(vocab)
    assert stats("mine").parts[0].problem


def test_damaged_answers_are_refused_and_dropped_by_the_next_add(add: Add, project: Path, vocab: Vocab) -> None:
    index = Path(add(project).path)
    answers = index.with_suffix(".answers")
    answers.write_bytes(b"nonsense")
    with pytest.raises(StorageError, match="damaged"):
        opened(vocab)
    add()
    assert not answers.exists()
    opened(vocab)
