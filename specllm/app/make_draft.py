"""A faster draft model from a GGUF at hand: other number types, an output layer of the frequent tokens, both measured."""

from __future__ import annotations

import contextlib
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from specllm.app.models import LocatedModel, add_model, locate
from specllm.app.offload import plan_gpu_layers
from specllm.config import ContextConfig
from specllm.decoding.calibrate import measure_draft
from specllm.decoding.protocols import Token
from specllm.errors import AnswerIsNo, ConfigError
from specllm.models.disk import make_folder, require_space, storage_errors
from specllm.models.entries import is_safe_name
from specllm.models.gguf_header import read_header
from specllm.models.registry import Registry
from specllm.models.store import models_dir
from specllm.runtime.llama import LlamaModel, Weights
from specllm.runtime.machine import physical_cores
from specllm.runtime.quantize import FILE_TYPES, quantize
from specllm.runtime.trimmed_vocab import TrimmedModel, read_trimmed
from specllm.runtime.vocab import Vocab

TYPES = ("q4_0", "iq4_nl")  # that may be faster than what the source has; the fastest is kept
KEPT_TOKENS = 65_536  # of a larger vocabulary, where nothing else is said: 98 to 99 % of what a 1.5B model wrote here
MIN_GAIN = 1.03  # a new file must be this much faster than the source to be worth its disk space
COUNTED_BYTES = 20_000_000  # of text below a path, at most
_ROWS = 64  # llama.cpp's fast kernels want the output layer in whole blocks of rows
_N_CTX = 512  # of the context in which is measured
_TEXT_SUFFIXES = {".py", ".md", ".txt", ".rst", ".c", ".h", ".cpp", ".js", ".ts", ".go", ".rs", ".java", ".json", ".toml",
                  ".yaml", ".yml", ".html", ".css", ".sh", ".sql"}  # fmt: skip

Notice = Callable[[str], None]


@dataclass(frozen=True, kw_only=True, slots=True)
class DraftRequest:
    """What to make of which model."""

    source: str | None  # a model by name or path
    output: Path | None = None  # None: beside the other models, under a name of its own
    types: Sequence[str] = TYPES  # empty: the source's own
    vocab_top: int | None = None  # tokens kept; 0: all of them; None: KEPT_TOKENS where that is a part
    vocab_from: Sequence[Path] = ()  # files and folders whose tokens are kept before others
    threads: int = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class Candidate:
    """One file and what it costs here."""

    label: str
    n_bytes: int
    token_s: float  # a forward of width 1


@dataclass(frozen=True, kw_only=True, slots=True)
class MadeDraft:
    """What was tried, what was kept, and what it is called."""

    name: str
    path: Path
    candidates: tuple[Candidate, ...]  # the source first, the kept one last
    n_kept: int  # tokens of the vocabulary that it can say
    n_vocab: int
    coverage: float | None  # of the counted text's tokens, how many are kept; None where nothing was counted

    @property
    def gain(self) -> float:
        return self.candidates[0].token_s / self.candidates[-1].token_s

    def as_result(self) -> dict[str, object]:
        return {
            "name": self.name, "path": str(self.path), "n_kept": self.n_kept, "n_vocab": self.n_vocab,
            "coverage": self.coverage, "gain": self.gain, "candidates": [asdict(one) for one in self.candidates],
        }  # fmt: skip


def types_of(name: str) -> tuple[str, ...]:
    """What --type means; ConfigError for what is none."""
    named: dict[str, tuple[str, ...]] = {"auto": TYPES, "same": (), **{known: (known,) for known in FILE_TYPES}}
    if name not in named:
        raise ConfigError(f"there is no type {name}", f"take one of {', '.join(named)}")
    return named[name]


def make_draft(request: DraftRequest, notice: Notice) -> MadeDraft:
    """Writes the fastest draft model that can be made of the source and gives it a name.

    Raises AnswerIsNo where nothing is faster than the source; then nothing is written.
    """
    source = locate(request.source)
    header = read_header(source.path)
    if header.n_parts > 1:
        raise ConfigError(
            f"{source.path.name} is one of {header.n_parts} parts", "merge them first: llama-gguf-split --merge"
        )
    if read_trimmed(source.path):
        raise ConfigError(
            f"{source.path.name} has a trimmed vocabulary already", "make a draft of the model it was made of"
        )
    name, path = _destination(request, source)
    folder = make_folder(path.parent)
    require_space(folder, 3 * header.file_bytes)
    with tempfile.TemporaryDirectory(dir=folder, prefix=".make-draft-") as place, storage_errors(path):
        best, candidates = _requantized(request, source.path, Path(place), notice)
        n_kept, coverage = header.n_vocab, None
        if n_top := _n_top(request, header.n_vocab):
            notice(f"keeping the {n_top:,} most frequent of {header.n_vocab:,} tokens")
            best, coverage, n_kept = _trimmed(request, best, n_top, Path(place))
            candidates.append(_measured(best, f"{candidates[-1].label}, {n_kept:,} tokens", request.threads))
        made = MadeDraft(
            name=name, path=path, candidates=tuple(candidates), n_kept=n_kept, n_vocab=header.n_vocab, coverage=coverage
        )
        if made.gain < MIN_GAIN:
            raise AnswerIsNo(
                f"nothing gained: {candidates[0].token_s * 1e3:.1f} ms a token before, {candidates[-1].token_s * 1e3:.1f} after",
                f"{source.name} is as fast a draft as this machine makes of it; nothing was written",
            )
        best.replace(path)
    add_model(name, path)
    return made


def _destination(request: DraftRequest, source: LocatedModel) -> tuple[str, Path]:
    """The name and the file of what is made; ConfigError where one of them is there already."""
    path = request.output.expanduser().absolute() if request.output else models_dir() / f"{source.name}-draft.gguf"
    if not is_safe_name(path.stem):
        raise ConfigError(f"{path.stem!r} cannot be a name", "use letters, digits and . _ + - only")
    registry = Registry.load()
    if path.exists() or path.stem in registry.models or path.stem in registry.pairs:
        raise ConfigError(
            f"there is a {path.stem} already", "choose another file with -o, or remove that one and its entry"
        )
    return path.stem, path


def _requantized(request: DraftRequest, source: Path, place: Path, notice: Notice) -> tuple[Path, list[Candidate]]:
    """The fastest of the source and its types, and what was measured: the source first, the fastest last."""
    tried = {source: _measured(source, "source", request.threads)}
    for file_type in request.types:
        notice(f"quantizing to {file_type}")
        path = place / f"{file_type}.gguf"
        quantize(source, path, file_type, threads=request.threads or physical_cores())
        tried[path] = _measured(path, file_type, request.threads)
    ranked = sorted(tried, key=lambda path: -tried[path].token_s)
    order = [source, *(path for path in ranked if path != source)]
    if ranked[-1] == source:
        order.append(source)
    return order[-1], [tried[path] for path in order]


def _measured(path: Path, label: str, threads: int) -> Candidate:
    context = ContextConfig(n_ctx=_N_CTX, n_outputs_max=1, threads=threads)
    weights = Weights(path, n_gpu_layers=plan_gpu_layers(read_header(path), "auto", context))
    try:
        trimmed = read_trimmed(path)
        model = TrimmedModel(weights, context, trimmed) if trimmed else LlamaModel(weights, context)
        with contextlib.closing(model):
            token_s = min(measure_draft(model).token_s for _ in range(3))
    finally:
        weights.close()
    return Candidate(label=label, n_bytes=read_header(path).weight_bytes, token_s=token_s)


# ---- the vocabulary ---------------------------------------------------------------------------------------------------


def _n_top(request: DraftRequest, n_vocab: int) -> int:
    """How many tokens to keep; 0: all of them."""
    n_top = KEPT_TOKENS if request.vocab_top is None else request.vocab_top
    return n_top if n_top < n_vocab else 0


def _trimmed(request: DraftRequest, source: Path, n_top: int, place: Path) -> tuple[Path, float | None, int]:
    """The source with its output rows of the frequent tokens, the share of counted text they cover, and their number."""
    from specllm.runtime.trim_vocab import write_trimmed

    weights = Weights(source, is_vocab_only=True)
    try:
        counts = count_tokens(weights.vocab, texts_below(request.vocab_from))
        kept = frequent_tokens(weights.vocab, counts, n_top)
    finally:
        weights.close()
    path = place / "trimmed.gguf"
    write_trimmed(source, path, kept)
    coverage = sum(counts[token] for token in kept) / counts.total() if counts else None
    return path, coverage, len(kept)


def frequent_tokens(vocab: Vocab, counts: Counter[Token], n: int) -> list[Token]:
    """At least `n` tokens, in whole blocks of rows: everything special, every single byte, the most frequent, and of equally
    frequent ones the lower ids.

    Ids follow the order in which a vocabulary was built, the merges of BPE: that of frequency in the text it was made from.
    """
    always = {token for token in range(vocab.n_tokens) if vocab.is_special(token) or len(vocab.piece(token)) == 1}
    ranked = sorted(range(vocab.n_tokens), key=lambda token: (token not in always, -counts[token], token))
    return sorted(ranked[: -(-max(n, len(always)) // _ROWS) * _ROWS])


def count_tokens(vocab: Vocab, texts: Iterable[str]) -> Counter[Token]:
    counts: Counter[Token] = Counter()
    for text in texts:
        counts.update(vocab.tokenize(text, adds_special=False, parses_special=False))
    return counts


def texts_below(paths: Sequence[Path]) -> Iterator[str]:
    """The text files among and below the paths, in order, COUNTED_BYTES at most of each; ConfigError for what is not there."""
    for path in paths:
        if not path.exists():
            raise ConfigError(f"there is no {path}", "give files and folders with text like what you will generate")
        left = COUNTED_BYTES
        for file in [path] if path.is_file() else sorted(path.rglob("*")):
            if file != path and (file.suffix not in _TEXT_SUFFIXES or "site-packages" in file.parts):
                continue
            with contextlib.suppress(OSError, UnicodeDecodeError):
                text = file.read_text(encoding="utf-8")
                yield text
                left -= len(text)
            if left <= 0:
                break
