"""Split models of the hub: all parts or none, every part as promised, the first one last."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from specllm.errors import ConfigError, DigestMismatch, DownloadError
from specllm.models import pull as pulling
from specllm.models import store
from specllm.models.entries import HubSource
from specllm.models.parse import parse
from specllm.models.pull import pull
from specllm.models.registry import hub_model
from specllm.models.store import installed_path, partial_dir, recorded_digest
from tests.models.fake_hub import COMMIT, FakeHub
from tests.models.watching import Watching

REFERENCE = "hub:owner/big:q4/big-00001-of-00003.gguf"
PARTS = [b"GGUF" + bytes([number]) * (1000 * number) for number in (1, 2, 3)]
NAMES = [f"owner--big--q4--big-0000{number}-of-00003.gguf" for number in (1, 2, 3)]


@pytest.fixture
def hub_parts(fake_hub: FakeHub) -> list[str]:
    """The hub has all three parts; their places there."""
    places = [f"owner/big/q4/big-0000{number}-of-00003.gguf" for number in (1, 2, 3)]
    fake_hub.files.update(zip(places, PARTS, strict=True))
    return places


def test_all_parts_are_pulled_and_are_one_model(models_dir: Path, fake_hub: FakeHub, hub_parts: list[str]) -> None:
    model, watching = hub_model(REFERENCE), Watching()
    assert model.name == "owner--big--q4--big"
    pulled = pull(model, watching)
    assert pulled.path == installed_path(model) == models_dir / NAMES[0]
    assert [(models_dir / name).read_bytes() for name in NAMES] == PARTS
    whole = hashlib.sha256(b"".join(PARTS)).hexdigest()
    assert (pulled.bytes, pulled.sha256) == (sum(map(len, PARTS)), whole)
    record = recorded_digest(model)
    assert record is not None
    assert (record.sha256, record.bytes, record.revision) == (whole, pulled.bytes, COMMIT)
    assert not store.verify(model).is_first_record
    assert not partial_dir(model).exists()
    assert "    part 3 of 3" in watching.messages
    assert pull(model, Watching()).was_there


def test_later_parts_are_taken_from_the_commit_of_the_first(
    models_dir: Path, fake_hub: FakeHub, hub_parts: list[str]
) -> None:
    pull(hub_model(REFERENCE), Watching())
    assert [fake_hub.revisions[place] for place in hub_parts] == ["main", COMMIT, COMMIT]


def test_a_part_that_is_there_is_not_fetched_again(models_dir: Path, fake_hub: FakeHub, hub_parts: list[str]) -> None:
    last = fake_hub.files.pop(hub_parts[2])
    model = hub_model(REFERENCE)
    with pytest.raises(DownloadError, match=r"owner/big has no file q4/big-00003-of-00003\.gguf"):
        pull(model, Watching())
    assert installed_path(model) is None
    fake_hub.files[hub_parts[2]] = last
    watching = Watching()
    assert pull(model, watching).path == models_dir / NAMES[0]
    sizes = [len(part) for part in PARTS]
    downloads = [work for work in watching.works if work[0] == "downloading"]
    assert downloads == [("downloading", sizes[0], sizes[0]), ("downloading", sizes[1], sizes[1]),
                         ("downloading", sizes[2], 0)]  # fmt: skip


def test_one_wrong_part_is_kept_aside_and_fetched_again_alone(
    models_dir: Path, fake_hub: FakeHub, hub_parts: list[str]
) -> None:
    model = hub_model(REFERENCE)
    folder = partial_dir(model) / "part-00002"
    folder.mkdir(parents=True)
    spoiled = folder / f"hub-{hashlib.sha256(PARTS[1]).hexdigest()}.part"
    spoiled.write_bytes(b"rubbish")
    with pytest.raises(DigestMismatch) as caught:
        pull(model, Watching())
    assert str(spoiled.with_suffix(".rejected")) in caught.value.hint
    assert installed_path(model) is None
    with pytest.raises(KeyboardInterrupt):
        pull(model, Watching(interrupt_at="downloading"))
    assert not spoiled.with_suffix(".rejected").exists()
    watching = Watching()
    pull(model, watching)
    assert [done for label, _, done in watching.works if label == "downloading"] == [len(PARTS[0]), 0, len(PARTS[2])]
    assert [(models_dir / name).read_bytes() for name in NAMES] == PARTS


def test_other_parts_than_the_first_time_are_refused(models_dir: Path, fake_hub: FakeHub, hub_parts: list[str]) -> None:
    model = hub_model(REFERENCE)
    pull(model, Watching())
    (models_dir / NAMES[0]).unlink()
    fake_hub.files[hub_parts[1]] = b"GGUF of another day"
    with pytest.raises(DigestMismatch, match="wrong bytes") as caught:
        pull(model, Watching())
    assert ".digests" in caught.value.hint


@pytest.mark.parametrize("n_moved", [0, 1, 2])
def test_a_crash_between_two_parts_leaves_no_model_that_looks_whole(
    models_dir: Path, hub_parts: list[str], monkeypatch: pytest.MonkeyPatch, n_moved: int
) -> None:
    """The first part comes last."""
    model, move, moved = hub_model(REFERENCE), pulling.move_whole, []

    def crashing(source: Path, target: Path) -> None:
        if len(moved) == n_moved:
            raise KeyboardInterrupt
        moved.append(target.name)
        move(source, target)

    with monkeypatch.context() as patch:
        patch.setattr(pulling, "move_whole", crashing)
        with pytest.raises(KeyboardInterrupt):
            pull(model, Watching())
    assert moved == NAMES[:0:-1][:n_moved]
    assert installed_path(model) is None
    assert pull(model, Watching()).path.read_bytes() == PARTS[0]
    assert [(models_dir / name).read_bytes() for name in NAMES] == PARTS


def test_a_model_that_lost_a_part_is_not_installed(models_dir: Path, hub_parts: list[str]) -> None:
    model = hub_model(REFERENCE)
    pull(model, Watching())
    (models_dir / NAMES[2]).unlink()
    assert installed_path(model) is None
    assert not pull(model, Watching()).was_there
    assert (models_dir / NAMES[2]).read_bytes() == PARTS[2]


def test_a_later_part_is_no_reference() -> None:
    with pytest.raises(ConfigError, match="part 2 of 3") as caught:
        hub_model(REFERENCE.replace("00001", "00002"))
    assert REFERENCE in caught.value.hint


@pytest.mark.parametrize(
    ("file", "hub_file", "says"),
    [
        ("big-00001-of-00003.gguf", "q4/x-00001-of-00003.gguf", ""),
        ("big.gguf", "x.gguf", ""),
        ("big.gguf", "q4/x-00001-of-00003.gguf", "-00001-of-00003.gguf"),
        ("big-00001-of-00002.gguf", "q4/x-00001-of-00003.gguf", "-00001-of-00003.gguf"),
        ("big-00002-of-00003.gguf", "q4/x-00001-of-00003.gguf", "-00001-of-00003.gguf"),
        ("big-00001-of-00003.gguf", "x.gguf", "without a part's number"),
        ("big-00001-of-00003.gguf", "q4/x-00002-of-00003.gguf", "name the first part: q4/x-00001-of-00003.gguf"),
    ],
)
def test_an_entry_names_as_many_parts_as_its_source(file: str, hub_file: str, says: str) -> None:
    text = f'[models.big]\nfile = "{file}"\nsources = [{{ kind = "hub", repo = "o/r", file = "{hub_file}" }}]\n'
    if not says:
        (source,) = parse(text, Path("models.toml")).models["big"].sources
        assert isinstance(source, HubSource)
        assert len(source.files()) == (3 if "of" in hub_file else 1)
        return
    with pytest.raises(ConfigError) as caught:
        parse(text, Path("models.toml"))
    assert says in caught.value.hint
