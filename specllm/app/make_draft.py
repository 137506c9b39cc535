"""A faster draft model from a GGUF at hand: other number types, an output layer of the frequent tokens, both measured."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass
from pathlib import Path

from specllm.app.remade import MIN_GAIN, TYPES, Remade, opened
from specllm.app.store.files import files_below
from specllm.config import ContextConfig
from specllm.decoding.calibrate import measure_draft
from specllm.decoding.protocols import Token
from specllm.errors import AnswerIsNo, ConfigError
from specllm.models.gguf_header import read_header
from specllm.runtime.interrupt import abort_on_interrupt
from specllm.runtime.llama import LlamaModel, Weights
from specllm.runtime.machine import physical_cores
from specllm.runtime.quantize import quantize
from specllm.runtime.vocab import Vocab

KEPT_TOKENS = 65_536  # of a larger vocabulary, where nothing else is said: 98 to 99 % of what a 1.5B model wrote here
COUNTED_BYTES = 20_000_000  # of text below a path, at most
_ROWS = 64  # llama.cpp's fast kernels want the output layer in whole blocks of rows
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


@abort_on_interrupt()
def make_draft(request: DraftRequest, notice: Notice) -> MadeDraft:
    """Writes the fastest draft model that can be made of the source and gives it a name.

    Raises AnswerIsNo where nothing is faster than the source; then nothing is written.
    """
    remade = Remade.of(request.source, request.output, "draft")
    source, header = remade.source, remade.header
    kept, coverage = _kept_tokens(request, source.path, header.n_vocab)
    with remade.workplace(notice) as place:
        best, candidates = _requantized(request, source.path, place, notice)
        n_kept = header.n_vocab
        if kept:
            notice(f"keeping the {len(kept):,} most frequent of {header.n_vocab:,} tokens")
            trimmed, one = _trimmed(request, best, kept, place, candidates[-1].label)
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
            name=remade.name, path=remade.path, candidates=tuple(candidates), n_kept=n_kept, n_vocab=header.n_vocab,
            coverage=coverage if n_kept < header.n_vocab else None,
        )  # fmt: skip
        if made.gain < MIN_GAIN:
            raise AnswerIsNo(
                f"nothing gained: {candidates[0].token_s * 1e3:.1f} ms a token before, {candidates[-1].token_s * 1e3:.1f} after",
                f"{source.name} is as fast a draft as this machine makes of it; nothing was written",
            )
        remade.keep(best)
    return made


def _requantized(request: DraftRequest, source: Path, place: Path, notice: Notice) -> tuple[Path, list[Candidate]]:
    """The fastest of the source and its types, and what was measured: the source first, the fastest last."""
    tried = {source: _measured(source, "source", request.threads)}
    for file_type in request.types:
        notice(f"quantizing to {file_type}")
        path = place / f"{file_type}.gguf"
        quantize(source, path, file_type, has_small_output=True, threads=request.threads or physical_cores())
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


def _opened(path: Path, threads: int) -> AbstractContextManager[LlamaModel]:
    return opened(path, ContextConfig(n_ctx=_N_CTX, n_outputs_max=1, threads=threads))


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
