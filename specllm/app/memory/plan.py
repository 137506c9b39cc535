"""Whether models fit in memory, from their headers alone, before anything is loaded; and what to change where they do not."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Literal, Protocol

from specllm.app.models import LocatedModel
from specllm.app.offload import memory_of, plan_gpu_layers
from specllm.config import ContextConfig, DraftConfig, GpuLayers, KvType
from specllm.errors import BackendError, OutOfMemory
from specllm.models.gguf_header import GgufHeader, read_header
from specllm.runtime.backend import inspect_backend
from specllm.runtime.machine import available_memory_bytes
from specllm.runtime.memory_estimate import CONTEXT_STEP, MemoryEstimate, split
from specllm.units import sized

QUANTIZED: KvType = "q8_0"  # half of f16, and no text that was looked at was worse for it
Role = Literal["target", "draft model"]
BLOCK = 32  # numbers of a head that a quantized cache stores as one


class Models(Protocol):
    """The part of `app.generate.Plan` that memory depends on."""

    @property
    def target(self) -> LocatedModel: ...
    @property
    def draft_model(self) -> LocatedModel | None: ...
    @property
    def context(self) -> ContextConfig: ...
    @property
    def draft_gpu_layers(self) -> GpuLayers: ...
    @property
    def draft(self) -> DraftConfig: ...


@dataclass(frozen=True, kw_only=True, slots=True)
class Load:
    """One model as it would be loaded."""

    role: Role
    name: str
    header: GgufHeader
    context: ContextConfig  # its size settled
    gpu_layers: int  # -1 is all of them

    @property
    def memory(self) -> MemoryEstimate:
        return memory_of(self.header, self.context)

    @property
    def bytes(self) -> tuple[int, int]:
        """In main memory, on a GPU."""
        return split(self.header, self.memory, self.gpu_layers)

    def with_ctx(self, n_ctx: int) -> Load:
        return replace(self, context=replace(self.context, n_ctx=n_ctx))

    def as_result(self) -> dict[str, object]:
        ram_bytes, vram_bytes = self.bytes
        return {
            "role": self.role, "name": self.name, "n_ctx": self.context.n_ctx, "kv_type": self.context.kv_type,
            "gpu_layers": self.gpu_layers, **asdict(self.memory), "ram_bytes": ram_bytes, "vram_bytes": vram_bytes,
        }  # fmt: skip


@dataclass(frozen=True, slots=True)
class Free:
    ram_bytes: int | None  # None: the system does not say
    vram_bytes: int | None  # of the GPU with the most; None: there is none

    def holds(self, loads: Sequence[Load], taken_bytes: int = 0) -> bool:
        """Whether all of them fit; `taken_bytes` of main memory are theirs already."""
        ram_bytes, vram_bytes = (sum(load.bytes[place] for load in loads) for place in (0, 1))
        is_ram_enough = self.ram_bytes is None or ram_bytes - taken_bytes <= self.ram_bytes
        return is_ram_enough and vram_bytes <= (self.vram_bytes or 0)


@dataclass(frozen=True, slots=True)
class Step:
    """A change after which everything fits."""

    flags: str
    loads: tuple[Load, ...]

    def as_result(self) -> dict[str, object]:
        sizes = [load.bytes for load in self.loads]
        return {
            "flags": self.flags,
            "ram_bytes": sum(ram for ram, _ in sizes),
            "vram_bytes": sum(vram for _, vram in sizes),
        }


@dataclass(frozen=True, slots=True)
class Fit:
    """What models need beside what there is."""

    loads: tuple[Load, ...]  # the target, and the draft model where there is one
    free: Free
    taken_bytes: int = 0  # of the need, by weights that are loaded already

    @property
    def ram_bytes(self) -> int:
        return sum(load.bytes[0] for load in self.loads) - self.taken_bytes

    @property
    def vram_bytes(self) -> int:
        return sum(load.bytes[1] for load in self.loads)

    @property
    def is_ok(self) -> bool:
        return self.free.holds(self.loads, self.taken_bytes)

    def steps(self) -> list[Step]:
        """What to change, the least loss first: each alone where that is enough, else all that help together."""
        if self.is_ok:
            return []
        alone = [
            step for change in _CHANGES if (step := change(self)) and self.free.holds(step.loads, self.taken_bytes)
        ]
        return alone or list(self._together())

    def _together(self) -> Iterator[Step]:
        fit, flags = self, []
        for change in (_lookup_only, _quantized_kv, _fewer_layers, _smaller_context):
            if step := change(fit):
                fit = replace(fit, loads=step.loads)
                flags.append(step.flags)
        if fit.is_ok:
            yield Step(" ".join(flags), fit.loads)

    def require(self) -> None:
        """Raises OutOfMemory, with the numbers and the plan, where it does not fit."""
        if not self.is_ok:
            raise OutOfMemory(self.verdict(), self.hint())

    def verdict(self) -> str:
        """What is needed and what there is, in one line."""
        target = self.loads[0]
        names = " and ".join(load.name for load in self.loads)
        needs, frees = [], []
        if self.ram_bytes or not self.vram_bytes:
            needs.append(sized(self.ram_bytes))
            frees.append("an unknown amount" if self.free.ram_bytes is None else sized(self.free.ram_bytes))
        if self.vram_bytes:
            needs.append(f"{sized(self.vram_bytes)} on the GPU")
            frees.append(f"{sized(self.free.vram_bytes or 0)} there")
        need = "needs" if len(self.loads) == 1 else "need"
        return f"{names} {need} {' and '.join(needs)} with a context of {target.context.n_ctx:,} tokens; " + (
            f"free: {' and '.join(frees)}"
        )

    def hint(self) -> str:
        if steps := self.steps():
            return "use " + ", or ".join(step.flags for step in steps)
        return "free some memory, or use a smaller model or quantization (specllm models list)"

    def as_result(self) -> dict[str, object]:
        return {
            "fits": self.is_ok,
            "models": [load.as_result() for load in self.loads],
            "ram_bytes": self.ram_bytes,
            "vram_bytes": self.vram_bytes,
            "free_ram_bytes": self.free.ram_bytes,
            "free_vram_bytes": self.free.vram_bytes,
            "steps": [step.as_result() for step in self.steps()],
        }


def fit_of(models: Models, n_ctx: int, free: Free | None = None) -> Fit:
    """What the models take with the size of context that was asked for.

    Where none was, with `n_ctx` tokens, at most what the target was trained for.
    """
    free = free_memory() if free is None else free
    header = read_header(models.target.path)
    n_ctx = models.context.n_ctx or min(n_ctx, header.n_ctx_train or n_ctx)
    target = _load("target", models.target, header, replace(models.context, n_ctx=n_ctx), models.context.gpu_layers)
    loads = [target]
    if models.draft_model is not None:
        header, n_ctx = read_header(models.draft_model.path), models.draft.draft_ctx
        context = replace(models.context, n_ctx=min(n_ctx, header.n_ctx_train or n_ctx), n_outputs_max=1)
        draft = _load("draft model", models.draft_model, header, context, models.draft_gpu_layers)
        if models.draft_gpu_layers == "auto" and not free.holds((target, draft)):
            draft = replace(draft, gpu_layers=0)  # it takes what the target leaves
        loads.append(draft)
    return Fit(tuple(loads), free)


def _load(role: Role, model: LocatedModel, header: GgufHeader, context: ContextConfig, layers: GpuLayers) -> Load:
    n_layers = plan_gpu_layers(header, layers, context)
    return Load(role=role, name=model.name, header=header, context=context, gpu_layers=n_layers)


def free_memory() -> Free:
    """What is free now in main memory and on the GPU with the most."""
    try:
        info = inspect_backend()
    except BackendError:  # told by whoever wants to load something
        return Free(available_memory_bytes(), None)
    gpus = [device.free_bytes for device in info.devices if device.is_gpu] if info.can_offload else []
    return Free(available_memory_bytes(), max(gpus, default=None))


def _quantized_kv(fit: Fit) -> Step | None:
    def can(load: Load) -> bool:
        header, context = load.header, load.context
        is_whole = header.key_length % BLOCK == 0 == header.value_length % BLOCK and header.key_length > 0
        return context.kv_type in ("f32", "f16", "bf16") and context.flash_attention != "off" and is_whole

    if not all(map(can, fit.loads)):  # one option for both
        return None
    loads = [replace(load, context=replace(load.context, kv_type=QUANTIZED)) for load in fit.loads]
    return Step(f"--kv-type {QUANTIZED}", tuple(loads))


def _smaller_draft_window(fit: Fit) -> Step | None:
    return _resized(fit, "draft model", "--draft-ctx")


def _smaller_context(fit: Fit) -> Step | None:
    return _resized(fit, "target", "--ctx")


def _resized(fit: Fit, role: str, option: str) -> Step | None:
    """The largest context of the model in that role with which everything fits; the smallest there is where none does."""

    def loads(n_steps: int) -> tuple[Load, ...]:
        return tuple(load.with_ctx(n_steps * CONTEXT_STEP) if load.role == role else load for load in fit.loads)

    n_ctx = next((load.context.n_ctx for load in fit.loads if load.role == role), 0)
    low, high = 1, -(-n_ctx // CONTEXT_STEP) - 1  # of steps: known to be no more than the best, and no less
    if high < low:
        return None
    while low < high:
        middle = (low + high + 1) // 2
        if fit.free.holds(loads(middle), fit.taken_bytes):
            low = middle
        else:
            high = middle - 1
    return Step(f"{option} {low * CONTEXT_STEP}", loads(low))


def _fewer_layers(fit: Fit) -> Step | None:
    """As many layers of the target on the GPU as there is room for."""
    target, *rest = fit.loads
    n_layers = target.header.n_layer + 1
    most = n_layers if target.gpu_layers < 0 else min(target.gpu_layers, n_layers)
    for n in range(most - 1, -1, -1):
        loads = (replace(target, gpu_layers=n), *rest)
        if sum(load.bytes[1] for load in loads) <= (fit.free.vram_bytes or 0):
            return Step(f"--gpu-layers {n}", loads)
    return None


def _lookup_only(fit: Fit) -> Step | None:
    return Step("--drafter lookup", fit.loads[:1]) if len(fit.loads) > 1 else None


_CHANGES: tuple[Callable[[Fit], Step | None], ...] = (
    _quantized_kv, _smaller_draft_window, _smaller_context, _fewer_layers, _lookup_only,
)  # fmt: skip
