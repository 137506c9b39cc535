"""What can be told about the models: rows for `models list`, everything about one for `models show`."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path

from specllm.errors import BadModelFile
from specllm.models.entries import Model, Pair
from specllm.models.found import Found
from specllm.models.registry import Registry
from specllm.models.store import (
    RecordedDigest,
    destination,
    installed_path,
    models_dir,
    recorded_digest,
    size_on_disk,
    user_models_file,
)


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelRow:
    model: Model
    path: Path | None  # None: not installed
    bytes: int | None  # on disk, else as promised, else not known
    target_of: tuple[str, ...]  # pairs
    draft_of: tuple[str, ...]

    def as_result(self) -> dict[str, object]:
        model = self.model
        return {
            "name": model.name,
            "is_installed": self.path is not None,
            "path": str(self.path) if self.path else None,
            "bytes": self.bytes,
            "licence": model.licence.name if model.licence else None,
            "family": model.family or None,
            "parameters": model.parameters or None,
            "quantization": model.quantization or None,
            "context_tokens": model.context,
            "description": model.description,
            "target_of": list(self.target_of),
            "draft_of": list(self.draft_of),
        }


@dataclass(frozen=True, kw_only=True, slots=True)
class PairRow:
    pair: Pair
    is_installed: bool  # both models
    is_default: bool

    def as_result(self) -> dict[str, object]:
        return {**_pair_result(self.pair), "is_installed": self.is_installed, "is_default": self.is_default}


@dataclass(frozen=True, kw_only=True, slots=True)
class Listing:
    models: tuple[ModelRow, ...]
    pairs: tuple[PairRow, ...]
    found: tuple[Found, ...] | None  # None: not looked for
    folder: Path  # where models are installed
    user_file: Path  # where the user's own entries belong; may not exist

    def as_result(self) -> dict[str, object]:
        """What `models list` shows, as its JSON has it."""
        found = self.found
        return {
            "models": [row.as_result() for row in self.models],
            "pairs": [row.as_result() for row in self.pairs],
            "found": None if found is None else [{**asdict(entry), "path": str(entry.path)} for entry in found],
            "models_dir": str(self.folder),
            "user_file": str(self.user_file),
        }


@dataclass(frozen=True, kw_only=True, slots=True)
class HeaderFacts:
    """What the file says about itself."""

    architecture: str
    context: int  # tokens; 0 where it does not say
    n_tensors: int

    def as_result(self) -> dict[str, object]:
        return {
            "architecture": self.architecture,
            "context_tokens": self.context or None,
            "n_tensors": self.n_tensors,
        }


@dataclass(frozen=True, kw_only=True, slots=True)
class Details:
    row: ModelRow
    destination: Path  # where it lies, or will lie once pulled
    recorded: RecordedDigest | None  # of the file that came, also where models.toml promises one
    pairs: tuple[Pair, ...]
    header: HeaderFacts | None  # None: not installed
    header_error: str  # why an installed file has no header to show

    def as_result(self) -> dict[str, object]:
        """What `models show` shows, as its JSON has it."""
        model = self.row.model
        return {
            **self.row.as_result(),
            "file": model.file,
            "destination": str(self.destination),
            "sha256": model.sha256,
            "recorded_sha256": self.recorded.sha256 if self.recorded else None,
            "recorded_source": self.recorded.source or None if self.recorded else None,
            "licence_url": model.licence.url or None if model.licence else None,
            "licence_note": model.licence.note or None if model.licence else None,
            "drafter": model.drafter,
            "sampling": dict(model.sampling),
            "sources": [str(source) for source in model.sources],
            "pairs": [_pair_result(pair) for pair in self.pairs],
            "header": self.header.as_result() if self.header else None,
            "header_error": self.header_error or None,
        }


def _pair_result(pair: Pair) -> dict[str, object]:
    return {
        "name": pair.name,
        "target": pair.target,
        "draft": pair.draft,
        "drafter": pair.drafter,
        "description": pair.description,
    }


def listing(registry: Registry, *, with_found: bool = False) -> Listing:
    """Every model and pair that has a name; with `with_found` also the files of other tools."""
    rows = {name: _row(registry, model) for name, model in registry.models.items()}

    def is_installed(pair: Pair) -> bool:
        return rows[pair.target].path is not None and rows[pair.draft].path is not None

    return Listing(
        models=tuple(rows.values()),
        pairs=tuple(
            PairRow(pair=pair, is_installed=is_installed(pair), is_default=pair.name == registry.default)
            for pair in registry.pairs.values()
        ),
        found=tuple(registry.found()) if with_found else None,
        folder=models_dir(),
        user_file=user_models_file(),
    )


def details(registry: Registry, model: Model) -> Details:
    """All that is known about `model`; a damaged file is told, not raised."""
    from specllm.models.gguf_header import read_header

    row = _row(registry, model)
    header, header_error = None, ""
    if row.path is not None:
        try:
            read = read_header(row.path)
            header = HeaderFacts(architecture=read.architecture, context=read.n_ctx_train, n_tensors=len(read.tensors))
        except BadModelFile as error:
            header_error = error.message
    return Details(
        row=row,
        destination=destination(model),
        recorded=recorded_digest(model),
        pairs=tuple(registry.pairs_of(model.name)),
        header=header,
        header_error=header_error,
    )


def _row(registry: Registry, model: Model) -> ModelRow:
    path = installed_path(model)
    pairs = registry.pairs_of(model.name)
    return ModelRow(
        model=model,
        path=path,
        bytes=model.bytes if path is None else size_on_disk(path),
        target_of=tuple(pair.name for pair in pairs if pair.target == model.name),
        draft_of=tuple(pair.name for pair in pairs if pair.draft == model.name),
    )
