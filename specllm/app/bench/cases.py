"""From prompts to what a benchmark runs: the tokens a model reads, and what its answer must look like."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Protocol

from specllm.app.bench.arms import Case
from specllm.app.prompt import tokenize_prompt
from specllm.app.prompts.reading import BenchPrompt
from specllm.config import GenerateConfig, StructureConfig
from specllm.errors import SpecllmError
from specllm.runtime.grammar import GrammarConstraint
from specllm.runtime.llama import Weights


class Wanted(Protocol):
    """What of a request decides about its cases."""

    @property
    def prompts(self) -> Sequence[BenchPrompt]: ...
    @property
    def is_forced(self) -> bool: ...
    @property
    def structure(self) -> StructureConfig | None: ...


def cases(
    request: Wanted, weights: Weights, config: GenerateConfig, failures: list[dict[str, object]]
) -> Iterator[Case]:
    """Every prompt as the model reads it; one that cannot be is a failure."""
    for prompt in request.prompts:
        try:
            tokens = tokenize_prompt(weights, prompt.prompt, replace(config, system=prompt.system))
            structure, schema = structure_of(request, prompt)
            constraint = GrammarConstraint(structure, weights.vocab) if structure else None
        except SpecllmError as error:
            failures.append(failure(prompt, error))
            continue
        expected, prediction = (
            None if text is None else tuple(weights.vocab.tokenize(text, adds_special=False, parses_special=False))
            for text in (prompt.expected if request.is_forced else None, prompt.prediction)
        )
        yield Case(prompt, tuple(tokens), expected, prediction or (), constraint, schema)


def structure_of(request: Wanted, prompt: BenchPrompt) -> tuple[StructureConfig | None, str | None]:
    """What the answer to a prompt must look like, and the JSON schema it is validated against; a prompt's own goes first."""
    structure = request.structure
    if prompt.schema is not None:
        structure = StructureConfig(kind="json_schema", text=prompt.schema)
    if structure is None or request.is_forced:
        return None, None
    return structure, structure.text if structure.kind == "json_schema" else None


def failure(prompt: BenchPrompt, error: SpecllmError) -> dict[str, object]:
    return {
        "prompt": prompt.id,
        "category": prompt.category,
        "type": type(error).__name__,
        "message": error.message,
        "hint": error.hint,
    }
