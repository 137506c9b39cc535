"""Lets a controller decide, round by round, which drafter proposes and how much."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from specllm.decoding.controller import Controller, Verdict
from specllm.decoding.protocols import EMPTY_DRAFT, Draft, Drafter, Round, Token
from specllm.drafters.model import ModelDrafter


@dataclass(slots=True)
class _Proposal:
    draft: Draft
    position: int  # in the context
    n_verified: int = 0  # of its tokens


class AutoDrafter:
    """Implements `protocols.Drafter` over others: `free` ones whose drafts cost nothing, and perhaps a draft model."""

    name = "auto"

    def __init__(self, controller: Controller, free: Sequence[Drafter], model: ModelDrafter | None = None) -> None:
        self.controller = controller
        self._free = free
        self._model = model
        self._is_first = True
        self._proposals: dict[str, _Proposal] = {}
        self._n_pending = 0  # context tokens the draft model was fed in this round
        if model is not None:
            model.rule = self._rule

    def begin(self, context: Sequence[Token]) -> None:
        self.controller.begin(len(context))
        for drafter in (*self._free, *([self._model] if self._model else ())):
            drafter.begin(context)
        self._is_first, self._n_pending = True, 0  # Ctrl-C may have left a draft that no round came of
        self._proposals.clear()

    def propose(self, context: Sequence[Token], k: int) -> Draft:
        if self._is_first:  # the first token comes as soon as without speculation
            return EMPTY_DRAFT
        controller = self.controller
        self._judge(context)
        proposed = {drafter.name: drafter.propose(context, k) for drafter in self._free}
        # What the grammar alone proposes counts once: as that of its own drafter.
        drafts = {name: draft for name, draft in proposed.items() if draft.source == name}
        self._proposals = {name: _Proposal(draft, len(context)) for name, draft in drafts.items()}
        options = {name: controller.best_prefix(name, draft.evidence) for name, draft in drafts.items()}
        if self._model is not None and not self._model.is_off and controller.asks_now():
            n_pending = self._model.n_pending(context)
            free_rate = max((option.rate for option in options.values()), default=0.0)
            options["model"] = controller.model_option("model", n_pending, k, free_rate)
        source = controller.choose(options)
        if source is None:
            return EMPTY_DRAFT
        if source == "model" and self._model is not None:
            self._n_pending = n_pending
            draft = self._model.propose(context, options[source].length)
            if self._model.dropped.tokens:  # a guess that cost a forward, though nobody verifies it
                self._proposals["model"] = _Proposal(self._model.dropped, len(context))
            return draft
        draft, n = drafts[source], options[source].length
        self._proposals[source].n_verified = n
        return Draft(draft.tokens[:n], draft.source, draft.evidence[:n])

    def observe(self, round: Round) -> None:
        self._is_first = False
        n_pending, self._n_pending = self._n_pending, 0  # not every round asks for a draft
        seen = self._model.seen if self._model is not None and n_pending else ()
        self.controller.observe(round, n_pending=n_pending, seen=seen)
        for drafter in self._free:
            drafter.observe(round)

    def _judge(self, context: Sequence[Token]) -> None:
        """Learns from what was proposed last and not verified: the target has said what it would have said to it.

        So free drafters need no probes: their chances are known before anything is risked on them.
        """
        for name, proposal in self._proposals.items():
            said = context[proposal.position :]
            self.controller.acceptance[name].judge(proposal.draft, said, proposal.n_verified)

    def _rule(self, probability: float, evidence: Sequence[int], k: int) -> Verdict:
        if self.controller.is_probing:  # a probe shows what it is worth only at its full length, which is `k`
            return "more"
        return self.controller.verdict("model", evidence, k)
