"""What the tests of benchmarks share: a prompt, a machine of one thread, and a progress that nobody watches."""

from __future__ import annotations

from collections.abc import Callable

from specllm.app.bench.use_case import BenchRequest
from specllm.app.prompts.reading import BenchPrompt
from specllm.config import ContextConfig
from tests.app.sessions import TEXT

ONE_THREAD = ContextConfig(threads=1, kv_type="f32", flash_attention="off")

MakeRequest = Callable[..., BenchRequest]


class Silent:
    """Keeps the order of the answers."""

    def __init__(self) -> None:
        self.steps: list[str] = []

    def notice(self, text: str) -> None:
        pass

    def step(self, n_done: int, n_answers: int, what: str) -> None:
        assert 0 <= n_done <= n_answers
        self.steps.append(what)


def prompt(name: str = "a", text: str = TEXT, **values) -> BenchPrompt:
    return BenchPrompt(id=name, category=values.pop("category", "code"), prompt=text, **values)
