"""Names as long as file systems allow them: 255 bytes, of which `.gguf` takes five."""

from __future__ import annotations

from pathlib import Path

import pytest

from specllm.app import models as app
from specllm.errors import ConfigError
from specllm.models.entries import HubSource
from specllm.models.pull import pull
from specllm.models.registry import Registry, hub_model
from specllm.models.store import recorded_digest, verify
from tests.models.fake_hub import FakeHub
from tests.models.watching import Watching
from tests.models.wheelhouse import CONTENT, tiny_model


def reference(n: int) -> str:
    """A hub reference whose file is to have a name of `n` characters here."""
    head, tail = "owner--repository--", ".gguf"
    return f"hub:owner/repository:{'n' * (n - len(head) - len(tail))}{tail}"


@pytest.mark.parametrize("n", [97, 101, 200, 246, 255])
def test_a_hub_file_of_a_long_name_is_pulled_found_and_verified(n: int, models_dir: Path, fake_hub: FakeHub) -> None:
    model = hub_model(reference(n))
    (source,) = model.sources
    assert isinstance(source, HubSource)
    fake_hub.files[f"{source.repo}/{source.file}"] = CONTENT
    pulled = pull(model, Watching())
    assert len(pulled.path.name) == n
    assert app.locate(reference(n)).path == pulled.path
    assert recorded_digest(model) is not None
    assert not verify(model).is_first_record


def test_another_file_under_the_longest_name_lives_on(models_dir: Path, fake_hub: FakeHub) -> None:
    file = "n" * 250 + ".gguf"
    model = tiny_model(file=file, sources=(HubSource(repo="owner/tiny", file="tiny.gguf"),))
    fake_hub.files["owner/tiny/tiny.gguf"] = CONTENT
    models_dir.mkdir()
    for old in (b"GGUF, older", b"GGUF, oldest"):
        (models_dir / file).write_bytes(old)
        pull(model, Watching())
    assert (models_dir / file).read_bytes() == CONTENT
    assert {path.read_bytes() for path in models_dir.iterdir() if path.is_file()} == {
        CONTENT,
        b"GGUF, older",
        b"GGUF, oldest",
    }


@pytest.mark.parametrize("n", [256, 300, 5000])
def test_a_longer_one_is_refused_with_a_way_out(n: int, user_file: Path, models_dir: Path, fake_hub: FakeHub) -> None:
    with pytest.raises(ConfigError, match=f"{n} characters.* 255") as caught:
        hub_model(reference(n))
    assert "models.toml" in caught.value.hint
    if n == 256:  # its own name is short enough for the hub, and here it can have another one
        file = reference(n).rpartition(":")[2]
        user_file.write_text(
            f'[models.short]\nfile = "short.gguf"\nsources = [{{ kind = "hub", repo = "owner/repository", file = "{file}" }}]\n',
            encoding="utf-8",
        )
        fake_hub.files[f"owner/repository/{file}"] = CONTENT
        assert pull(Registry.load().model("short"), Watching()).path == models_dir / "short.gguf"


def test_a_file_is_added_under_the_longest_name(models_dir: Path, user_file: Path, tmp_path: Path) -> None:
    file = tmp_path / "x.gguf"
    file.write_bytes(CONTENT)
    app.add_model("n" * 250, file, made_of="y")
    assert app.locate("n" * 250).path == file
    with pytest.raises(ConfigError, match="cannot be a name") as caught:
        app.add_model("n" * 251, file)
    assert "250" in caught.value.hint
