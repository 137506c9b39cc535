"""From files to a session: the one place where runtime and drafters meet."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from specllm.app.generation import Session
from specllm.app.models import LocatedModel
from specllm.app.offload import ALL_LAYERS, plan_gpu_layers
from specllm.app.room import require_room
from specllm.config import ContextConfig, DraftConfig, GenerateConfig, GpuLayers, SamplingConfig
from specllm.decoding.protocols import Drafter
from specllm.decoding.sampling import KeyedSampler
from specllm.drafters.lookup import LookupDrafter
from specllm.drafters.model import ModelDrafter, floor_rule
from specllm.drafters.none import NoDrafter
from specllm.models.gguf_header import read_header
from specllm.runtime.llama import LlamaModel, Weights
from specllm.runtime.vocab import compare_vocabularies

CTX_STEP = 256  # llama.cpp pads the KV cache to this many cells


@dataclass(frozen=True, slots=True)
class Loader:
    """How models are loaded in this run."""

    context: ContextConfig
    draft: DraftConfig
    draft_gpu_layers: GpuLayers = "auto"

    def weights(self, path: Path, gpu_layers: GpuLayers | None = None) -> Weights:
        """The file's weights, offloaded as asked; the header is checked before llama.cpp sees the file."""
        header = read_header(path)
        layers = self.context.gpu_layers if gpu_layers is None else gpu_layers
        return Weights(
            path,
            n_gpu_layers=plan_gpu_layers(header, layers, self.context),
            use_mmap=self.context.use_mmap,
            use_mlock=self.context.use_mlock,
        )

    def settled_gpu_layers(self, path: Path) -> GpuLayers:
        """What `gpu_layers` comes to for the target at `path`."""
        layers = plan_gpu_layers(read_header(path), self.context.gpu_layers, self.context)
        return "all" if layers == ALL_LAYERS else layers

    def require_room(self, path: Path, context: ContextConfig, layers: GpuLayers, *, option: str) -> None:
        """Raises OutOfMemory where a context in main memory cannot fit."""
        header = read_header(path)
        if plan_gpu_layers(header, layers, context) == 0:
            require_room(header, context, option=option)

    def context_size(self, weights: Weights, n_prompt: int, config: GenerateConfig) -> int:
        """Room for the prompt and the answer, in whole steps, and no more than the model was trained for."""
        needed = -(-(n_prompt + config.max_tokens) // CTX_STEP) * CTX_STEP
        return min(needed, weights.n_ctx_train) if weights.n_ctx_train else needed

    def session(
        self,
        weights: Weights,
        context: ContextConfig,
        drafter: str,
        draft_model: LocatedModel | None,
        sampling: SamplingConfig,
    ) -> Session:
        """The target in a context of its own, with the drafter by that name ready to begin."""
        self.require_room(weights.path, context, context.gpu_layers, option="--ctx")
        target = LlamaModel(weights, context)
        if drafter != "model" or draft_model is None:
            return Session(target, self._drafter(drafter))
        draft_weights = self.weights(draft_model.path, self.draft_gpu_layers)
        shared = compare_vocabularies(weights.vocab, draft_weights.vocab)
        n_ctx = min(self.draft.draft_ctx, draft_weights.n_ctx_train or self.draft.draft_ctx)
        draft_context = replace(context, n_ctx=n_ctx, n_outputs_max=1)
        self.require_room(draft_model.path, draft_context, self.draft_gpu_layers, option="--draft-ctx")
        model = LlamaModel(draft_weights, draft_context)
        model_drafter = ModelDrafter(
            model,
            KeyedSampler(sampling),
            rule=floor_rule(self.draft.confidence_floor),
            can_draft=shared.can_draft,
        )
        return Session(target, model_drafter, draft_model=model)

    def _drafter(self, name: str) -> Drafter:
        return LookupDrafter(self.draft.lookup_min_match) if name == "lookup" else NoDrafter()
