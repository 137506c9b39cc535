"""The doctor's look at models: their files, and whether the default pair fits, matches and rolls back."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

from specllm.app.doctor.diagnosis import Check, attempt, counted, listed
from specllm.app.memory.plan import Fit, Free, Load, Role
from specllm.app.models import LocatedModel, locate
from specllm.app.offload import plan_gpu_layers
from specllm.config import CONTROLLED_DRAFT_LENGTH, ContextConfig, DraftConfig
from specllm.errors import IncompatiblePair, ModelNotFound, RollbackUnsupported, SpecllmError
from specllm.models import store
from specllm.models.entries import Model
from specllm.models.gguf_header import GgufHeader, read_header
from specllm.models.progress import Progress
from specllm.models.registry import Registry
from specllm.runtime.backend import BackendInfo
from specllm.runtime.interrupt import abort_on_interrupt
from specllm.runtime.machine import available_memory_bytes
from specllm.runtime.memory_estimate import N_KEPT_STATES, is_packed_by_kernels, matrices
from specllm.units import sized

if TYPE_CHECKING:
    from specllm.decoding.rollback_trial import RollbackTrial

TARGET_CTX = 8192  # tokens the memory check assumes: a file to edit, and the answer
WARM_UP_TOKENS = 4
TIMED_TOKENS = 8


def check_files(registry: Registry, *, is_full: bool, progress: Progress) -> Iterator[Check]:
    """One check for every model file on this disk, and for every missing one of the default pair."""
    wanted = {model.name for model in _default_models(registry)}
    for model in registry.models.values():
        name, path = f"model {model.name}", _place(model)
        if path.exists():
            yield attempt(name, partial(_file, model, is_full, progress))
        elif model.name in wanted:
            size = f" ({sized(model.bytes)})" if model.bytes else ""
            yield Check(name, "warn", f"not installed{size}", f"specllm models pull {model.name}")


def check_pair(registry: Registry, info: BackendInfo | None) -> Iterator[Check]:
    """Memory, vocabularies, rollback and speed of the default pair, as far as its files are there.

    Nothing is loaded without `info`: llama.cpp is not there or would crash.
    """
    located = _located(registry)
    if not located:
        return
    memory = attempt("memory", lambda: _memory(located))
    yield memory
    if info is None:
        fact = "not loaded, because llama.cpp does not work here"
        yield Check("pair", "warn", fact, "mend the failures above")
        return
    if len(located) == 2:
        yield attempt("pair", lambda: _vocabularies(*located))
    if memory.status != "ok":
        return
    measured = []
    for role, model in zip(("target", "draft model"), located, strict=False):
        try:
            measured.append(_measure(model.path, info))
        except SpecllmError as error:
            yield Check(role, "fail", error.message, error.hint)
            return
        yield _speed(role, model, measured, info)
    yield _rollback(located[0], measured[0])


def _default_models(registry: Registry) -> list[Model]:
    if pair := registry.pairs.get(registry.default):
        return [registry.models[pair.target], registry.models[pair.draft]]
    return [registry.models[registry.default]] if registry.default in registry.models else []


def _located(registry: Registry) -> list[LocatedModel]:
    """The default target and draft model; without the target nothing, without the draft model the target."""
    located = []
    for model in _default_models(registry):
        try:
            located.append(locate(model.name, registry=registry))
        except ModelNotFound:
            break
    return located


def _place(model: Model) -> Path:
    """Where its file is, or should be."""
    return store.installed_path(model) or store.destination(model)


def _file(model: Model, is_full: bool, progress: Progress) -> Check:
    """Size, header and digest of an installed file; raises what is wrong with it."""
    name, path = f"model {model.name}", _place(model)
    header = read_header(path)
    if store.installed_path(model) is None:
        return Check(
            name,
            "fail",
            f"{header.file_bytes:,} bytes instead of {model.bytes or 0:,}",
            f"move {path} away, then: specllm models pull {model.name}",
        )
    size = f"{sized(header.file_bytes)}, {header.architecture}"
    if is_full:
        progress.begin("checking", header.file_bytes)
        verified = store.verify(model, progress.advance)
        known = "recorded now" if verified.is_first_record else "as promised"
        return Check(name, "ok", f"{size}, sha256 {known}: {verified.sha256[:12]}..")
    record = store.recorded_digest(model)
    if record and model.sha256 and record.sha256 != model.sha256:
        return Check(
            name,
            "fail",
            f"{size}, recorded with sha256 {record.sha256[:12]}.. instead of {model.sha256[:12]}..",
            f"move {path} away, then: specllm models pull {model.name}",
        )
    if record and record.bytes != header.file_bytes:
        return Check(
            name,
            "fail",
            f"{header.file_bytes:,} bytes, and {record.bytes:,} when it was recorded",
            f"specllm models verify {model.name}",
        )
    if record:
        return Check(name, "ok", f"{size}, sha256 {record.sha256[:12]}.. when it came")
    return Check(name, "ok", f"{size}, sha256 not looked at (doctor --full does)")


def _memory(located: list[LocatedModel]) -> Check:
    """What target and draft model will take against what is free."""
    n_rows = CONTROLLED_DRAFT_LENGTH + 1
    contexts = (
        ContextConfig(n_ctx=TARGET_CTX, n_outputs_max=n_rows),
        ContextConfig(n_ctx=DraftConfig().draft_ctx),
    )
    loads = []
    roles: tuple[Role, ...] = ("target", "draft model")
    for role, model, context in zip(roles, located, contexts, strict=False):
        header = read_header(model.path)
        n_ctx = min(context.n_ctx, header.n_ctx_train or context.n_ctx)
        sized_context = replace(context, n_ctx=n_ctx)
        loads.append(Load(role=role, name=model.name, header=header, context=sized_context, gpu_layers=0))
    fit = Fit(tuple(loads), Free(available_memory_bytes(), None))
    names = " and ".join(model.name for model in located)
    need = f"{names} need {sized(fit.ram_bytes)} with a context of {TARGET_CTX:,} tokens"
    free_bytes = fit.free.ram_bytes
    if free_bytes is None:
        return Check("memory", "ok", f"{need}; how much is free is not known")
    return Check(
        "memory",
        "ok" if fit.is_ok else "warn",
        f"{need}, {sized(free_bytes)} are free",
        "" if fit.is_ok else fit.hint(),
    )


@abort_on_interrupt()
def _vocabularies(target: LocatedModel, draft: LocatedModel) -> Check:
    from specllm.runtime.llama import Weights
    from specllm.runtime.trimmed_vocab import read_trimmed
    from specllm.runtime.vocab import compare_vocabularies

    with (
        closing(Weights(target.path, is_vocab_only=True)) as ours,
        closing(Weights(draft.path, is_vocab_only=True)) as theirs,
    ):
        trimmed = read_trimmed(draft.path)
        kept = trimmed.kept.tolist() if trimmed else None
        try:
            shared = compare_vocabularies(ours.vocab, theirs.vocab, kept)
        except IncompatiblePair:
            if trimmed:  # it cannot read text
                raise
            return Check("pair", "ok", f"{draft.name} can draft for {target.name}: other vocabulary, over text")
    n_shared = len(kept) if kept else shared.n_shared
    fact = f"{draft.name} can draft for {target.name}: {n_shared:,} shared tokens"
    if shared.differing:
        fact += f", {counted(len(shared.differing), 'id')} never drafted"
    return Check("pair", "ok", fact)


@dataclass(frozen=True, slots=True)
class _Measured:
    """One model, loaded and run for a few tokens."""

    seconds_per_token: float
    gpu_layers: int  # -1 is all of them
    rollback: str  # trim, states, snapshot, replay, none
    trial: RollbackTrial | None = None  # None: it refused
    kernels: str = ""  # which of its matrices run on specllm's; empty where none does


@abort_on_interrupt()
def _measure(path: Path, info: BackendInfo) -> _Measured:
    from specllm.decoding.rollback_trial import try_rollback
    from specllm.decoding.sampling import require_number
    from specllm.runtime.llama import LlamaModel, Weights

    header = read_header(path)
    context = ContextConfig(n_ctx=256, n_outputs_max=N_KEPT_STATES + 1)
    gpu_layers = plan_gpu_layers(header, "auto", context) if info.can_offload else 0
    with (
        closing(Weights(path, n_gpu_layers=gpu_layers)) as weights,
        closing(LlamaModel(weights, context)) as model,
    ):
        require_number(float(model.forward([1] * WARM_UP_TOKENS, logits="last").max()))
        seconds = []
        for _ in range(TIMED_TOKENS):
            started = time.perf_counter()
            model.forward([1], logits="last")
            seconds.append(time.perf_counter() - started)
        rollback: str = model.rollback_kind
        kernels = _kernels(header, model.is_width_independent) if info.kernels.instruction_set else ""
        trial = None
        try:
            trial = try_rollback(model)
        except RollbackUnsupported:
            rollback = "none"
    return _Measured(median(seconds), gpu_layers, rollback, trial, kernels)


def _kernels(header: GgufHeader, is_width_independent: bool) -> str:
    """`specllm's kernels for 168 Q4_K and 29 Q6_K matrices, llama.cpp's for 2 Q3_K`, and what follows from it."""
    own, others = Counter[str](), Counter[str]()
    for tensor in matrices(header):
        (own if is_packed_by_kernels(tensor) else others)[tensor.type] += 1
    text = f"specllm's kernels for {listed([f'{n:,} {kind}' for kind, n in own.most_common()])} matrices"
    if others:
        text += f", llama.cpp's for {listed([f'{n:,} {kind}' for kind, n in others.most_common()])}"
    return text + (": the same bits at every width" if is_width_independent else "") if own else ""


def _speed(role: str, model: LocatedModel, measured: list[_Measured], info: BackendInfo) -> Check:
    """Where a model runs and what a token costs there; a draft model slower than its target is a warning."""
    last = measured[-1]
    gpus = listed([device.name for device in info.devices if device.is_gpu])
    where = "CPU"
    if last.gpu_layers:
        where = gpus if last.gpu_layers < 0 else f"{gpus} ({counted(last.gpu_layers, 'layer')})"
    fact = f"{model.name} on {where}, {last.seconds_per_token * 1000:.1f} ms per token"
    if last.kernels:
        fact += f", {last.kernels}"
    if len(measured) == 2:
        share = last.seconds_per_token / measured[0].seconds_per_token
        fact += f", {share:.2f} of a target token"
        if measured[0].gpu_layers and not last.gpu_layers:
            return Check(role, "warn", f"{fact}; the target is on a GPU", "use --draft-gpu-layers all")
        if share >= 1:
            fix = "use --drafter lookup, or a smaller draft model"
            return Check(role, "warn", f"{fact}: it cannot pay", fix)
    return Check(role, "ok", fact)


def _rollback(target: LocatedModel, measured: _Measured) -> Check:
    """How the target takes rejected tokens back, whether without a trace, and what it costs."""
    facts = {
        "trim": "trim: rejected tokens are dropped from the KV cache",
        "states": "states: the last few states are kept, and one of them is gone back to",
        "snapshot": "snapshot: the state before a draft is kept and restored",
    }
    trial = measured.trial
    if trial is None or measured.rollback not in facts:
        return Check(
            "rollback",
            "warn",
            f"{target.name} cannot take tokens back"
            + (", only start over" if measured.rollback == "replay" else "")
            + ": no speculation with it",
            "use --drafter none with it, or another target",
        )
    if not trial.is_exact:
        return Check(
            "rollback",
            "fail",
            f"{target.name}: logits behind a rollback ({measured.rollback}) are off by {trial.deviation:.2f} of their "
            "deviation",
            "use --drafter none with it, and scripts/setup --rebuild for another build",
        )
    cost = f"{trial.rejection_s * 1000:.2f} ms" if trial.rejection_s >= 1e-5 else "nothing"
    return Check("rollback", "ok", f"{facts[measured.rollback]}; a rejection costs {cost}")
