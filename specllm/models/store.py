"""The model folder: where a model lies, which digest it had, and the user's own models.toml.

MODELS_DIR/FILE.gguf            installed models, whole and verified; a file dropped here by hand counts too
MODELS_DIR/.digests/NAME.json   the digest a file had when it came, where models.toml promises none
the hub's cache                 a file that another tool has fetched from a model's hub source is used there
MODELS_DIR/.partial/NAME/       an unfinished pull, resumed by the next one
CONFIG_DIR/models.toml          the user's own entries
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import platformdirs

from specllm.errors import BadModelFile, ConfigError, DigestMismatch, ModelNotFound, StorageError
from specllm.models.disk import locked, sha256_of, storage_error, storage_errors, write_whole
from specllm.models.entries import HubSource, Model, is_safe_name, split_part
from specllm.models.hub import HubFile, cached

GGUF_MAGIC = b"GGUF"


def models_dir() -> Path:
    """The model folder: SPECLLM_MODELS_DIR, else the platform's place for data. It may not exist yet."""
    chosen = os.environ.get("SPECLLM_MODELS_DIR")
    if chosen:
        return Path(chosen).expanduser().absolute()
    return Path(platformdirs.user_data_dir("specllm", appauthor=False)) / "models"


def user_models_file() -> Path:
    """The user's models.toml: in SPECLLM_CONFIG_DIR, else the platform's place; may not exist."""
    chosen = os.environ.get("SPECLLM_CONFIG_DIR")
    folder = (
        Path(chosen).expanduser().absolute()
        if chosen
        else Path(platformdirs.user_config_dir("specllm", appauthor=False))
    )
    return folder / "models.toml"


def destination(model: Model) -> Path:
    """Where `model` lies once installed: in the model folder, or where its `path` source says."""
    return model.local_path or models_dir() / model.file


def partial_dir(model: Model) -> Path:
    return models_dir() / ".partial" / model.name


def lock_file(name: str) -> Path:
    """Whoever pulls or makes the model of that name holds it."""
    return models_dir() / ".partial" / f"{name}.lock"


def installed_path(model: Model) -> Path | None:
    """The file of `model` when it is there, whole and with the promised size; its content is `verify`'s business.

    Of a split model the first part; one that stays where it is may lack others, which is told where it is used. What is
    not in the model folder may be in the hub's cache.
    """
    path = destination(model)
    try:
        if path.is_file() and (model.local_path is not None or _is_promised(size_on_disk(path), model.bytes)):
            return path
    except (OSError, ValueError, ModelNotFound):
        pass
    return next((file.path for file in cached_files(model)), None)


def cached_files(model: Model) -> tuple[HubFile, ...]:
    """What the hub's cache has of `model`, part by part; empty where it is not whole there, or plainly another version: by its
    size, or by the digest that the hub promised."""
    record = recorded_digest(model)
    expected = model.sha256 or (record.sha256 if record else None)
    for source in model.sources if model.local_path is None else ():
        try:
            files = cached(source) if isinstance(source, HubSource) else ()
            n_bytes = sum(file.path.stat().st_size for file in files)
        except OSError:
            continue
        promised = files[0].sha256 if len(files) == 1 else None
        if files and _is_promised(n_bytes, model.bytes) and (promised is None or _is_promised(promised, expected)):
            return files
    return ()


def _is_promised(value: int | str, promised: int | str | None) -> bool:
    """Whether it is the promised one, where something was promised."""
    return promised is None or value == promised


def size_on_disk(path: Path) -> int:
    """Bytes of a model file, all its parts together when it is split."""
    return sum(part.stat().st_size for part in parts_of(path))


def parts_of(path: Path) -> tuple[Path, ...]:
    """The files a model consists of. ModelNotFound: one is missing; BadModelFile: not the first."""
    split = split_part(path.name)
    if split is None:
        return (path,)
    if split.part != 1:
        raise BadModelFile(
            f"{path} is part {split.part} of {split.parts}",
            f"give the first part: {split.names()[0]}" if split.parts < 10_000 else "give the first part",
        )
    parts = tuple(path.with_name(name) for name in split.names())
    missing = [part.name for part in parts if not part.is_file()]
    if missing:
        more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
        raise ModelNotFound(
            f"{path.name} is split into {split.parts} files, and {missing[0]}{more} is not beside it",
            "put all parts into the same folder",
        )
    return parts


def check_gguf(path: Path) -> None:
    """`path` is a file that starts as a GGUF does, and all its parts are there."""
    if path.is_dir():
        raise BadModelFile(f"{path} is a folder", "give the .gguf file inside it")
    if path.exists() and not path.is_file():  # reading a pipe would wait
        raise BadModelFile(f"{path} is not a regular file", "give the path of a .gguf file")
    try:
        with path.open("rb") as file:
            magic = file.read(len(GGUF_MAGIC))
    except FileNotFoundError:
        raise ModelNotFound(f"there is no file {path}", "check the path") from None
    except OSError as error:
        raise StorageError(f"cannot read {path}: {error.strerror}", "check its permissions") from error
    if not magic:
        raise BadModelFile(f"{path} is empty", "copy or download it again")
    if magic != GGUF_MAGIC:
        raise BadModelFile(f"{path} is not a GGUF file", "get a file that ends in .gguf; other formats need converting")
    parts_of(path)


@dataclass(frozen=True, kw_only=True, slots=True)
class RecordedDigest:
    """What a file had when it came: kept where models.toml does not promise a digest."""

    sha256: str
    bytes: int
    source: str = ""  # where it came from: a source of the model, `made of ..`, or `verify` for a file that was there
    revision: str = ""


def recorded_digest(model: Model) -> RecordedDigest | None:
    """The digest recorded for `model`; None when there is none or the record is spoiled."""
    if not is_safe_name(model.name):
        return None
    try:
        record = json.loads(_digest_file(model).read_text(encoding="utf-8"))
        return RecordedDigest(
            sha256=str(record["sha256"]),
            bytes=int(record["bytes"]),
            source=str(record.get("source", "")),
            revision=str(record.get("revision", "")),
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


def record_made(model: Model, made_of: str) -> None:
    """The digest of a file that was made here of another model is on the disk, and which one that was."""
    path = destination(model)
    with storage_errors(path):
        digest = RecordedDigest(sha256=sha256_of([path]), bytes=size_on_disk(path), source=f"made of {made_of}")
    record_digest(model, digest)


def forget_digest(model: Model) -> None:
    """What was recorded for another file that had this name does not count any more."""
    with storage_errors(_digest_file(model)):
        _digest_file(model).unlink(missing_ok=True)


def record_digest(model: Model, digest: RecordedDigest) -> None:
    """The digest is on the disk, for `verify` to come back to."""
    record = {
        "sha256": digest.sha256,
        "bytes": digest.bytes,
        "source": digest.source,
        "revision": digest.revision,
    }
    write_whole(_digest_file(model), (json.dumps(record, indent=2) + "\n").encode())


def _digest_file(model: Model) -> Path:
    return models_dir() / ".digests" / f"{model.name}.json"


@dataclass(frozen=True, kw_only=True, slots=True)
class Verified:
    """A file whose digest is the expected one, or was recorded just now because nobody had promised one."""

    name: str
    path: Path
    bytes: int
    sha256: str
    is_first_record: bool

    def as_result(self) -> dict[str, object]:
        return {
            "name": self.name,
            "path": str(self.path),
            "bytes": self.bytes,
            "sha256": self.sha256,
            "is_first_record": self.is_first_record,
        }


def verify(model: Model, on_bytes: Callable[[int], None] = lambda n_bytes: None) -> Verified:
    """The file of `model` is the expected one, byte for byte.

    DigestMismatch says both digests; nothing is deleted.
    """
    path = destination(model)
    if not path.is_file():
        path = installed_path(model) or path
    if not path.is_file():
        raise ModelNotFound(f"{model.name} is not installed: there is no {path}", f"specllm models pull {model.name}")
    try:
        n_bytes = size_on_disk(path)
        sha256 = sha256_of(parts_of(path), on_bytes)
    except OSError as error:
        raise StorageError(f"cannot read {path}: {error.strerror}", "check its permissions and the disk") from error
    record = recorded_digest(model)
    expected = model.sha256 or (record.sha256 if record else None)
    if expected is None:
        record_digest(model, RecordedDigest(sha256=sha256, bytes=n_bytes, source="verify"))
    elif sha256 != expected:
        raise mismatch(path, expected, sha256, model.bytes or (record.bytes if record else None), n_bytes, model)
    return Verified(name=model.name, path=path, bytes=n_bytes, sha256=sha256, is_first_record=expected is None)


def mismatch(
    path: Path, expected: str, actual: str, expected_bytes: int | None, n_bytes: int, model: Model
) -> DigestMismatch:
    """The error that shows both digests (and sizes, where they differ) and how to get the right file."""
    sizes = f"; {n_bytes:,} bytes instead of {expected_bytes:,}" if expected_bytes not in (None, n_bytes) else ""
    hint = f"move the file away, then: specllm models pull {model.name}"
    if model.local_path is not None:
        hint = "the file has changed since it was recorded; copy it again from where it came"
    return DigestMismatch(f"{path} is not the expected file: sha256 {actual}, expected {expected}{sizes}", hint)


@contextlib.contextmanager
def changing_user_file() -> Iterator[None]:
    """Nobody else changes the user's models.toml inside: from the look at which names are free to the new entry."""
    with locked(user_models_file().with_name(".models.lock")):
        yield


def add_entry(name: str, path: Path) -> Path:
    """The user's models.toml has an entry `name` for the file `path`; returns where models.toml is.

    The caller has checked, inside the same `changing_user_file`, that the name is free and the file a GGUF.
    """
    return append_to_user_file(
        f"[models.{_quoted(name)}]",
        f"bytes = {size_on_disk(path)}",
        f'sources = [{{ kind = "path", path = {_quoted(str(path))} }}]',
    )


def append_to_user_file(*lines: str) -> Path:
    """The user's models.toml has these lines after all that was there, which is kept to the byte; returns where it is."""
    from specllm.models.parse import parse

    file = user_models_file()
    try:
        old = file.read_bytes().decode("utf-8")
    except FileNotFoundError:
        old = ""
    except UnicodeDecodeError as error:
        raise ConfigError(f"{file} is not UTF-8 text", "mend the file, or move it away") from error
    except OSError as error:
        raise storage_error(file, error) from error
    parse(old, file)  # never append to what cannot be read
    end = "\r\n" if "\r\n" in old else "\n"
    gap = end if old else ""
    if old and not old.endswith("\n"):
        gap += end
    new = old + gap + end.join((*lines, ""))
    parse(new, file)
    write_whole(file, new.encode())
    return file


def _quoted(text: str) -> str:
    """A TOML basic string; ConfigError for a path that is not text."""
    if not text.isprintable():  # also lone surrogates: bytes that are no UTF-8
        raise ConfigError(f"{text!r} cannot be written to models.toml", "rename the file or its folder")
    return json.dumps(text, ensure_ascii=False)
