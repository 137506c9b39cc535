"""What the tests of sessions and generations share: the drafters they go through, and how an answer is run to its end."""

from __future__ import annotations

from collections.abc import Callable

from specllm.app.generation import Generation, Session
from specllm.config import GenerateConfig, SamplingConfig
from specllm.decoding.protocols import Round
from specllm.decoding.sampling import KeyedSampler

ARCHITECTURES = ["llama", "mamba"]
DRAFTERS = ["none", "lookup", "store", "wrong model", "close model", "trimmed model", "target itself", "auto"]
GREEDY = SamplingConfig(temperature=0.0)
TEXT = "def it(self):\n    return self.the(it)\n\n\ndef other(self):\n    return self.the(other)\n\n\ndef "

MakeSession = Callable[..., Session]


def rounds_of(generation: Generation) -> list[Round]:
    """Generates to the end; the rounds it took."""
    rounds: list[Round] = []
    for _ in generation:
        if generation.metrics.n_rounds > len(rounds):
            rounds.append(generation.last_round)
    return rounds


def run(
    session: Session, prompt: list[int], sampling: SamplingConfig = GREEDY, k: int = 0, n: int = 40, **config
) -> Generation:
    generation = session.generate(prompt, KeyedSampler(sampling), k, GenerateConfig(max_tokens=n, **config))
    rounds_of(generation)
    return generation
