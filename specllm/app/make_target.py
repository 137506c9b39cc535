"""A target that checks drafts faster, from a GGUF at hand: the same weights in numbers that this machine has fast kernels for.

What a draft can bring is decided by what a block of a few tokens costs beside a single one, and that by the kernels of the
weights' type: on a CPU llama.cpp has fast ones for blocks of Q4_0, and slower ones for Q4_K and Q6_K.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from specllm.app.remade import MIN_GAIN, TYPES, Remade, opened
from specllm.config import ContextConfig
from specllm.decoding.calibrate import DEPTH, is_plausible, measure_target
from specllm.decoding.cost import MAX_WIDTH
from specllm.errors import AnswerIsNo, ConfigError
from specllm.models.gguf_header import read_header
from specllm.runtime.interrupt import abort_on_interrupt
from specllm.runtime.machine import physical_cores
from specllm.runtime.quantize import quantize

WIDTHS = (1, 4, 16)  # that are shown
CHANCE = 0.8  # of a drafted token, by which candidates are compared
_BUDGET_S = 4.0  # of one measurement
_TRIES = 3  # to measure: a width keeps its least seconds
_FEW_BITS = 1.5  # times the size of what is made of it that a source of more bits has

Notice = Callable[[str], None]


@dataclass(frozen=True, kw_only=True, slots=True)
class TargetRequest:
    """What to make of which model."""

    source: str | None  # a model by name or path
    output: Path | None = None  # None: beside the other models, under a name of its own
    types: Sequence[str] = TYPES
    threads: int = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class Candidate:
    """One file and what its forwards cost here."""

    label: str
    n_bytes: int
    seconds: Mapping[int, float]  # V by width

    @property
    def plain_tok_per_s(self) -> float:
        return 1.0 / self.seconds[1]

    @property
    def drafted_tok_per_s(self) -> float:
        """At the best width, with drafts that cost nothing and whose tokens are right with chance CHANCE."""
        return max((1 - CHANCE**width) / (1 - CHANCE) / seconds for width, seconds in self.seconds.items())

    def as_result(self) -> dict[str, object]:
        return {
            "label": self.label, "n_bytes": self.n_bytes, "plain_tok_per_s": self.plain_tok_per_s,
            "drafted_tok_per_s": self.drafted_tok_per_s,
            "verify_s_by_width": {str(width): self.seconds[width] for width in WIDTHS if width in self.seconds},
        }  # fmt: skip


@dataclass(frozen=True, kw_only=True, slots=True)
class MadeTarget:
    """What was tried, what was kept, and what it is called."""

    name: str
    path: Path
    candidates: tuple[Candidate, ...]  # the source first, the kept one last

    @property
    def gain(self) -> float:
        """In tokens per second with such drafts."""
        return self.candidates[-1].drafted_tok_per_s / self.candidates[0].drafted_tok_per_s

    @property
    def is_quantized_twice(self) -> bool:
        """Whether the source had few bits already, so that rounding errors add up."""
        return self.candidates[0].n_bytes < _FEW_BITS * self.candidates[-1].n_bytes

    def as_result(self) -> dict[str, object]:
        return {
            "name": self.name, "path": str(self.path), "gain": self.gain, "chance": CHANCE,
            "is_quantized_twice": self.is_quantized_twice,
            "candidates": [one.as_result() for one in self.candidates],
        }  # fmt: skip


@abort_on_interrupt()
def make_target(request: TargetRequest, notice: Notice) -> MadeTarget:
    """Writes the target that checks drafts fastest and gives it a name; its texts are its own, as those of any other file.

    Raises ConfigError without a type to try, AnswerIsNo where nothing is faster than the source; then nothing is written.
    """
    if not request.types:
        raise ConfigError("a target in the source's own numbers is the source", "take another --type")
    remade = Remade.of(request.source, request.output, "target")
    threads = request.threads or physical_cores()
    with remade.workplace(notice) as place:
        tried = {remade.source.path: _measured(remade.source.path, "source", threads)}
        for file_type in request.types:
            notice(f"quantizing to {file_type}")
            path = place / f"{file_type}.gguf"
            quantize(remade.source.path, path, file_type, has_small_output=False, threads=threads)
            tried[path] = _measured(path, file_type, threads)
        first, *others = tried
        # Other work may have slowed down the first time.
        again = _measured(first, "source", threads)
        source = max(tried[first], again, key=lambda one: one.drafted_tok_per_s)
        ranked = sorted(others, key=lambda path: tried[path].drafted_tok_per_s)
        made = MadeTarget(name=remade.name, path=remade.path, candidates=(source, *(tried[path] for path in ranked)))
        if made.gain < MIN_GAIN:
            raise AnswerIsNo(
                f"nothing gained: {source.drafted_tok_per_s:.1f} tokens/s with drafts before, "
                f"{made.candidates[-1].drafted_tok_per_s:.1f} after",
                f"{remade.source.name} checks drafts as fast as this machine can; nothing was written",
            )
        remade.keep(ranked[-1])
    return made


def _measured(path: Path, label: str, threads: int) -> Candidate:
    points: dict[int, float] = {}
    with opened(path, ContextConfig(n_ctx=DEPTH + MAX_WIDTH, n_outputs_max=MAX_WIDTH, threads=threads)) as model:
        for _ in range(_TRIES):
            again = measure_target(model, budget_s=_BUDGET_S)
            points |= {width: min(seconds, points.get(width, seconds)) for width, seconds in again.items()}
            if is_plausible(points):
                break
        else:
            raise AnswerIsNo(
                "nothing can be compared: other work keeps this machine busy", "stop that, and make the target again"
            )
    return Candidate(label=label, n_bytes=read_header(path).weight_bytes, seconds=points)
