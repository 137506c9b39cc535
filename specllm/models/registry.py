"""Every model that can be named: the shipped models.toml, the user's own on top of it, and files by path.

qwen2.5-coder-1.5b-instruct     a model of models.toml
qwen2.5-coder-1.5b              a pair: its target, where one model is wanted
./some.gguf                     a file; of a split one the first part
hub:owner/repo:file.gguf        a file of the model hub; of a split one the first part
llama3.2:1b                     a name that `specllm models list --found` shows
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path

from specllm.errors import ConfigError, ModelNotFound
from specllm.models.entries import (
    MAX_FILE_NAME,
    HubSource,
    Model,
    Pair,
    PathSource,
    is_safe_hub_file,
    is_safe_repo,
    split_part,
)
from specllm.models.found import Found, find_on_disk
from specllm.models.parse import ModelsFile, parse
from specllm.models.store import check_gguf, user_models_file
from specllm.models.toml_table import suggestion

LIST_HINT = "specllm models list shows the names"


@dataclass(frozen=True, kw_only=True, slots=True)
class Registry:
    """All entries, checked against each other: every pair's models exist, no two models claim one file."""

    models: Mapping[str, Model] = field(default_factory=dict)
    pairs: Mapping[str, Pair] = field(default_factory=dict)
    default: str = ""  # the model or pair that is meant when none is named
    user_file: Path | None = None  # the user's models.toml, when there is one

    @classmethod
    def load(cls) -> Registry:
        """The shipped entries with the user's own over them. ConfigError when a file is wrong."""
        resource = resources.files("specllm.models") / "models.toml"
        shipped = parse(resource.read_text(encoding="utf-8"), Path("specllm/models/models.toml"))
        path = user_models_file()
        text = _user_text(path)
        if text is None:
            return cls.combine(shipped)
        return cls.combine(shipped, parse(text, path))

    @classmethod
    def combine(cls, shipped: ModelsFile, own: ModelsFile | None = None) -> Registry:
        """Entries of `own` replace the shipped ones of the same name."""
        last = own or shipped
        models = {**shipped.models, **last.models}
        pairs = {**shipped.pairs, **last.pairs}
        registry = cls(
            models=models,
            pairs=pairs,
            default=last.default or shipped.default or "",
            user_file=own.path if own else None,
        )
        registry._check(last.path)
        return registry

    def _check(self, path: Path) -> None:
        for name in self.models.keys() & self.pairs.keys():
            raise ConfigError(f"{path}: {name} is the name of a model and of a pair", "rename one of them")
        for pair in self.pairs.values():
            for role, name in (("target", pair.target), ("draft", pair.draft)):
                if name not in self.models:
                    raise ConfigError(
                        f"{path}: {role} of pair {pair.name} is {name}, which is no model",
                        suggestion(name, self.models) or LIST_HINT,
                    )
        owners: dict[str, str] = {}
        for model in self.models.values():
            if (
                model.local_path is None
                and (owner := owners.setdefault(model.file.casefold(), model.name)) != model.name
            ):
                raise ConfigError(
                    f"{path}: {owner} and {model.name} both claim the file {model.file}",
                    "give one of them another file name",
                )
        if self.default and self.default not in self.models and self.default not in self.pairs:
            raise ConfigError(
                f"{path}: default is {self.default}, which is neither a model nor a pair",
                suggestion(self.default, [*self.models, *self.pairs]) or LIST_HINT,
            )

    def model(self, name: str) -> Model:
        """The entry of that name; ModelNotFound suggests a similar one."""
        try:
            return self.models[name]
        except KeyError:
            raise self._unknown(name, "model", [*self.models]) from None

    def pair(self, name: str) -> Pair:
        """The pair of that name; ModelNotFound suggests a similar one."""
        try:
            return self.pairs[name]
        except KeyError:
            raise self._unknown(name, "pair", [*self.pairs]) from None

    def pairs_of(self, name: str) -> list[Pair]:
        """The pairs that a model is in, as target or draft."""
        return [pair for pair in self.pairs.values() if name in (pair.target, pair.draft)]

    def pair_for_target(self, name: str) -> Pair | None:
        """The pair to use for a target: its only one, or the default one among several."""
        candidates = [pair for pair in self.pairs.values() if pair.target == name]
        if len(candidates) > 1:
            candidates = [pair for pair in candidates if pair.name == self.default]
        return candidates[0] if candidates else None

    def resolve(self, reference: str) -> Model:
        """The one model that `reference` means, on this disk or not; a file given by path is looked at."""
        if reference in self.models:
            return self.models[reference]
        if reference in self.pairs:
            return self.models[self.pairs[reference].target]
        if reference.startswith("hub:"):
            return hub_model(reference)
        if (model := _file_model(reference)) is not None:
            return model
        found = {entry.name: entry for entry in self.found()}
        if reference in found:
            return found_model(found[reference])
        raise self._unknown(reference, "model", [*self.models, *self.pairs, *found])

    def found(self) -> list[Found]:
        """GGUFs of other tools, under names that none of the entries has."""
        return find_on_disk(reserved=[*self.models, *self.pairs])

    def _unknown(self, name: str, kind: str, known: list[str]) -> ModelNotFound:
        shown = name if name and name.isprintable() and len(name) <= 200 else repr(name[:200])
        hint = "it is a folder: give the .gguf file inside it" if os.path.isdir(name) else LIST_HINT
        return ModelNotFound(f"there is no {kind} {shown}", suggestion(name[:200], known) or hint)


def hub_model(reference: str) -> Model:
    """The model that hub:owner/repo:file.gguf means; its name and file carry the repository."""
    wanted = "write hub:owner/repo:file.gguf"
    _, _, rest = reference.partition(":")
    repo, colon, file = rest.partition(":")
    flat = "--".join((*repo.split("/"), *file.split("/")))
    if len(flat) > MAX_FILE_NAME:
        raise ConfigError(
            f"{reference[:100]}.. would become a file name of {len(flat)} characters, and file systems allow {MAX_FILE_NAME}",
            f"give it a shorter file name in {user_models_file()}, with the repository as its source; or download it "
            "yourself and give its path",
        )
    if not colon or not is_safe_repo(repo) or not is_safe_hub_file(file):
        raise ConfigError(f"{reference!r} does not name a file of the hub", wanted)
    source = HubSource(repo=repo, file=file)
    if source.split is not None and source.split.part != 1:
        raise ConfigError(
            f"{file} is part {source.split.part} of {source.split.parts}",
            f"name the first part, which stands for all: hub:{repo}:{source.files()[0]}",
        )
    split = split_part(flat)
    name = split.stem if split else flat[: -len(".gguf")]
    return Model(name=name, file=flat, sources=(source,))


def found_model(found: Found) -> Model:
    """A model of another tool, used where it lies."""
    return Model(name=found.name, file=found.path.name, bytes=found.bytes, sources=(PathSource(path=found.path),))


def _file_model(reference: str) -> Model | None:
    """The GGUF at a path; None when `reference` is not meant as a path."""
    try:
        path = Path(reference).expanduser()
        is_there = path.exists()
    except (OSError, ValueError, RuntimeError):
        return None
    looks_like_path = reference.lower().endswith(".gguf") or reference.startswith((".", "/", "~", "\\"))
    if not is_there and not looks_like_path:
        return None
    if path.is_dir() and not looks_like_path:
        return None
    check_gguf(path)
    split = split_part(path.name)
    return Model(name=split.stem if split else path.stem, file=path.name, sources=(PathSource(path=path.absolute()),))


def _user_text(path: Path) -> str | None:
    """The user's models.toml, None when there is none."""
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not UTF-8 text"
        raise ConfigError(f"cannot read {path}: {reason}", "mend the file, or move it away") from error
