"""A trace played back without a model: the same text at the same pace, and the same figures."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from time import perf_counter, sleep

from specllm.app.trace.reader import Chunk, FinishReason, Trace
from specllm.decoding.metrics import Metrics
from specllm.decoding.protocols import Round

AT_ONCE = math.inf  # as a speed
_TICK_S = 0.1  # how often a wait tells how far it is


class Replay:
    """An answer that was given before; iterate for the text, at `speed` times the pace of then.

    Has what a view draws of an answer: `metrics`, `strategy`, `finish_reason`, `last_round`.
    """

    def __init__(self, trace: Trace, *, speed: float = 1.0) -> None:
        self.metrics = Metrics(n_prompt=trace.n_prompt, n_reused=trace.n_reused, n_prediction=trace.n_prediction)
        self.strategy = trace.strategy
        self.last_round: Round | None = None
        self.finish_reason: FinishReason | None = None
        self._trace = trace
        self._speed = speed
        self._text: list[str] = []
        self._logprobs: list[Mapping[str, object]] = []
        self.is_complete = False  # all of it was played: an interruption was the run's own

    def __iter__(self) -> Iterator[tuple[Chunk, ...]]:
        pace = _Pace(self._speed)
        for waited_s in pace.wait(self._trace.prefill_s):
            self.metrics.prefill_s = waited_s
            yield ()
        self.metrics.prefill_s = self._trace.prefill_s
        for round, shown, logprobs in self._trace.steps:
            for _ in pace.wait(round.draft_s + round.verify_s + round.rest_s):
                yield ()
            self.metrics.add(round)
            self.last_round = round
            self._text += [chunk.text for chunk in shown]
            self._logprobs += logprobs
            yield shown
        self.finish_reason = self._trace.finish_reason
        self.is_complete = True

    def finish(self) -> None:
        """Plays to the end."""
        for _ in self:
            pass

    def interrupt(self) -> None:
        self.finish_reason = self.finish_reason or "interrupted"

    def result(self) -> dict[str, object]:
        """For the `result` part of a JSON document; the same as the run's own."""
        result: dict[str, object] = {
            "text": "".join(self._text),
            "finish_reason": self.finish_reason,
            "strategy": self.strategy,
            "stats": self.metrics.as_dict(),
        }
        if self._logprobs:
            result["logprobs"] = self._logprobs
        return result


class _Pace:
    """Waits that add up: what is drawn in between costs no time."""

    def __init__(self, speed: float) -> None:
        self._speed = speed
        self._due = perf_counter()

    def wait(self, seconds: float) -> Iterator[float]:
        """Returns when `seconds` of the trace are over; on the way, yields how many of them are, now and then."""
        if self._speed == AT_ONCE:
            return
        began, self._due = self._due, self._due + seconds / self._speed
        while (left := self._due - perf_counter()) > _TICK_S:
            sleep(_TICK_S)
            yield max(0.0, min(seconds, (perf_counter() - began) * self._speed))
        sleep(max(0.0, left))
