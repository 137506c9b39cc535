"""Hostile, damaged and honest GGUF files."""

from __future__ import annotations

import struct
import time
import tracemalloc
from pathlib import Path

import gguf
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specllm.errors import BadModelFile, ModelNotFound
from specllm.models import gguf_header, gguf_reader
from specllm.models.gguf_header import ArrayInfo, read_header
from specllm.models.gguf_types import TENSOR_TYPES
from tests import synthetic

MAX_PEAK_BYTES = 12 << 20  # two read-ahead chunks, the buffer and what the header is worth


def refused(path: Path) -> BadModelFile:
    """The error that reading `path` ends in; its hint is never empty."""
    with pytest.raises(BadModelFile) as caught:
        read_header(path)
    assert caught.value.hint
    return caught.value


def start(version: int = 3, n_tensors: int = 0, n_keys: int = 0) -> bytes:
    return b"GGUF" + struct.pack("<IQQ", version, n_tensors, n_keys)


def text(value: bytes) -> bytes:
    return struct.pack("<Q", len(value)) + value


def key(name: bytes, kind: int, value: bytes) -> bytes:
    return text(name) + struct.pack("<I", kind) + value


def tensor(name: bytes, dims: tuple[int, ...], kind: int = 0, offset: int = 0) -> bytes:
    return text(name) + struct.pack(f"<I{len(dims)}QIQ", len(dims), *dims, kind, offset)


ARCHITECTURE = key(b"general.architecture", 8, text(b"llama"))
LAYERS = key(b"llama.block_count", 4, struct.pack("<I", 1))
WIDTH = key(b"llama.embedding_length", 4, struct.pack("<I", 8))


@pytest.fixture
def written(tmp_path: Path):
    def write(content: bytes, name: str = "model.gguf") -> Path:
        path = tmp_path / name
        path.write_bytes(content)
        return path

    return write


def test_header_of_an_attention_model_has_its_shape(llama_gguf: Path) -> None:
    header = read_header(llama_gguf)
    assert (header.architecture, header.name, header.version) == ("llama", "synthetic llama", 3)
    assert (header.n_layer, header.n_embd, header.n_ff, header.n_head) == (2, 64, 96, 4)
    assert header.n_head_kv == (2, 2)
    assert (header.key_length, header.value_length) == (16, 16)
    assert (header.n_ctx_train, header.n_vocab, header.sliding_window) == (4096, synthetic.N_VOCAB, 0)
    assert header.has_chat_template
    assert header.n_parts == 1
    assert header.file_bytes == llama_gguf.stat().st_size


def test_header_of_a_recurrent_model_has_no_heads(mamba_gguf: Path) -> None:
    header = read_header(mamba_gguf)
    assert header.n_head_kv == (0, 0)
    assert header.number("ssm.state_size") == 8
    assert header.number("ssm.group_count", 7) == 7


def test_tensors_are_where_the_gguf_library_finds_them(llama_gguf: Path) -> None:
    known = {t.name: t for t in gguf.GGUFReader(llama_gguf).tensors}
    header = read_header(llama_gguf)
    assert {t.name for t in header.tensors} == set(known)
    for found in header.tensors:
        expected = known[found.name]
        assert (found.offset, found.n_bytes) == (expected.data_offset, expected.n_bytes)
        assert found.dims == tuple(int(n) for n in expected.shape)
        assert found.type == expected.tensor_type.name
    assert header.weight_bytes == sum(t.n_bytes for t in known.values())


def test_token_lists_are_described_and_never_built(llama_gguf: Path) -> None:
    metadata = read_header(llama_gguf).metadata
    assert metadata["tokenizer.ggml.tokens"] == ArrayInfo(8, synthetic.N_VOCAB)
    assert len(metadata["tokenizer.ggml.scores"]) == synthetic.N_VOCAB


def test_tensor_sizes_are_those_of_the_gguf_library() -> None:
    for kind, (n_numbers, n_bytes) in gguf.GGML_QUANT_SIZES.items():
        if kind == gguf.GGMLQuantizationType.Q8_1:
            continue  # the library's 40 bytes are of another time; block_q8_1 has 36 since its sums are halves
        assert TENSOR_TYPES[int(kind)] == (kind.name, n_numbers, n_bytes)


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "is empty"),
        (b"just some notes\n", "a text file"),
        (b"<!DOCTYPE html>\n<html>", "a web page"),
        (b"\n  <html lang='en'>", "a web page"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:00", "git-lfs pointer"),
        (b"PK\x03\x04" + bytes(9), "zip archive"),
        (struct.pack("<Q", 20) + b'{"__metadata__":{}}', "safetensors"),
        (b"tjgg" + bytes(9), "before August 2023"),
        (bytes(700), "zeros only"),
        (b"\x89PNG\r\n\x1a\n", "starts with b'\\x89PNG'"),
        (b"GG", "a text file"),
        (b"GGUF", "truncated in its header"),
        (start()[:15], "truncated in its header"),
        (b"GGUF" + struct.pack(">IQQ", 3, 0, 0), "big-endian"),
        (start(version=1), "version 1"),
        (start(version=9), "version 9"),
        (start(n_keys=2**63), "claims to have"),
        (start(n_tensors=2**40), "claims to have"),
        (start(n_keys=1), "truncated in its header"),
        (start(), "does not name its architecture"),
        (start(n_keys=1) + text(b""), "is empty"),
        (start(n_keys=1) + text(b"a\0b"), "cut by a NUL"),
        (start(n_keys=1) + text(b"\xff\xfe"), "not UTF-8"),
        (start(n_keys=1) + struct.pack("<Q", 2**62) + b"abc", "claims a key"),
        (start(n_keys=1) + key(b"a", 8, struct.pack("<Q", 2**64 - 1)), "claims a text"),
        (start(n_keys=1) + key(b"a", 99, b""), "unknown type 99"),
        (start(n_keys=1) + key(b"a", 9, struct.pack("<IQ", 8, 2**60)), "claims"),
        (start(n_keys=1) + key(b"a", 9, struct.pack("<IQ", 8, 2**20) + bytes(64)), "claims"),
        (start(n_keys=1) + key(b"a", 9, struct.pack("<IQ", 10, 2**61)), "truncated in its header"),
        (start(n_keys=1) + key(b"a", 9, struct.pack("<IQ", 9, 1)), "an array of type 9"),
        (start(n_keys=2) + ARCHITECTURE * 2, "twice"),
        (start(n_keys=1) + key(b"general.alignment", 4, struct.pack("<I", 24)), "alignment"),
        (start(n_keys=1) + key(b"general.alignment", 4, struct.pack("<I", 0)), "alignment"),
        (start(n_keys=1) + ARCHITECTURE, "does not say its llama.block_count"),
        (start(n_keys=2) + ARCHITECTURE + key(b"llama.block_count", 5, struct.pack("<i", -1)), "which cannot be"),
        (start(n_keys=2) + ARCHITECTURE + key(b"llama.block_count", 8, text(b"two")), "which cannot be"),
        (start(n_keys=2) + ARCHITECTURE + key(b"llama.block_count", 4, b"\xff" * 4), "which cannot be"),
        (start(n_tensors=1) + tensor(b"t" * 64, (4,)), "claims a tensor name"),
        (start(n_tensors=1) + tensor(b"t", (1, 1, 1, 1, 1)), "5 dimensions"),
        (start(n_tensors=1) + tensor(b"t", (2**40, 2**40)), "impossible shape"),
        (start(n_tensors=1) + tensor(b"t", (31,), kind=2), "impossible shape"),
        (start(n_tensors=1) + tensor(b"t", (4,), kind=77), "unknown type 77"),
        (start(n_tensors=1) + tensor(b"t", (4,), offset=32), "wrong place"),
        (start(n_tensors=1) + tensor(b"t", (4,), offset=2**64 - 32), "wrong place"),
        (start(n_tensors=2) + tensor(b"t", (8,)) + tensor(b"t", (8,), offset=32), "twice"),
        (start(n_tensors=1) + tensor(b"t", (2**30,)), "is truncated"),
    ],
)  # fmt: skip
def test_every_defect_is_named(written, content: bytes, says: str) -> None:
    assert says in refused(written(content)).message


def test_hostile_counts_cost_no_memory(written) -> None:
    hostile = [
        start(n_keys=60_000) + bytes(64),
        start(n_keys=1) + key(b"a", 9, struct.pack("<IQ", 8, 2**24)) + bytes(64),
        start(n_keys=1) + key(b"a", 8, struct.pack("<Q", 2**24)),
        start(n_tensors=65_536),
    ]
    for content in hostile:
        path = written(content)
        tracemalloc.start()
        refused(path)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < MAX_PEAK_BYTES


def test_a_sparse_giant_with_an_endless_header_is_given_up(tmp_path: Path) -> None:
    path = tmp_path / "giant.gguf"
    with path.open("wb") as file:
        file.write(start(n_keys=1) + key(b"a", 9, struct.pack("<IQ", 0, 2**33)))
        file.truncate(2**35)
    assert "claims a header of more than" in refused(path).message


def test_truncated_tensor_data_says_how_much_is_there(llama_gguf: Path, written) -> None:
    content = llama_gguf.read_bytes()
    error = refused(written(content[:-1000]))
    assert f"{len(content) - 1000} of {len(content)} bytes" in error.message
    assert "specllm models pull" in error.hint


def test_a_folder_a_missing_file_and_a_bad_path_are_told_apart(tmp_path: Path) -> None:
    assert "is a folder" in refused(tmp_path).message
    assert "cannot be read" in refused(tmp_path / "a\0b").message
    for missing in (tmp_path / "no.gguf", Path(__file__) / "no.gguf"):
        with pytest.raises(ModelNotFound):
            read_header(missing)


def test_an_unreadable_file_is_told(llama_gguf: Path, written, monkeypatch: pytest.MonkeyPatch) -> None:
    path = written(llama_gguf.read_bytes())

    def denied(*_: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "open", denied)
    assert "cannot be read: Permission denied" in refused(path).message


def test_a_file_is_read_once_until_it_changes(llama_gguf: Path, written, monkeypatch: pytest.MonkeyPatch) -> None:
    content = llama_gguf.read_bytes()
    path, reading, n_read = written(content), gguf_header.read_part, []

    def counting(path: Path) -> gguf_reader.Part:
        n_read.append(path)
        return reading(path)

    monkeypatch.setattr(gguf_header, "read_part", counting)
    assert read_header(path) == read_header(path)
    assert len(n_read) == 1
    path.write_bytes(content[:-1000])
    assert "is truncated" in refused(path).message
    path.write_bytes(b"")
    assert "is empty" in refused(path).message
    path.unlink()
    with pytest.raises(ModelNotFound):
        read_header(path)


def vocabulary(*texts: bytes) -> bytes:
    values = b"".join(map(text, texts))
    return start(n_keys=1) + key(b"tokenizer.ggml.tokens", 9, struct.pack("<IQ", 8, len(texts)) + values)


@pytest.mark.parametrize("n_others", [3, 500])  # a list that is kept, and one that is stepped over
def test_two_tokens_with_one_text_are_named(written, n_others: int) -> None:
    """llama.cpp aborts the whole process there."""
    others = [b"%d" % token for token in range(n_others)]
    error = refused(written(vocabulary(*others, b"the", b"an", b"the", b"an")))
    assert f"two tokens with the text 'the': {n_others} and {n_others + 2}" in error.message
    no_text = refused(written(vocabulary(*others, b"\xff", b"", b"", b"\xff"), "bytes.gguf"))
    assert f"{n_others} and {n_others + 3}" in no_text.message


@pytest.mark.parametrize("n_others", [3, 500])
def test_empty_texts_and_equal_texts_of_other_lists_are_no_duplicates(written, n_others: int) -> None:
    others = [b"%d" % token for token in range(n_others)]
    content = vocabulary(*others, b"", b"")
    assert "does not name its architecture" in refused(written(content)).message
    merges = content.replace(b"tokenizer.ggml.tokens", b"tokenizer.ggml.merges")
    twice = merges.replace(text(b"1"), text(b"2"), 1)
    assert "does not name its architecture" in refused(written(twice, "merges.gguf")).message


def split_model(folder: Path) -> list[Path]:
    """A model of three parts, one tensor each, as gguf-split makes them."""
    paths = [folder / f"model-{part:05}-of-00003.gguf" for part in (1, 2, 3)]
    for number, path in enumerate(paths):
        writer = gguf.GGUFWriter(path, "llama")
        writer.add_uint16("split.no", number)
        writer.add_uint16("split.count", 3)
        if number == 0:
            writer.add_block_count(1)
            writer.add_embedding_length(8)
        writer.add_tensor(f"t{number}", np.ones((4, 8), np.float32))
        synthetic._close(writer, path)
    return paths


def test_a_split_model_counts_all_its_parts(tmp_path: Path) -> None:
    paths = split_model(tmp_path)
    header = read_header(paths[0])
    assert header.paths == tuple(paths)
    assert header.weight_bytes == 3 * 4 * 8 * 4
    assert header.file_bytes == sum(path.stat().st_size for path in paths)


def test_a_later_part_points_to_the_first(tmp_path: Path) -> None:
    paths = split_model(tmp_path)
    assert str(paths[0]) in refused(paths[1]).hint


def test_a_missing_or_truncated_part_is_named(tmp_path: Path) -> None:
    paths = split_model(tmp_path)
    paths[2].write_bytes(paths[2].read_bytes()[:-8])
    assert f"{paths[2]} is truncated" in refused(paths[0]).message
    paths[2].unlink()
    assert f"{paths[2].name} is missing" in refused(paths[0]).message


def test_a_renamed_part_says_what_its_name_should_end_in(tmp_path: Path) -> None:
    path = split_model(tmp_path)[0].rename(tmp_path / "model.gguf")
    assert "-00001-of-00003.gguf" in refused(path).message


@pytest.fixture(scope="module")
def fuzzed(tmp_path_factory: pytest.TempPathFactory) -> tuple[bytes, Path]:
    """A small model without weights worth mentioning, and a place for its damaged copies."""
    folder = tmp_path_factory.mktemp("fuzz")
    whole = synthetic.write_llama(folder / "whole.gguf", n_embd=8, n_layer=1, n_head=2, n_head_kv=1)
    return whole.read_bytes(), folder / "damaged.gguf"


EDITS = st.tuples(
    st.floats(0, 1),
    st.one_of(
        st.binary(min_size=1, max_size=8),
        st.sampled_from([b"\xff" * 8, bytes(8), struct.pack("<Q", 2**31), struct.pack("<Q", 2**63), b"\x09\0\0\0"]),
    ),
)


@settings(max_examples=300, deadline=5000)
@given(edits=st.lists(EDITS, min_size=1, max_size=4), kept=st.one_of(st.none(), st.floats(0, 1)))
def test_damaged_bytes_end_in_bad_model_file_or_a_header(
    fuzzed: tuple[bytes, Path], edits: list[tuple[float, bytes]], kept: float | None
) -> None:
    whole, path = fuzzed
    content = bytearray(whole)
    for place, new in edits:
        at = int(place * min(len(content) - len(new), 12_000))  # the header ends there
        content[at : at + len(new)] = new
    path.write_bytes(content if kept is None else content[: int(kept * len(content))])
    try:
        header = read_header(path)
    except BadModelFile:
        return
    assert header.weight_bytes <= header.file_bytes
    assert len(header.n_head_kv) == header.n_layer


@settings(max_examples=100, deadline=5000)
@given(content=st.binary(max_size=200), version=st.integers(2, 3), counts=st.tuples(*[st.integers(0, 3)] * 2))
def test_random_bytes_behind_a_magic_end_in_bad_model_file(
    fuzzed: tuple[bytes, Path], content: bytes, version: int, counts: tuple[int, int]
) -> None:
    fuzzed[1].write_bytes(start(version, *counts) + content)
    refused(fuzzed[1])


def test_a_vocabulary_of_150k_tokens_reads_in_a_blink(tmp_path: Path) -> None:
    path = synthetic.write_llama(tmp_path / "large.gguf", n_embd=8, n_layer=1, n_head=2, n_head_kv=1,
                                 extra_tokens=150_000)  # fmt: skip
    started = time.process_time()
    assert read_header(path).n_vocab == synthetic.N_VOCAB + 150_000
    assert time.process_time() - started < 0.3
