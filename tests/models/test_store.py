"""Installed files, digests, the user's entries, and models that other tools left on the disk."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import resource
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from specllm.app import models as app
from specllm.errors import BadModelFile, ConfigError, DigestMismatch, ModelNotFound, StorageError
from specllm.models import disk, store
from specllm.models.found import find_on_disk
from specllm.models.registry import Registry
from specllm.models.store import installed_path, recorded_digest, verify
from tests.models.wheelhouse import CONTENT, tiny_model

OLLAMA_LAYER = "application/vnd.ollama.image.model"


def gguf(path: Path, content: bytes = b"GGUF") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return path


def test_a_file_of_the_wrong_size_is_not_installed(models_dir: Path) -> None:
    gguf(models_dir / "tiny.gguf")
    assert installed_path(tiny_model()) is None
    gguf(models_dir / "tiny.gguf", CONTENT)
    assert installed_path(tiny_model()) == models_dir / "tiny.gguf"


def test_verify_reads_every_byte_and_reports_them(models_dir: Path) -> None:
    gguf(models_dir / "tiny.gguf", CONTENT)
    seen: list[int] = []
    verified = verify(tiny_model(), seen.append)
    assert verified.sha256 == hashlib.sha256(CONTENT).hexdigest()
    assert sum(seen) == len(CONTENT)


def test_one_changed_bit_is_a_mismatch_that_deletes_nothing(models_dir: Path) -> None:
    changed = bytearray(CONTENT)
    changed[5000] ^= 1
    path = gguf(models_dir / "tiny.gguf", bytes(changed))
    with pytest.raises(DigestMismatch) as caught:
        verify(tiny_model())
    assert hashlib.sha256(changed).hexdigest() in caught.value.message
    assert str(tiny_model().sha256) in caught.value.message
    assert caught.value.hint == "move the file away, then: specllm models pull tiny"
    assert path.read_bytes() == changed


def test_verify_records_the_digest_of_a_model_nobody_vouches_for(models_dir: Path) -> None:
    model = tiny_model(sha256=None)
    path = gguf(models_dir / "tiny.gguf", CONTENT)
    assert verify(model).is_first_record
    assert not verify(model).is_first_record
    path.write_bytes(b"GGUG" + CONTENT[4:])
    with pytest.raises(DigestMismatch):
        verify(model)


def test_verify_of_a_file_used_in_place_does_not_offer_a_pull(
    models_dir: Path, user_file: Path, tmp_path: Path
) -> None:
    path = gguf(tmp_path / "x.gguf")
    app.add_model("mine", path)
    assert app.verify_models(["mine"])[0].is_first_record
    path.write_bytes(b"GGUG")
    with pytest.raises(DigestMismatch) as caught:
        app.verify_models(["mine"])
    assert "copy it again" in caught.value.hint


def test_verify_of_a_missing_model_says_how_to_get_it(models_dir: Path) -> None:
    with pytest.raises(ModelNotFound) as caught:
        verify(tiny_model())
    assert caught.value.hint == "specllm models pull tiny"


@given(st.binary(max_size=60) | st.sampled_from([b"[]", b"{}", b'{"sha256": "a", "bytes": "x"}', b"null"]))
def test_a_spoiled_digest_record_counts_as_none(content: bytes) -> None:
    model = tiny_model(sha256=None)
    path = store.models_dir() / ".digests" / "tiny.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    assert recorded_digest(model) is None


def test_added_text_keeps_every_byte_that_was_there(user_file: Path, tmp_path: Path) -> None:
    old = b"# mine\r\ndefault = 'qwen3'  # \xe2\x9c\x93\r\n[pairs]\r\n# end without a newline"
    user_file.write_bytes(old)
    path = gguf(tmp_path / 'my "odd" model ü.gguf')
    added = app.add_model("my-model", path)
    assert added.user_file == user_file
    assert user_file.read_bytes().startswith(old)
    model = Registry.load().model("my-model")
    assert (model.local_path, model.bytes) == (path, 4)
    assert Registry.load().default == "qwen3"


def test_two_added_models_both_work(user_file: Path, tmp_path: Path) -> None:
    for name in ("first", "v1.second"):
        app.add_model(name, gguf(tmp_path / f"{name}.gguf"))
        assert app.locate(name).path == tmp_path / f"{name}.gguf"


@pytest.mark.parametrize("name", ["qwen3-8b", "qwen3"])
def test_a_name_that_is_taken_is_refused(name: str, user_file: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=f"there is a {name} already"):
        app.add_model(name, gguf(tmp_path / "x.gguf"))
    assert not user_file.exists()


@pytest.mark.parametrize("name", ["../x", "", "a b", "hub:a/b:c.gguf", "x" * 251])
def test_an_unsafe_name_is_refused(name: str, user_file: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be a name"):
        app.add_model(name, gguf(tmp_path / "x.gguf"))


def test_only_a_gguf_can_be_added(user_file: Path, tmp_path: Path) -> None:
    with pytest.raises(BadModelFile):
        app.add_model("x", gguf(tmp_path / "x.gguf", b"<htm"))
    with pytest.raises(ModelNotFound):
        app.add_model("x", tmp_path / "missing.gguf")
    with pytest.raises(ConfigError, match=r"cannot be written to models\.toml"):
        app.add_model("x", gguf(tmp_path / "line\nbreak.gguf"))
    assert not user_file.exists()


def test_a_broken_users_file_is_left_alone(user_file: Path, tmp_path: Path) -> None:
    user_file.write_text("models = [")
    with pytest.raises(ConfigError):
        app.add_model("x", gguf(tmp_path / "x.gguf"))
    assert user_file.read_text() == "models = ["


def test_a_write_that_fails_leaves_the_old_file_and_no_other(
    user_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    user_file.write_text("# mine\n")

    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(disk, "sync", full)
    with pytest.raises(StorageError, match="no space left"):
        app.add_model("x", gguf(tmp_path / "x.gguf"))
    assert {path.name for path in user_file.parent.iterdir()} == {"models.toml", ".models.lock"}
    assert user_file.read_text() == "# mine\n"


@pytest.mark.parametrize("made_of", [None, "y"])
def test_a_model_that_got_no_entry_has_no_digest_on_record(
    made_of: str | None, user_file: Path, models_dir: Path, tmp_path: Path
) -> None:
    path = gguf(tmp_path / "a path that\nno entry can have.gguf")
    with pytest.raises(ConfigError, match=r"cannot be written to models\.toml"):
        app.add_model("x", path, made_of=made_of)
    assert recorded_digest(tiny_model(name="x")) is None


@pytest.mark.skipif(os.name == "nt", reason="symlinks need rights on Windows")
def test_a_disk_that_fills_up_under_a_tensor_is_told_as_one(tmp_path: Path) -> None:
    """numpy says only how much it wrote."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, limits[1]))
    try:
        with pytest.raises(StorageError, match="no space left on the disk of"), disk.storage_errors(tmp_path / "big"):
            np.zeros(10_000).tofile(tmp_path / "big")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


def test_a_users_file_that_is_a_symlink_stays_one(user_file: Path, tmp_path: Path) -> None:
    real = tmp_path / "dotfiles.toml"
    real.write_text("# mine\n")
    user_file.symlink_to(real)
    app.add_model("x", gguf(tmp_path / "x.gguf"))
    assert user_file.is_symlink()
    assert "[models." in real.read_text()


def ollama(root: Path, manifest: str, content: bytes | None = b"GGUF1") -> None:
    digest = hashlib.sha256(content or b"").hexdigest()
    layers = [
        {"mediaType": "text/plain", "digest": "x"},
        {"mediaType": OLLAMA_LAYER, "digest": f"sha256:{digest}"},
    ]
    path = root / "manifests" / manifest
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"schemaVersion": 2, "layers": layers}))
    if content is not None:
        gguf(root / "blobs" / f"sha256-{digest}", content)


def test_models_of_ollama_are_found_by_their_tags(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OLLAMA_MODELS", str(tmp_path / "ollama"))
    ollama(tmp_path / "ollama", "host/library/llama3.2/1b")
    ollama(tmp_path / "ollama", "host/someone/tuned/latest", b"GGUF2")
    ollama(tmp_path / "ollama", "host/library/gone/1b", None)
    ollama(tmp_path / "ollama", "host/library/picture/1b", b"PNG.")
    assert [entry.name for entry in find_on_disk()] == ["llama3.2:1b", "someone/tuned:latest"]
    assert app.locate("llama3.2:1b").path.read_bytes() == b"GGUF1"
    assert app.locate("someone/tuned:latest").model is None


@pytest.mark.parametrize(
    "text",
    [
        "", "[]", "null", "{", '{"layers": 5}', '{"layers": [5]}', '{"layers": [{"mediaType": 1, "digest": 2}]}',
        json.dumps({"layers": [{"mediaType": OLLAMA_LAYER, "digest": "sha256:../../../etc/passwd"}]}),
        json.dumps({"layers": [{"mediaType": OLLAMA_LAYER, "digest": ["sha256:" + "0" * 64]}]}),
        json.dumps({"layers": [{"mediaType": OLLAMA_LAYER}]}),
        "[" * 200_000,
        '{"layers": "' + "x" * (1 << 20) + '"}',
    ],
)  # fmt: skip
def test_a_corrupt_or_hostile_manifest_is_passed_over(
    text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OLLAMA_MODELS", str(tmp_path / "ollama"))
    ollama(tmp_path / "ollama", "host/library/good/1b")
    (tmp_path / "ollama" / "manifests" / "host" / "library" / "good" / "bad").write_text(text)
    assert [entry.name for entry in find_on_disk()] == ["good:1b"]


def test_files_of_the_other_tools_are_found_each_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = tmp_path / "home"
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    monkeypatch.setenv("LLAMA_CACHE", str(tmp_path / "llama"))
    snapshots = tmp_path / "hf" / "hub" / "models--o--r" / "snapshots"
    blob = gguf(tmp_path / "hf" / "hub" / "models--o--r" / "blobs" / "abc")
    for revision in ("one", "two"):
        (snapshots / revision).mkdir(parents=True)
        (snapshots / revision / "from-hub.gguf").symlink_to(blob)
    gguf(tmp_path / "llama" / "o_r_from-llama.gguf")
    gguf(tmp_path / "llama" / "half.gguf.downloadInProgress")
    gguf(tmp_path / "llama" / "page.gguf", b"<htm")
    gguf(home / ".lmstudio" / "models" / "o" / "r" / "from-lmstudio.gguf")
    gguf(home / ".lmstudio" / "models" / "o" / "r" / "mmproj-model.gguf")
    for part in (1, 2):
        gguf(home / ".lmstudio" / "models" / "o" / "s" / f"split-0000{part}-of-00002.gguf")
    gguf(home / ".lmstudio" / "models" / "o" / "s" / "incomplete-00001-of-00002.gguf")
    found = {entry.name: entry for entry in find_on_disk()}
    assert {name: entry.origin for name, entry in found.items()} == {
        "from-hub": "hub",
        "o_r_from-llama": "llama.cpp",
        "from-lmstudio": "lmstudio",
        "split": "lmstudio",
    }
    assert found["split"].bytes == 8


def test_two_files_of_one_name_are_told_apart_and_a_models_name_is_never_shadowed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LLAMA_CACHE", str(tmp_path / "llama"))
    gguf(tmp_path / "llama" / "a" / "same.gguf", b"GGUFa")
    gguf(tmp_path / "llama" / "b" / "same.gguf", b"GGUFb")
    gguf(tmp_path / "llama" / "qwen3-8b.gguf", b"GGUFc")
    registry = Registry.load()
    assert [entry.name for entry in registry.found()] == [
        "qwen3-8b@llama.cpp",
        "same@llama.cpp",
        "same@llama.cpp-2",
    ]
    assert registry.resolve("same@llama.cpp-2").local_path == tmp_path / "llama" / "b" / "same.gguf"
    assert registry.resolve("qwen3-8b").local_path is None


def test_a_file_name_with_control_characters_is_not_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LLAMA_CACHE", str(tmp_path / "llama"))
    gguf(tmp_path / "llama" / "evil\x1b[2J.gguf")
    assert find_on_disk() == []


def test_a_pairs_name_locates_both_models(models_dir: Path, monkeypatch: pytest.MonkeyPatch, user_file: Path) -> None:
    user_file.write_text(
        'default = "both"\n'
        '[models.big]\nfile = "big.gguf"\nsources = [{ kind = "hub", repo = "o/r", file = "big.gguf" }]\n'
        "sampling = { temperature = 0.5 }\n"
        '[models.small]\nfile = "small.gguf"\nsources = [{ kind = "hub", repo = "o/r", file = "small.gguf" }]\n'
        '[pairs.both]\ntarget = "big"\ndraft = "small"\ndrafter = "model"\n'
    )
    with pytest.raises(ModelNotFound, match="big is not installed") as caught:
        app.locate_pair("both")
    assert caught.value.hint == "specllm models pull both"
    gguf(models_dir / "big.gguf")
    target, draft, drafter = app.locate_pair("big")
    assert (target.name, draft, drafter) == ("big", None, "auto")
    assert target.sampling == {"temperature": 0.5}
    with pytest.raises(ModelNotFound, match="small is not installed") as caught:
        app.locate_pair(None)
    assert caught.value.hint == "specllm models pull both"
    gguf(models_dir / "small.gguf")
    for reference in ("both", "big", None):
        target, draft, drafter = app.locate_pair(reference)
        assert draft is not None
        assert (target.name, draft.name, drafter) == ("big", "small", "model")
    target, draft, drafter = app.locate_pair(str(models_dir / "big.gguf"), "small")
    assert draft is not None
    assert (target.model, draft.name, drafter) == (None, "small", "auto")


def test_an_added_file_that_moved_away_says_where_it_should_be(user_file: Path, tmp_path: Path) -> None:
    path = gguf(tmp_path / "x.gguf")
    app.add_model("mine", path)
    path.unlink()
    with pytest.raises(ModelNotFound, match="mine should be at"):
        app.locate("mine")
