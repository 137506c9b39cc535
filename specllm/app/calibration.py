"""What forwards cost here, measured once and kept in the user's cache.

A calibration belongs to one model file, context settings, threads, devices and build; anything else is measured anew. A
file that is stale, damaged or from another version is ignored, never fatal: the figures can always be measured again.
"""

from __future__ import annotations

import hashlib
import json
import logging
import math
import os
import tempfile
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import platformdirs

from specllm.app.host import processor_name
from specllm.config import ContextConfig
from specllm.decoding.calibrate import (
    DEPTH,
    NOISY,
    is_plausible,
    measure_draft,
    measure_target,
    missing_widths,
    spread_of,
    steep,
)
from specllm.decoding.cost import CALIBRATION_WIDTHS, MAX_WIDTH, CostModel, DraftCost
from specllm.runtime.backend import inspect_backend
from specllm.runtime.llama import LlamaModel

SCHEMA = 1
QUICK_BUDGET_S = 3.5  # of the calibration before a first answer; with filling the cache about five seconds
N_RUNS = (
    2  # that measure one target: the second one completes or repeats what the first one left, and no later one tries
)
N_CONTRADICTIONS = 3  # answers in a row that have to contradict a calibration before it is dropped

LOGGER = logging.getLogger("specllm")


def cache_dir() -> Path:
    """SPECLLM_CACHE_DIR, else the platform's place for caches; may not exist yet."""
    chosen = os.environ.get("SPECLLM_CACHE_DIR")
    return Path(chosen).expanduser() if chosen else Path(platformdirs.user_cache_dir("specllm", appauthor=False))


@dataclass(frozen=True, slots=True)
class Identity:
    """Everything that a model's cost depends on."""

    facts: Mapping[str, Any]

    @classmethod
    def of(cls, path: Path, context: ContextConfig, role: str) -> Identity:
        """Of the model at `path` in such a context, with `threads` and `gpu_layers` settled; nothing is loaded."""
        stat = path.resolve().stat()
        build = inspect_backend()
        return cls(
            {
                "role": role,
                "file": path.name,
                "bytes": stat.st_size,
                "modified_ns": stat.st_mtime_ns,
                "threads": context.threads,
                "gpu_layers": context.gpu_layers,
                "kv_type": context.kv_type,
                "flash_attention": context.flash_attention,
                "n_batch": context.n_batch,
                "n_ubatch": context.n_ubatch,
                "is_roomy": context.n_ctx == 0 or context.n_ctx > DEPTH + MAX_WIDTH,
                "llama_cpp_python": build.binding_version,
                "ggml": build.ggml_version,
                "features": sorted(build.features),
                "compiler": build.compiler,
                "kernels_bytes": build.kernels_bytes,
                "kernels": build.kernels.name,
                "devices": [
                    [device.name, device.description, device.total_bytes if device.is_gpu else 0]
                    for device in build.devices
                ],
                "processor": processor_name(),
            }
        )

    def file(self, kind: str) -> Path:
        digest = hashlib.sha256(json.dumps(dict(self.facts), sort_keys=True).encode()).hexdigest()[:16]
        return cache_dir() / kind / f"{digest}.json"


@dataclass(frozen=True, kw_only=True, slots=True)
class Calibration:
    """What a target's forwards cost, and how that was measured."""

    points: Mapping[int, float]  # seconds by width
    spread: float | None = None  # how noisy the readings were (`spread_of`); None where nothing was read twice
    depth: int = DEPTH  # tokens in the KV cache while measuring
    n_runs: int = 1  # that measured it
    is_smooth: bool = False  # one kernel computes all widths: there are no steps between those measured
    n_contradictions: int = 0  # answers since, one after another, that contradicted it

    @classmethod
    def known(cls, identity: Identity) -> Calibration | None:
        """What the cache holds; None where that is not whole."""
        found = read(identity.file("calibration"))
        if not found or found.get("identity") != identity.facts or not isinstance(found.get("points"), dict):
            return None
        try:
            points = {int(width): seconds for width, seconds in found["points"].items()}
        except ValueError:
            return None
        is_whole = 1 in points and all(width > 0 and _is_positive(seconds) for width, seconds in points.items())
        if not is_whole or not is_plausible(points):
            return None
        counts = {name: found[name] for name in ("depth", "n_runs", "n_contradictions") if _is_count(found.get(name))}
        is_smooth = found.get("is_smooth") is True
        return cls(points=points, spread=known_spread(identity), is_smooth=is_smooth, **counts)

    def keep(self, identity: Identity) -> None:
        """Later runs start from it."""
        keep(identity.file("calibration"), {"identity": identity.facts, **asdict(self)})

    def missing(self, n_ctx: int) -> list[int]:
        """The widths that another run could measure."""
        return missing_widths(self.points, n_ctx=n_ctx, budget_s=QUICK_BUDGET_S, is_smooth=self.is_smooth)

    def is_final(self, n_ctx: int) -> bool:
        """Whether no other run measures it."""
        is_noisy = self.spread is not None and self.spread > NOISY
        return self.n_runs >= N_RUNS or not (is_noisy or self.missing(n_ctx))


def target_cost(
    model: LlamaModel,
    identity: Identity,
    *,
    is_renewed: bool = False,
    notice: Callable[[str], None] = lambda text: None,
) -> CostModel:
    """V(w) of the target: from the cache, else measured now (`notice` says so) and kept.

    What one run could not measure, or measured beside other work, the next one does; then it stays as it is.
    """
    known = None if is_renewed else Calibration.known(identity)
    if known is None or not known.is_final(model.n_ctx):
        again = "again " if known else ""
        notice(
            f"measuring {again}what {model.weights.path.name} costs on this machine (3 to 5 s; a slow model takes longer)"
        )
        known = _measured(model, known)
        if not is_plausible(known.points):  # nothing is kept: the next run measures again
            return CostModel(steep(known.points))
        known.keep(identity)
        _tell_what_is_missing(model, known)
    return CostModel(known.points, known.depth)


def _measured(model: LlamaModel, known: Calibration | None) -> Calibration:
    """The known calibration with what it lacked, or the quieter one of it and a new one; without one, a new one."""
    readings: dict[int, list[float]] = defaultdict(list)
    depths = [DEPTH]
    lacking = known if known and known.missing(model.n_ctx) else None
    points = measure_target(
        model,
        budget_s=QUICK_BUDGET_S,
        known=lacking.points if lacking else None,
        depth=lacking.depth if lacking else DEPTH,
        told=lambda width, seconds: readings[width].append(seconds),
        filled=depths.append,
    )
    new = Calibration(
        points=points,
        spread=spread_of(readings.values()),
        depth=depths[-1],
        is_smooth=model.is_width_independent,
    )
    if known is None:
        return new
    known, new = replace(known, n_runs=known.n_runs + 1), replace(new, n_runs=known.n_runs + 1)
    if not is_plausible(points):
        return known
    if lacking:  # of a curve in two parts the noisier one counts
        spreads = [spread for spread in (known.spread, new.spread) if spread is not None]
        return replace(new, spread=max(spreads, default=None))
    return new if _is_quieter(new.spread, known.spread) else known


def _tell_what_is_missing(model: LlamaModel, known: Calibration) -> None:
    """Once, when nobody measures it any more."""
    widest, room = max(known.points), missing_widths({}, n_ctx=model.n_ctx, budget_s=math.inf)
    if known.is_final(model.n_ctx) and widest < max(room, default=0):
        LOGGER.warning("%s: blocks of more than %d tokens take too long here to be measured: drafts have at most %d",
                       model.weights.path.name, widest, widest - 1)  # fmt: skip


def keep_points(
    identity: Identity, points: Mapping[int, float], spread: float | None = None, *, depth: int = DEPTH
) -> None:
    """Later runs start from these seconds by width; `spread`: how noisy their readings were (`spread_of`)."""
    # What was measured at leisure (`specllm tune`) is not measured again, however noisy; what it did not come to, is.
    n_runs = N_RUNS if set(CALIBRATION_WIDTHS) <= set(points) else 1
    Calibration(points=points, spread=spread, depth=depth, n_runs=n_runs).keep(identity)


@dataclass(frozen=True, kw_only=True, slots=True)
class Kept:
    """Which of two calibrations later runs use, and why."""

    file: str  # of the model
    is_new: bool
    spread: float | None  # of the new readings; None where nothing was read twice
    earlier_spread: float | None  # None where there was no earlier calibration, or none whose noise is known


def keep_quieter_points(
    identity: Identity, points: Mapping[int, float], spread: float | None, *, is_forced: bool, depth: int = DEPTH
) -> Kept:
    """The new seconds by width are kept where they are at least as quiet as the earlier ones, or `is_forced`; else
    the earlier ones stay. Widths that only one of the two has are kept either way."""
    kept, earlier = _compare(identity, spread, is_forced=is_forced), Calibration.known(identity)
    if earlier is None:
        keep_points(identity, points, spread, depth=depth)
    elif kept.is_new:
        keep_points(identity, {**earlier.points, **points}, spread, depth=depth)
    else:
        keep_points(identity, {**points, **earlier.points}, kept.earlier_spread, depth=earlier.depth)
    return kept


def keep_quieter_draft_cost(identity: Identity, cost: DraftCost, spread: float | None, *, is_forced: bool) -> Kept:
    """The draft model's new cost is kept where it is at least as quiet as the earlier one, or `is_forced`."""
    kept = _compare(identity, spread, is_forced=is_forced)
    if kept.is_new:
        keep_draft_cost(identity, cost, spread)
    return kept


def _compare(identity: Identity, spread: float | None, *, is_forced: bool) -> Kept:
    earlier = known_spread(identity)
    is_new = is_forced or _is_quieter(spread, earlier)
    return Kept(file=identity.facts["file"], is_new=is_new, spread=spread, earlier_spread=earlier)


def _is_quieter(spread: float | None, earlier: float | None) -> bool:
    """Or as quiet, at the precision at which the noise is shown, whole percents: less tells nothing."""
    return earlier is None or (spread is not None and round(spread, 2) <= round(earlier, 2))


def known_spread(identity: Identity) -> float | None:
    """How noisy the readings of the kept calibration were; None where that is not known."""
    known = read(identity.file("calibration"))
    spread = known.get("spread") if known and known.get("identity") == identity.facts else None
    return spread if isinstance(spread, float) and 0 <= spread < math.inf else None


def forget_if_wrong(cost: CostModel, identity: Identity) -> None:
    """Drops a calibration that several answers in a row contradicted, `cost`'s last one among them."""
    is_contradicted, known = cost.is_contradicted(), Calibration.known(identity)
    if is_contradicted is None or known is None:
        return
    n = known.n_contradictions + 1 if is_contradicted else 0
    if n >= N_CONTRADICTIONS:
        identity.file("calibration").unlink(missing_ok=True)
    elif n != known.n_contradictions:
        replace(known, n_contradictions=n).keep(identity)


def known_draft_cost(identity: Identity) -> DraftCost | None:
    """What the draft model costs, where that has been measured."""
    known = read(identity.file("calibration"))
    if not known or known.get("identity") != identity.facts:
        return None
    token_s, prefill_token_s = known.get("token_s"), known.get("prefill_token_s")
    if not isinstance(token_s, float) or not isinstance(prefill_token_s, float):
        return None
    return DraftCost(token_s, prefill_token_s) if min(token_s, prefill_token_s) > 0 else None


def draft_cost(model: LlamaModel, identity: Identity, *, is_renewed: bool = False) -> DraftCost:
    """What the draft model costs: from the cache, else measured now and kept."""
    known = None if is_renewed else known_draft_cost(identity)
    if known:
        return known
    cost = measure_draft(model)
    keep_draft_cost(identity, cost)
    return cost


def keep_draft_cost(identity: Identity, cost: DraftCost, spread: float | None = None) -> None:
    """Later runs start from this cost of the draft model; `spread`: how noisy its readings were (`spread_of`)."""
    figures = {"token_s": cost.token_s, "prefill_token_s": cost.prefill_token_s, "spread": spread}
    keep(identity.file("calibration"), {"identity": identity.facts, **figures})


def known_points(identity: Identity) -> dict[int, float]:
    """The seconds by width that the cache holds; nothing where they are not whole."""
    known = Calibration.known(identity)
    return dict(known.points) if known else {}


def _is_count(value: object) -> bool:
    return isinstance(value, int) and value >= 0


def _is_positive(value: object) -> bool:
    return isinstance(value, float) and 0 < value < math.inf


def read(file: Path) -> dict[str, Any] | None:
    """The JSON object kept in `file`; None where there is none that can be used."""
    try:
        known = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return known if isinstance(known, dict) and known.get("schema") == SCHEMA else None


def keep(file: Path, figures: Mapping[str, Any]) -> None:
    """Writes `figures` whole or not at all; a cache that cannot be written is done without."""
    document = {"schema": SCHEMA, "measured_at": datetime.now(UTC).isoformat(timespec="seconds"), **figures}
    partial = None
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(
            "w", dir=file.parent, suffix=".partial", delete=False, encoding="utf-8"
        ) as out:
            partial = Path(out.name)
            json.dump(document, out)
        partial.replace(file)
    except OSError:
        if partial:
            partial.unlink(missing_ok=True)
