"""From files to a session: the one place where runtime and drafters meet."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from specllm.app.calibration import Identity, draft_cost, known_draft_cost, target_cost
from specllm.app.drafting import SOURCES, Drafting
from specllm.app.memory.room import require_room
from specllm.app.models import LocatedModel
from specllm.app.offload import plan_gpu_layers, settled_gpu_layers
from specllm.config import ContextConfig, DraftConfig, GenerateConfig, GpuLayers, SamplingConfig
from specllm.decoding.controller import Controller
from specllm.decoding.sampling import KeyedSampler
from specllm.errors import ConfigError, IncompatiblePair
from specllm.models.gguf_header import read_header
from specllm.runtime.llama import LlamaModel, Weights
from specllm.runtime.trimmed_vocab import open_context, read_trimmed
from specllm.runtime.vocab import compare_vocabularies

LOGGER = logging.getLogger("specllm")
CTX_STEP = 256  # llama.cpp pads the KV cache to this many cells


@dataclass(frozen=True, slots=True)
class Loader:
    """How models are loaded in this run."""

    context: ContextConfig
    draft: DraftConfig
    draft_gpu_layers: GpuLayers = "auto"
    loads_all: bool = False  # also a draft model that cannot pay here

    def weights(self, path: Path, layers: GpuLayers) -> Weights:
        """The file's weights with that many layers offloaded; the header is checked before llama.cpp sees the file."""
        return Weights(
            path,
            n_gpu_layers=plan_gpu_layers(read_header(path), layers, self.context),
            use_mmap=self.context.use_mmap,
            use_mlock=self.context.use_mlock,
        )

    def require_room(self, path: Path, context: ContextConfig, layers: GpuLayers, *, option: str) -> None:
        """Raises OutOfMemory where a context in main memory cannot fit."""
        header = read_header(path)
        if plan_gpu_layers(header, layers, context) == 0:
            require_room(header, context, option=option)

    def context_size(self, weights: Weights, n_prompt: int, config: GenerateConfig) -> int:
        """Room for the prompt and the answer, in whole steps, and no more than the model was trained for."""
        needed = -(-(n_prompt + config.max_tokens) // CTX_STEP) * CTX_STEP
        return min(needed, weights.n_ctx_train) if weights.n_ctx_train else needed

    def open(
        self,
        weights: Weights,
        context: ContextConfig,
        sampling: SamplingConfig,
        draft_model: LocatedModel | None,
        notice: Callable[[str], None],
    ) -> tuple[LlamaModel, Drafting]:
        """The target in a context of its own, and what its drafters are made of.

        `context` has its size, threads and GPU layers settled; `notice` is told what takes seconds.
        """
        if read_trimmed(weights.path):
            raise ConfigError(f"{weights.path.name} has a trimmed vocabulary: it can draft, and is no target",
                              "name it with --draft-model")  # fmt: skip
        self.require_room(weights.path, context, context.gpu_layers, option="--ctx")
        target = LlamaModel(weights, context)
        LOGGER.info("target %s: context %d, %d threads, GPU layers %s, rollback by %s", weights.path.name, target.n_ctx,
                    target.threads, context.gpu_layers, target.rollback_kind)  # fmt: skip
        drafting = Drafting(self.draft, KeyedSampler(sampling))
        try:
            self.equip(drafting, target, draft_model, notice)
        except BaseException:
            target.close()
            raise
        return target, drafting

    def equip(
        self,
        drafting: Drafting,
        target: LlamaModel,
        draft_model: LocatedModel | None,
        notice: Callable[[str], None],
    ) -> None:
        """Adds to `drafting` what the configured drafter needs and is not there: what forwards cost, the draft model.

        Measuring empties the target's KV cache.
        """
        if self.draft.is_controlled and drafting.target_cost is None:
            drafting.target_identity = identity = Identity.of(target.weights.path, target.config, "target")
            drafting.target_cost = target_cost(target, identity, is_renewed=self.draft.is_recalibrated, notice=notice)
        if draft_model is not None and "model" in SOURCES[self.draft.drafter]:
            self._add_draft_model(drafting, target, draft_model, notice)

    def _add_draft_model(
        self,
        drafting: Drafting,
        target: LlamaModel,
        draft_model: LocatedModel,
        notice: Callable[[str], None],
    ) -> None:
        """Loads the draft model into `drafting`, unless it is known that it cannot pay here and nobody insists on it."""
        header, n_ctx = read_header(draft_model.path), self.draft.draft_ctx
        context = replace(target.config, n_ctx=min(n_ctx, header.n_ctx_train or n_ctx), n_outputs_max=1)
        layers = settled_gpu_layers(header, self.draft_gpu_layers, context)
        context = replace(context, gpu_layers=layers)
        identity = Identity.of(draft_model.path, context, "draft")
        is_insisted_on = self.loads_all or self.draft.drafter != "auto" or not self.draft.is_controlled
        is_optional = not is_insisted_on and drafting.draft_model is None
        if is_optional and drafting.target_cost and not self.draft.is_recalibrated:
            drafting.draft_cost = known_draft_cost(identity)
            if drafting.draft_cost and not Controller(drafting.target_cost, {}, drafting.draft_cost).can_model_pay():
                LOGGER.info("draft model %s not loaded: it costs %.0f ms a token, a forward of the target %.0f ms",
                            draft_model.path.name, drafting.draft_cost.token_s * 1e3,
                            drafting.target_cost.seconds(1) * 1e3)  # fmt: skip
                return
        if drafting.draft_model is None:
            draft_weights = self.weights(draft_model.path, layers)
            with contextlib.ExitStack() as undo:
                undo.callback(draft_weights.close)
                trimmed = read_trimmed(draft_model.path)
                try:
                    kept = trimmed.kept.tolist() if trimmed else None
                    drafting.can_draft = compare_vocabularies(target.vocab, draft_weights.vocab, kept).can_draft
                except IncompatiblePair:
                    if trimmed:  # it cannot read text
                        raise
                    notice(f"{draft_model.name} has another vocabulary: its drafts go over text")
                    drafting.bridge = target.vocab, draft_weights.vocab
                self.require_room(draft_model.path, context, layers, option="--draft-ctx")
                drafting.draft_model = open_context(draft_weights, context)
                undo.pop_all()
        if self.draft.is_controlled:
            drafting.draft_cost = draft_cost(drafting.draft_model, identity, is_renewed=self.draft.is_recalibrated)
