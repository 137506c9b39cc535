"""A faster draft model from a GGUF at hand: other number types, an output layer of the frequent tokens, both measured."""

from __future__ import annotations

import contextlib
import shutil
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from specllm.app.models import LocatedModel, add_model, locate
from specllm.app.offload import plan_gpu_layers
from specllm.app.store.files import files_below
from specllm.config import ContextConfig
from specllm.decoding.calibrate import measure_draft
from specllm.decoding.protocols import Token
from specllm.errors import AnswerIsNo, ConfigError
from specllm.models.disk import make_folder, move_whole, require_space, storage_errors
from specllm.models.entries import is_safe_name
from specllm.models.gguf_header import read_header
from specllm.models.registry import Registry
from specllm.models.store import models_dir
from specllm.runtime.llama import LlamaModel, Weights
from specllm.runtime.machine import physical_cores
from specllm.runtime.quantize import FILE_TYPES, quantize
from specllm.runtime.trimmed_vocab import open_context, read_trimmed
from specllm.runtime.vocab import Vocab

TYPES = ("q4_0", "iq4_nl")  # that may be faster than what the source has; the fastest is kept
KEPT_TOKENS = 65_536  # of a larger vocabulary, where nothing else is said: 98 to 99 % of what a 1.5B model wrote here
MIN_GAIN = 1.03  # a new file must be this much faster than the source to be worth its disk space
COUNTED_BYTES = 20_000_000  # of text below a path, at most
_ROWS = 64  # llama.cpp's fast kernels want the output layer in whole blocks of rows
_PLACE = ".make-draft-"  # what the folder of unfinished files is called, at its beginning
_PIECE = 1 << 20  # characters that are turned into tokens at a time
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
    kept, coverage = _kept_tokens(request, source.path, header.n_vocab)
    folder = make_folder(path.parent)
    _clear_left_over(folder)
    require_space(folder, 3 * header.file_bytes)
    with tempfile.TemporaryDirectory(dir=folder, prefix=_PLACE) as place, storage_errors(path):
        best, candidates = _requantized(request, source.path, Path(place), notice)
        n_kept = header.n_vocab
        if kept:
            notice(f"keeping the {len(kept):,} most frequent of {header.n_vocab:,} tokens")
            trimmed, one = _trimmed(request, best, kept, Path(place), candidates[-1].label)
            if one.token_s < candidates[-1].token_s:
                if best == source.path:  # which stands at the beginning
                    candidates.pop()
                best, n_kept = trimmed, len(kept)
                candidates.append(one)
            else:
                candidates.insert(-1, one)
        again = _measured(source.path, "source", request.threads)  # other work may have slowed down the first time
        candidates[0] = min(candidates[0], again, key=lambda one: one.token_s)
        made = MadeDraft(
            name=name, path=path, candidates=tuple(candidates), n_kept=n_kept, n_vocab=header.n_vocab,
            coverage=coverage if n_kept < header.n_vocab else None,
        )  # fmt: skip
        if made.gain < MIN_GAIN:
            raise AnswerIsNo(
                f"nothing gained: {candidates[0].token_s * 1e3:.1f} ms a token before, {candidates[-1].token_s * 1e3:.1f} after",
                f"{source.name} is as fast a draft as this machine makes of it; nothing was written",
            )
        try:
            move_whole(best, path)
            add_model(name, path)
        except BaseException:  # without its name it would only be in the way of the next attempt
            path.unlink(missing_ok=True)
            raise
    return made


def _clear_left_over(folder: Path) -> None:
    """What killed attempts left; one that is a day old is of nobody who still works."""
    for place in folder.glob(f"{_PLACE}*"):
        with contextlib.suppress(OSError):
            if time.time() - place.stat().st_mtime > 86_400:
                shutil.rmtree(place)


def _destination(request: DraftRequest, source: LocatedModel) -> tuple[str, Path]:
    """The name and the file of what is made; ConfigError where one of them is there already."""
    path = request.output.expanduser().absolute() if request.output else models_dir() / f"{source.name}-draft.gguf"
    if not is_safe_name(path.stem):
        raise ConfigError(
            f"{path.stem!r} cannot be a name", "name the file with -o: letters, digits and . _ + - before its .gguf"
        )
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
    with _opened(path, threads) as model:
        token_s = min(measure_draft(model).token_s for _ in range(3))
    return Candidate(label=label, n_bytes=read_header(path).weight_bytes, token_s=token_s)


@contextlib.contextmanager
def _opened(path: Path, threads: int) -> Iterator[LlamaModel]:
    context = ContextConfig(n_ctx=_N_CTX, n_outputs_max=1, threads=threads)
    weights = Weights(path, n_gpu_layers=plan_gpu_layers(read_header(path), "auto", context))
    try:
        with contextlib.closing(open_context(weights, context)) as model:
            yield model
    finally:
        weights.close()


# ---- the vocabulary ---------------------------------------------------------------------------------------------------


def _kept_tokens(request: DraftRequest, source: Path, n_vocab: int) -> tuple[list[Token], float | None]:
    """Which tokens to keep (none: all of them), and their share of the counted text where there is any."""
    n_top = KEPT_TOKENS if request.vocab_top is None else request.vocab_top
    if not 0 < n_top < n_vocab:
        return [], None
    weights = Weights(source, is_vocab_only=True)
    try:
        counts = count_tokens(weights.vocab, texts_below(request.vocab_from))
        kept = frequent_tokens(weights.vocab, counts, n_top)
    finally:
        weights.close()
    coverage = sum(counts[token] for token in kept) / counts.total() if counts else None
    return (kept, coverage) if len(kept) < n_vocab else ([], None)


def _trimmed(
    request: DraftRequest, whole: Path, kept: Sequence[Token], place: Path, label: str
) -> tuple[Path, Candidate]:
    """The model at `whole` with its output rows of the kept tokens only, and what it costs."""
    from specllm.runtime.trim_vocab import write_trimmed

    path = place / "trimmed.gguf"
    write_trimmed(whole, path, kept)
    _require_same(whole, path, kept, request.threads)
    return path, _measured(path, f"{label}, {len(kept):,} tokens", request.threads)


def _require_same(whole: Path, trimmed: Path, kept: Sequence[Token], threads: int) -> None:
    """Raises ConfigError where a model computes something else when embeddings are fed to it in place of tokens."""
    from specllm.runtime.trim_vocab import says_the_same

    with _opened(whole, threads) as one, _opened(trimmed, threads) as other:
        if not says_the_same(one, other, kept):
            raise ConfigError(
                f"{whole.name} cannot say less: it needs the tokens themselves", "keep all of them: --vocab-top 0"
            )


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
    """The text files among and below the paths, in order and in pieces, COUNTED_BYTES characters at most of each.

    Files that git would ignore are left out. Raises ConfigError for a path with no text.
    """
    for path in paths:
        left = COUNTED_BYTES
        for file in files_below(path):
            if (file != path and file.suffix not in _TEXT_SUFFIXES) or not file.is_file():
                continue
            with contextlib.suppress(OSError, UnicodeDecodeError), file.open(encoding="utf-8") as opened:
                while text := opened.read(min(left, _PIECE)):
                    left -= len(text)
                    yield text
        if left == COUNTED_BYTES:
            what = "no text in" if path.exists() else "no"
            raise ConfigError(f"there is {what} {path}", "give files and folders with text like what you will generate")
