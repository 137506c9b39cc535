"""Log probabilities as a JSON document and a trace have them."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from specllm.decoding.logprobs import Ranking, TokenLogprobs
from specllm.decoding.protocols import Token

Piece = Callable[[Token], bytes]


def described(records: Sequence[TokenLogprobs], piece: Piece) -> list[dict[str, object]]:
    """One object for every committed token; `piece` gives what a token spells.

    `bytes` is that as numbers, as in OpenAI's API: of a character split over two tokens neither has a `text`.
    """
    return [
        {
            **_token(record.token, piece),
            "raw": _ranking(record.raw, piece),
            "sampled": _ranking(record.sampled, piece),
        }
        for record in records
    ]


def _ranking(ranking: Ranking, piece: Piece) -> dict[str, object]:
    best = [{**_token(token, piece), "logprob": _finite(logprob)} for token, logprob in ranking.best]
    return {"logprob": _finite(ranking.logprob), "best": best}


def _token(token: Token, piece: Piece) -> dict[str, object]:
    spelled = piece(token)
    return {"token": token, "text": spelled.decode("utf-8", "replace"), "bytes": list(spelled)}


def _finite(logprob: float) -> float | None:
    return logprob if math.isfinite(logprob) else None
