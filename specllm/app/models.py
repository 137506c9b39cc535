"""Use cases about models: list, show, pull, verify, add, and finding the file that a name means."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from specllm.errors import ConfigError, ModelNotFound
from specllm.models import catalogue, store
from specllm.models.entries import NAME_HINT, DrafterName, Model, PathSource, is_safe_name
from specllm.models.progress import NoProgress, Progress
from specllm.models.registry import Registry
from specllm.models.store import Verified, installed_path

if TYPE_CHECKING:
    from specllm.models.pull import Pulled


@dataclass(frozen=True, kw_only=True, slots=True)
class LocatedModel:
    """A model file that is on this disk."""

    name: str
    path: Path  # of a split model the first part
    model: Model | None  # its entry; None for a file given by path or found on disk
    sampling: Mapping[str, float]  # SamplingConfig fields that its makers recommend


def locate(reference: str | None = None, *, registry: Registry | None = None) -> LocatedModel:
    """The file that `reference` means (None: the default). ModelNotFound says how to get a known one."""
    registry = registry or Registry.load()
    reference = registry.default if reference is None else reference
    model = registry.resolve(reference)
    path = installed_path(model)
    if path is None:
        if model.local_path is not None:
            raise ModelNotFound(
                f"{model.name} should be at {model.local_path}, and there is no such file",
                f"put it back, or change its entry in {store.user_models_file()}",
            )
        raise ModelNotFound(f"{model.name} is not installed", f"specllm models pull {reference}")
    is_entry = registry.models.get(model.name) == model or reference.startswith("hub:")
    return LocatedModel(name=model.name, path=path, model=model if is_entry else None, sampling=dict(model.sampling))


def locate_pair(
    target: str | None = None, draft: str | None = None
) -> tuple[LocatedModel, LocatedModel | None, DrafterName]:
    """Target, draft model, and the drafter that is meant where none is named.

    A pair's name (also None: the default) needs both models. A model's name brings the draft model of its
    pair where that is installed, else none. An explicit `draft` is used, whatever the entries say.
    """
    registry = Registry.load()
    target = registry.default if target is None else target
    located = locate(target, registry=registry)
    if draft is not None:
        return located, locate(draft, registry=registry), "auto"
    if target in registry.pairs:
        pair = registry.pairs[target]
        return located, _draft_of_pair(pair.draft, target, registry), pair.drafter
    own = located.model.drafter if located.model else "auto"
    found = registry.pair_for_target(target)
    if found is None or installed_path(registry.models[found.draft]) is None:
        return located, None, own
    return located, locate(found.draft, registry=registry), found.drafter


def _draft_of_pair(name: str, pair: str, registry: Registry) -> LocatedModel:
    try:
        return locate(name, registry=registry)
    except ModelNotFound as error:
        raise ModelNotFound(error.message, f"specllm models pull {pair}") from error


def list_models(*, with_found: bool = False) -> catalogue.Listing:
    """Everything that has a name."""
    return catalogue.listing(Registry.load(), with_found=with_found)


def show_model(reference: str) -> catalogue.Details:
    """Everything that is known about one model."""
    registry = Registry.load()
    return catalogue.details(registry, registry.resolve(reference))


def pull_models(references: Sequence[str], progress: Progress) -> list[Pulled]:
    """Every model that the references mean is installed; an unknown one fails before the first byte."""
    from specllm.models.pull import pull

    return [pull(model, progress) for model in _models(references)]


def verify_models(references: Sequence[str], progress: Progress | None = None) -> list[Verified]:
    """The files of these models are the expected ones; DigestMismatch at the first that is not."""
    progress = progress or NoProgress()
    verified = []
    for model in _models(references):
        path = installed_path(model)
        progress.begin("checking", store.size_on_disk(path) if path else None)
        verified.append(store.verify(model, progress.advance))
    return verified


def _models(references: Sequence[str]) -> list[Model]:
    """The models in the order named, each once, a pair's target before its draft."""
    registry = Registry.load()
    models: dict[str, Model] = {}
    for reference in references:
        if reference in registry.pairs:
            pair = registry.pairs[reference]
            named = [registry.model(pair.target), registry.model(pair.draft)]
        else:
            named = [registry.resolve(reference)]
        for model in named:
            models[model.name] = model
    return list(models.values())


@dataclass(frozen=True, kw_only=True, slots=True)
class Added:
    name: str
    path: Path
    user_file: Path  # where the entry was written


def add_model(name: str, file: Path, made_of: str | None = None) -> Added:
    """The user's models.toml has an entry `name` for `file`, which stays where it is.

    `made_of`: the model that it was made of just now; then its digest is on record, which nobody else could promise.
    """
    if not is_safe_name(name):
        raise ConfigError(f"{name!r} cannot be a name", NAME_HINT)
    path = file.expanduser().absolute()
    with store.changing_user_file():
        require_free(name)
        store.check_gguf(path)
        model = Model(name=name, file=path.name, sources=(PathSource(path=path),))
        if made_of is not None:
            store.record_made(model, made_of)
        try:
            user_file = store.add_entry(name, path)
        except BaseException:
            store.forget_digest(model)
            raise
        if made_of is None:
            store.forget_digest(model)
    return Added(name=name, path=path, user_file=user_file)


def require_free(name: str) -> None:
    """Raises ConfigError where a model or a pair has that name."""
    registry = Registry.load()
    if name in registry.models or name in registry.pairs:
        raise ConfigError(f"there is a {name} already", f"choose another name, or edit {store.user_models_file()}")
