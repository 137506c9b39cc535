"""A file that the hub's own client has in its cache is used where it lies: nothing is fetched, nothing copied."""

from __future__ import annotations

import hashlib
import os
import shutil
from pathlib import Path

import pytest

from specllm.app import models as app
from specllm.errors import DownloadError, ModelNotFound
from specllm.models.entries import HubSource
from specllm.models.pull import pull
from specllm.models.registry import Registry, hub_model
from specllm.models.store import installed_path, recorded_digest, verify
from tests.models.fake_hub import COMMIT, FakeHub
from tests.models.watching import Watching
from tests.models.wheelhouse import CONTENT, tiny_model

REFERENCE = "hub:owner/tiny:sub/tiny.gguf"
SHA256 = hashlib.sha256(CONTENT).hexdigest()
OTHER = b"GGUF, another version"


@pytest.fixture
def offline_hub(fake_hub: FakeHub, models_dir: Path, monkeypatch: pytest.MonkeyPatch) -> FakeHub:
    """What is put into it is in the cache afterwards, and there alone."""
    from huggingface_hub import constants, hf_hub_download

    def cache(file: str, content: bytes) -> Path:
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
        fake_hub.files[f"owner/tiny/{file}"] = content
        path = hf_hub_download("owner/tiny", file, cache_dir=Path(os.environ["HF_HOME"]) / "hub")
        del fake_hub.files[f"owner/tiny/{file}"]
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
        return Path(path)

    fake_hub.cache = cache  # type: ignore[attr-defined]
    return fake_hub


def test_a_hub_reference_is_used_out_of_the_cache(offline_hub, models_dir: Path) -> None:
    cached = offline_hub.cache("sub/tiny.gguf", CONTENT)
    assert app.locate(REFERENCE).path == cached
    watching = Watching()
    pulled = pull(hub_model(REFERENCE), watching)
    assert (pulled.path, pulled.sha256, pulled.was_there) == (cached, SHA256, True)
    assert not list(models_dir.glob("*.gguf"))
    assert verify(hub_model(REFERENCE)).sha256 == SHA256
    assert [entry.path for entry in Registry.load().found()] == [cached]


def test_an_entry_is_used_out_of_the_cache(offline_hub, models_dir: Path) -> None:
    cached = offline_hub.cache("tiny.gguf", CONTENT)
    model = tiny_model(sources=(HubSource(repo="owner/tiny", file="tiny.gguf"),))
    assert installed_path(model) == cached
    watching = Watching()
    assert pull(model, watching).path == cached
    assert [label for label, *_ in watching.works] == ["checking"]
    record = recorded_digest(model)
    assert record is not None
    assert (record.sha256, record.revision) == (SHA256, COMMIT)
    pull(model, again := Watching())
    assert again.works == []  # it was read once


def test_a_split_model_is_used_where_all_its_parts_are_cached(offline_hub, models_dir: Path) -> None:
    reference = "hub:owner/tiny:x-00001-of-00002.gguf"
    first = offline_hub.cache("x-00001-of-00002.gguf", CONTENT)
    with pytest.raises(ModelNotFound):
        app.locate(reference)
    offline_hub.cache("x-00002-of-00002.gguf", OTHER)
    assert app.locate(reference).path == first
    assert pull(hub_model(reference), Watching()).bytes == len(CONTENT + OTHER)


def test_the_cache_is_looked_at_where_its_variables_say(
    offline_hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    offline_hub.cache("sub/tiny.gguf", CONTENT)
    home = Path(os.environ["HF_HOME"])
    for name, place, hub in (
        ("HF_HUB_CACHE", tmp_path / "a cache 🌊", tmp_path / "a cache 🌊"),
        ("HF_HOME", tmp_path / "another", tmp_path / "another" / "hub"),
    ):
        hub.parent.mkdir(exist_ok=True)
        shutil.copytree(home / "hub", hub, symlinks=True)
        monkeypatch.setenv("HF_HOME", str(tmp_path / "nothing"))
        monkeypatch.delenv("HF_HUB_CACHE", raising=False)
        with pytest.raises(ModelNotFound):
            app.locate(REFERENCE)
        monkeypatch.setenv(name, str(place))
        assert app.locate(REFERENCE).path.is_relative_to(hub)


def test_a_snapshot_that_no_branch_names_serves_too(offline_hub) -> None:
    """Whoever asked for a commit by its hash left no note which one `main` is."""
    cached = offline_hub.cache("sub/tiny.gguf", CONTENT)
    shutil.rmtree(cached.parents[3] / "refs")
    assert app.locate(REFERENCE).path == cached
    model = tiny_model(sources=(HubSource(repo="owner/tiny", file="sub/tiny.gguf", revision="v2"),))
    assert installed_path(model) is None


def test_another_version_in_the_cache_is_passed_over(offline_hub, models_dir: Path) -> None:
    """By its size, and by the digest that is its name there; it stays where it is."""
    model = tiny_model(sources=(HubSource(repo="owner/tiny", file="tiny.gguf"),))
    same_size = bytes(reversed(CONTENT))
    for content in (OTHER, same_size):
        cached = offline_hub.cache("tiny.gguf", content)
        assert installed_path(model) is None
        with pytest.raises(DownloadError):
            pull(model, Watching())
        assert cached.read_bytes() == content
        shutil.rmtree(cached.parents[2])


def test_a_spoiled_file_in_the_cache_is_fetched_again(
    offline_hub, models_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from huggingface_hub import constants

    cached = offline_hub.cache("sub/tiny.gguf", CONTENT)
    cached.resolve().write_bytes(b"GGUF" + bytes(len(CONTENT) - 4))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    offline_hub.files["owner/tiny/sub/tiny.gguf"] = CONTENT
    pulled = pull(hub_model(REFERENCE), Watching())
    assert pulled.path.parent == models_dir
    assert app.locate(REFERENCE).path.read_bytes() == CONTENT


def test_a_file_that_was_pulled_comes_before_the_caches(offline_hub, models_dir: Path) -> None:
    offline_hub.cache("sub/tiny.gguf", CONTENT)
    models_dir.mkdir()
    own = models_dir / "owner--tiny--sub--tiny.gguf"
    own.write_bytes(CONTENT)
    assert app.locate(REFERENCE).path == own


def test_a_cache_that_is_emptied_takes_its_models_along(offline_hub) -> None:
    cached = offline_hub.cache("sub/tiny.gguf", CONTENT)
    pull(hub_model(REFERENCE), Watching())
    shutil.rmtree(cached.parents[3])
    with pytest.raises(ModelNotFound, match="not installed"):
        app.locate(REFERENCE)
