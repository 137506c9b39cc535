"""GGUF files that other tools left on this machine: read where they lie, never moved, never downloaded again.

Looks into the hub's cache, llama.cpp's, LM Studio's and ollama's. Whatever is broken or strange there is
passed over in silence: these folders are not ours.
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from specllm.models.entries import split_part
from specllm.models.hub import cache_dir

MAX_DEPTH = 6
MAX_FILES = 20_000  # per folder: somebody may point a cache variable at their whole disk
MAX_MANIFEST_BYTES = 1 << 20
OLLAMA_MODEL = "application/vnd.ollama.image.model"
_OLLAMA_DIGEST = re.compile(r"sha256:([0-9a-f]{64})")


@dataclass(frozen=True, kw_only=True, slots=True)
class Found:
    """A GGUF of another tool; `name` means this one file and no other, on this machine, today."""

    name: str
    path: Path
    origin: str  # hub | llama.cpp | lmstudio | ollama
    bytes: int


def find_on_disk(reserved: Iterable[str] = ()) -> list[Found]:
    """Every GGUF found, by name, none of them `reserved`; one file reached by two ways is listed once."""
    seen: set[str] = set()
    found: list[Found] = []
    for origin, name, path in _candidates():
        try:
            real = os.path.realpath(path)
            if real in seen or not name.isprintable() or not _is_gguf(path):
                continue
            n_bytes = _size(path)
        except (OSError, ValueError):
            continue
        seen.add(real)
        found.append(Found(name=name, path=path, origin=origin, bytes=n_bytes))
    return sorted(_distinct(found, reserved), key=lambda entry: entry.name)


def _candidates() -> Iterator[tuple[str, str, Path]]:
    """(origin, name, path) of everything that looks like a model."""
    for origin, folder in _folders():
        for path in _gguf_files(folder):
            split = split_part(path.name)
            if path.name.lower().startswith("mmproj") or (split is not None and split.part != 1):
                continue
            yield origin, split.stem if split else path.stem, path
    yield from _ollama_models()


def _folders() -> Iterator[tuple[str, Path]]:
    home = Path.home()
    cache = Path(os.environ.get("XDG_CACHE_HOME") or home / ".cache")
    yield "hub", cache_dir()
    if llama_cache := os.environ.get("LLAMA_CACHE"):
        yield "llama.cpp", Path(llama_cache).expanduser()
    yield "llama.cpp", cache / "llama.cpp"
    if sys.platform == "darwin":
        yield "llama.cpp", home / "Library" / "Caches" / "llama.cpp"
    yield "lmstudio", home / ".lmstudio" / "models"
    yield "lmstudio", cache / "lm-studio" / "models"


def _gguf_files(folder: Path) -> Iterator[Path]:
    """The .gguf files below `folder`, in a stable order; folders are not followed through links."""
    n_files = 0
    for here, folders, files in os.walk(folder):
        depth = len(Path(here).relative_to(folder).parts)
        folders[:] = sorted(folders) if depth < MAX_DEPTH else []
        for file in sorted(files):
            n_files += 1
            if n_files > MAX_FILES:
                return
            if file.lower().endswith(".gguf"):
                yield Path(here) / file


def _ollama_models() -> Iterator[tuple[str, str, Path]]:
    root = Path(os.environ.get("OLLAMA_MODELS") or Path.home() / ".ollama" / "models").expanduser()
    manifests = root / "manifests"
    n_files = 0
    for here, folders, files in os.walk(manifests):
        folders.sort()
        for file in sorted(files):
            n_files += 1
            if n_files > MAX_FILES:
                return
            manifest = Path(here) / file
            digest = _ollama_digest(manifest)
            parts = manifest.relative_to(manifests).parts  # host, namespace, model, tag
            if digest is not None and len(parts) >= 3:
                owner = [] if parts[1] == "library" else [parts[1]]
                name = "/".join([*owner, *parts[2:-1]]) + ":" + parts[-1]
                yield "ollama", name, root / "blobs" / f"sha256-{digest}"


def _ollama_digest(manifest: Path) -> str | None:
    """The digest of the weights that a manifest names; None for a manifest that is broken or hostile."""
    try:
        if manifest.stat().st_size > MAX_MANIFEST_BYTES:
            return None
        document = json.loads(manifest.read_text(encoding="utf-8"))
        for layer in document["layers"]:
            if layer["mediaType"] == OLLAMA_MODEL and (match := _OLLAMA_DIGEST.fullmatch(layer["digest"])):
                return match[1]
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None
    return None


def _is_gguf(path: Path) -> bool:
    if not path.is_file():
        return False
    with path.open("rb") as file:
        return file.read(4) == b"GGUF"


def _size(path: Path) -> int:
    """Bytes of the model; OSError when a part of a split one is missing."""
    split = split_part(path.name)
    names = split.names() if split else (path.name,)
    return sum(path.with_name(name).stat().st_size for name in names)


def _distinct(found: list[Found], reserved: Iterable[str]) -> list[Found]:
    """The same, with names that differ: the origin is added to a name that is not free, then a number."""
    counts = dict.fromkeys(reserved, 1)
    for entry in found:
        counts[entry.name] = counts.get(entry.name, 0) + 1
    taken = set(counts)
    distinct = []
    for entry in found:
        name = entry.name
        if counts[name] > 1:
            base = name = f"{entry.name}@{entry.origin}"
            number = 2
            while name in taken:
                name = f"{base}-{number}"
                number += 1
        taken.add(name)
        distinct.append(replace(entry, name=name))
    return distinct
