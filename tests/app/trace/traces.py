"""What the tests of traces share: runs that are written down, and how."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hypothesis import strategies as st

from specllm.app.text import TextStream, sources
from specllm.app.trace.writer import TraceWriter
from specllm.decoding.metrics import Metrics
from specllm.decoding.protocols import FORCED, Draft, Round

# A vocabulary in which characters are split, bytes are no text, and a token means nothing to a reader.
PIECES = (
    b"a",
    b"\n",
    "é".encode()[:1],
    "é".encode()[1:],
    "🌊".encode()[:3],
    "🌊".encode()[3:],
    b"\xff",
    b"",
    b"\x1b[",
    b"END",
)
STOP = "END"
EOG = 7


class Pieces:
    def piece(self, token: int) -> bytes:
        return PIECES[token]


def text_of(token: int) -> str:
    return PIECES[token].decode(errors="replace")


tokens = st.integers(0, len(PIECES) - 1)
seconds = st.floats(0, 1e3, allow_nan=False)


@st.composite
def rounds(draw: st.DrawFn) -> Round:
    accepted = draw(st.lists(tokens, max_size=4))
    rejected = draw(st.lists(tokens, max_size=3))
    draft = (*accepted, *rejected)
    evidence = tuple(draw(st.sampled_from([FORCED, 0, 3])) for _ in draft) if draw(st.booleans()) else ()
    source = draw(st.sampled_from(["lookup", "model", "reference"])) if draft else "none"
    took_s = (draw(seconds), draw(seconds), draw(seconds))
    plain_s = draw(st.none() | st.floats(1e-6, 1e3))
    return Round((*accepted, draw(tokens)), Draft(draft, source, evidence), *took_s, plain_s=plain_s)


runs = st.lists(rounds(), min_size=1, max_size=8)


def logprobs(round: Round) -> list[dict[str, Any]]:
    """Records as `logprobs.described` makes them."""
    best = [{"token": 3, "text": "\ufffd", "bytes": [0xF0], "logprob": -0.25}]
    return [
        {"token": token, "text": text_of(token), "raw": {"logprob": -1.5 * token, "best": best},
         "sampled": {"logprob": None, "best": []}}
        for token in round.tokens
    ]  # fmt: skip


def write(
    path: Path, played: list[Round], metrics: Metrics, *, is_ended: bool = True, has_logprobs: bool = False
) -> str:
    """Writes the trace of a run that went like that, as a generation does; the text it showed."""
    stream, shown = TextStream(Pieces(), [STOP]), []
    with TraceWriter(path, text_of) as writer:
        for round in played:
            for token in round.tokens:
                stream.push(token)
            metrics.add(round)
            writer.write(round, metrics, logprobs(round) if has_logprobs else ())
            chunks = stream.settle(sources(round))
            writer.show(chunks)
            shown += chunks
        chunks = stream.finish()
        writer.show(chunks)
        shown += chunks
        if is_ended:
            writer.end(finish_reason="length", strategy="lookup k=4")
    return "".join(chunk.text for chunk in shown)
