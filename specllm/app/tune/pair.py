"""The tuned pair as an entry of the user's models.toml."""

from __future__ import annotations

import json
from pathlib import Path

from specllm.app.generate import Plan
from specllm.errors import ConfigError
from specllm.models.entries import DrafterName, Pair
from specllm.models.parse import parse
from specllm.models.registry import Registry
from specllm.models.store import append_to_user_file, changing_user_file, user_models_file


def pair_entry(plan: Plan, drafter: DrafterName) -> Pair | None:
    """The pair that was tuned, with that drafter as its default; None without names that models.toml knows."""
    target, draft = plan.target.model, plan.draft_model and plan.draft_model.model
    registry = Registry.load()
    if target is None or draft is None or not {target.name, draft.name} <= registry.models.keys():
        return None
    known = [pair for pair in registry.pairs_of(target.name) if (pair.target, pair.draft) == (target.name, draft.name)]
    named = known[0] if known else None
    return Pair(
        name=named.name if named else f"{target.name}-tuned", target=target.name, draft=draft.name,
        drafter=drafter, description=named.description if named else "",
    )  # fmt: skip


def as_toml(pair: Pair) -> str:
    fields = {"target": pair.target, "draft": pair.draft, "drafter": pair.drafter, "description": pair.description}
    lines = [f"{key} = {json.dumps(value, ensure_ascii=False)}" for key, value in fields.items() if value]
    return "\n".join([f"[pairs.{json.dumps(pair.name)}]", *lines, ""])


def check_applicable(plan: Plan) -> None:
    """Raises ConfigError where models.toml could not take the entry: said before a minute of measuring."""
    pair, file = pair_entry(plan, "none"), user_models_file()
    if pair is None:
        raise ConfigError(
            "there is no entry to write: models.toml names a pair by its models' names",
            "tune a pair with a draft model; `specllm models add NAME FILE` gives a file a name",
        )
    if pair.name in parse(_text(file), file).pairs:
        raise ConfigError(f"{file} has an entry for {pair.name} already", "change its drafter there, or remove it")


def apply(pair: Pair) -> Path:
    """The user's models.toml has the pair, after all that was there; returns its path."""
    with changing_user_file():
        return append_to_user_file(*as_toml(pair).splitlines())


def _text(file: Path) -> str:
    return file.read_bytes().decode("utf-8") if file.exists() else ""
