"""A lane for every arm of a benchmark: contexts of its own over shared weights, so that all arms can be in the middle of an
answer at the same time."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from specllm.app.bench.arms import Arm
from specllm.app.drafting import SOURCES, Drafting
from specllm.app.generation import Session
from specllm.app.memory.room import require_room
from specllm.drafters.none import NoDrafter
from specllm.models.gguf_header import read_header
from specllm.runtime.llama import LlamaModel
from specllm.runtime.trimmed_vocab import open_context


@dataclass(frozen=True, slots=True)
class Lane:
    """An arm, the session that answers for it, and what its drafters are made of."""

    arm: Arm
    session: Session
    drafting: Drafting

    def fresh(self) -> Drafting:
        """What to make a drafter of that begins from the calibration, not from what earlier answers made of it."""
        drafting = self.drafting
        cost, draft_cost = copy.deepcopy(drafting.target_cost), copy.deepcopy(drafting.draft_cost)
        return replace(drafting, target_cost=cost, draft_cost=draft_cost)


def make_lanes(
    arms: Sequence[Arm], target: LlamaModel, drafting: Drafting, stack: contextlib.ExitStack
) -> Iterator[Lane]:
    """A lane for each arm. The first ones take `target` and the draft model of `drafting`, the others contexts like them, which
    `stack` closes. Raises OutOfMemory."""
    targets = _contexts(target, "--ctx", stack)
    draft_models = _contexts(drafting.draft_model, "--draft-ctx", stack) if drafting.draft_model else None
    for arm in arms:
        draft_model = next(draft_models) if draft_models and "model" in SOURCES[arm.config.drafter] else None
        session = Session(next(targets), NoDrafter(), draft_model=draft_model, is_exact=arm.config.is_exact)
        yield Lane(arm, session, replace(drafting, config=arm.config, draft_model=draft_model))


def _contexts(model: LlamaModel, option: str, stack: contextlib.ExitStack) -> Iterator[LlamaModel]:
    """The model, and then others like it; `option` sets how large they are."""
    yield model
    while True:
        if model.config.gpu_layers == 0:
            require_room(read_header(model.weights.path), model.config, option=option)
        another = open_context(model.weights, model.config)
        stack.callback(another.close)
        yield another
