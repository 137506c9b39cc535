"""From a drafter's name to a drafter over loaded models, with its length fixed or controlled."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from specllm.app.calibration import Identity
from specllm.app.learned import TextKind
from specllm.app.store.stores import Store
from specllm.config import DraftConfig
from specllm.decoding.acceptance import Acceptance
from specllm.decoding.chain import Shares
from specllm.decoding.constraint import Constraint
from specllm.decoding.controller import Controller
from specllm.decoding.cost import CostModel, DraftCost
from specllm.decoding.protocols import GUESSED, Drafter, Sampler, Token
from specllm.drafters.auto import AutoDrafter
from specllm.drafters.bridge import BridgeDrafter
from specllm.drafters.grammar import GUESSED_CHANCE, SPELLED_CHANCE, GrammarDrafter
from specllm.drafters.lookup import MATCH_CREDIT, MATCH_PRIOR, MATCH_WEIGHT, LookupDrafter
from specllm.drafters.model import CONFIDENCE_PRIOR, CONFIDENCE_SHARES, ModelDrafter, StopRule, floor_rule
from specllm.drafters.none import NoDrafter
from specllm.drafters.reference import REFERENCE_PRIOR, ReferenceDrafter
from specllm.drafters.store import STORE_PRIOR, StoreDrafter
from specllm.runtime.llama import LlamaModel
from specllm.runtime.vocab import Vocab

SOURCES = {
    "none": (),
    "reference": ("reference",),
    "lookup": ("lookup",),
    "store": ("store",),
    "model": ("model",),
    "auto": ("reference", "lookup", "store", "model"),
}


def new_acceptance(kind: TextKind = "prose") -> dict[str, Acceptance]:
    """What is believed about each drafter on that kind of text before anything was seen here."""
    return {
        "grammar": Acceptance({GUESSED: GUESSED_CHANCE}, SPELLED_CHANCE),
        "reference": Acceptance(REFERENCE_PRIOR, 0.9, 30.0),
        "lookup": Acceptance(MATCH_PRIOR[kind], 0.7, MATCH_WEIGHT, credit=MATCH_CREDIT[kind]),
        "store": Acceptance(STORE_PRIOR, 0.4, credit=MATCH_CREDIT[kind]),
        "model": Acceptance(CONFIDENCE_PRIOR | {GUESSED: GUESSED_CHANCE}, 0.75),
    }


@dataclass(slots=True)
class Drafting:
    """What drafters are made of: the draft model where there is one, the measured costs, what was learned."""

    config: DraftConfig
    sampler: Sampler
    draft_model: LlamaModel | None = None
    store: Store | None = None  # of the user's files and earlier answers
    reference: Sequence[Token] = ()  # what the answer is expected to resemble
    constraint: Constraint | None = None  # what the answer must look like; its sampler knows it too
    can_draft: Callable[[Token], bool] = lambda token: True
    bridge: tuple[Vocab, Vocab] | None = None  # the target's vocabulary and the draft model's, where it is another one
    target_cost: CostModel | None = None  # needed where the length is controlled
    target_identity: Identity | None = None  # what that was measured for
    draft_cost: DraftCost | None = None
    acceptance: dict[str, Acceptance] = field(default_factory=new_acceptance)
    _last: ModelDrafter | None = field(default=None, init=False)  # that has fed the draft model

    def chosen(self) -> Drafter:
        """The drafter of the configuration."""
        return self.make(self.config.drafter, is_controlled=self.config.is_controlled)

    def make(self, name: str, *, is_controlled: bool) -> Drafter:
        """The drafter called `name`; where its length is not fixed, a controller chooses it round by round."""
        free: dict[str, Callable[[], Drafter]] = {
            "grammar": NoDrafter,
            "reference": self._reference,
            "lookup": self._lookup,
            "store": self._store,
        }
        if not is_controlled:
            fixed: dict[str, Callable[[], Drafter]] = {"none": NoDrafter, "model": self._model, **free}
            return self._constrained(fixed[name]())
        assert self.target_cost is not None
        there = {
            "grammar": self.constraint is not None,
            "reference": bool(self.reference),
            "lookup": True,
            "store": self.store is not None,
            "model": self.draft_cost is not None,
        }
        names = [source for source in ("grammar", *SOURCES[name]) if there[source]]
        sources = {name: self.acceptance[name] for name in names}
        draft_cost = self.draft_cost if "model" in names else None
        controller = Controller(self.target_cost, sources, draft_cost, Shares(CONFIDENCE_SHARES))
        model = self._model() if "model" in names and self.draft_model else None
        return AutoDrafter(controller, [self._constrained(free[name]()) for name in names if name in free], model)

    def _constrained(self, drafter: Drafter) -> Drafter:
        """The same inside the grammar, where there is one."""
        return GrammarDrafter(drafter, self.constraint) if self.constraint else drafter

    def _reference(self) -> ReferenceDrafter:
        return ReferenceDrafter(self.reference)

    def _lookup(self) -> LookupDrafter:
        return LookupDrafter(self.config.lookup_min_match)

    def _store(self) -> StoreDrafter:
        assert self.store is not None
        return self.store.drafter()

    def _model(self) -> ModelDrafter:
        assert self.draft_model is not None
        last, made = self._last, self._new_model(self.draft_model, floor_rule(self.config.confidence_floor))
        if last is not None:
            made.take_over(last)
        self._last = made
        return made

    def _new_model(self, model: LlamaModel, rule: StopRule) -> ModelDrafter:
        if self.bridge:
            return BridgeDrafter(model, *self.bridge, rule=rule, constraint=self.constraint)
        return ModelDrafter(model, self.sampler, rule=rule, can_draft=self.can_draft, constraint=self.constraint)

    def forget_fed(self) -> None:
        """Somebody else has fed the draft model since."""
        self._last = None
