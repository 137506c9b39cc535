"""How a model is asked for an edit, in named variants, so that they can be measured against each other.

The file comes first and the instruction last: several instructions for one file share a prefix, and small models that read
the instruction first tend to copy the file unchanged.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

from specllm.app.code_block import code_block, fence_for, language_of, longest_run, opening
from specllm.errors import ConfigError

SURROUNDING_LINES, SURROUNDING_CHARACTERS = 40, 8000  # shown on each side of a region, at most
_FENCED_LANGUAGES = ("markdown", "mdx", "rst", "qmd", "rmd")  # their new text may well hold blocks of its own


@dataclass(frozen=True, slots=True)
class Variant:
    """Templates for `str.format` with `path, block, instruction, fenced`, for a region also `around, first, last, n_lines`.

    `fenced` says how the block is to be fenced where three backticks are not enough.
    """

    file: str
    region: str
    answer_start: str = ""  # with `opening`, the block's first line; empty: the model begins its answer itself


_FILE = "This is the file {path}:\n\n{block}\n\n"
_REGION = (
    "These are lines {around} of {n_lines} of the file {path}:\n\n{surroundings}\n\n"
    "Of them, lines {first} to {last} are to be edited:\n\n{block}\n\n"
)
_CHANGES = "First name in one sentence what has to change. Then give "

VARIANTS = {
    "plain": Variant(
        file="File {path}:\n{block}\n\nEdit the file: {instruction}\n\nReturn the whole edited file in one code block{fenced}.",
        region=_REGION
        + "Edit these lines: {instruction}\n\nReturn lines {first} to {last}, edited, in one code block{fenced}.",
    ),
    "fence": Variant(
        file=_FILE
        + "{instruction}\n\nReply with the complete edited file in one code block{fenced}, and nothing else.",
        region=_REGION + "{instruction}\n\nReply with the edited lines {first} to {last} alone, in one code block{fenced}.",
        answer_start="{opening}",
    ),
    "careful": Variant(
        file=_FILE + "Edit it as follows: {instruction}\n\nKeep everything else exactly as it is, comments included. Reply with "
        "the complete edited file in one code block{fenced}, and nothing else.",
        region=_REGION + "Edit them as follows: {instruction}\n\nKeep everything else exactly as it is, indentation included. "
        "Reply with the edited lines {first} to {last} alone, in one code block{fenced}.",
        answer_start="{opening}",
    ),
    "changes-first": Variant(
        file=_FILE + "{instruction}\n\n" + _CHANGES + "the complete edited file in one code block{fenced}.",
        region=_REGION + "{instruction}\n\n" + _CHANGES + "the edited lines {first} to {last} in one code block{fenced}.",
        answer_start="What has to change:",
    ),
}  # fmt: skip
DEFAULT_VARIANT = "careful"


@dataclass(frozen=True, slots=True)
class Region:
    """Lines `first` up to `last` of a file, counted from 0, without the last."""

    first: int
    last: int


@dataclass(frozen=True, slots=True)
class EditPrompt:
    """What is asked, and what is known about the reply before there is one."""

    prompt: str
    prediction: str  # the block as it stands in the prompt
    answer_start: str
    fence: str  # of the block
    stop: tuple[str, ...]  # what can only follow the end of the block

    def reply(self, text: str, *, is_stopped: bool) -> str:
        """The whole reply, with what was given to the model and what it was stopped at."""
        return self.answer_start + text + (self.stop[0] if is_stopped else "")


def variant_named(name: str) -> Variant:
    """Raises ConfigError for a name that is none."""
    if name not in VARIANTS:
        raise ConfigError(f"no prompt variant {name!r}", f"use one of {', '.join(VARIANTS)}")
    return VARIANTS[name]


def edit_prompt(
    variant: Variant,
    path: str,
    lines: Sequence[str],
    instruction: str,
    *,
    region: Region | None = None,
    contexts: Sequence[tuple[str, str]] = (),
) -> EditPrompt:
    """Asks for the whole new file, or for the new text of a region of it; `contexts` are files (path, text) to read first."""
    instruction = instruction.strip()
    edited = _joined(lines[region.first : region.last] if region else lines)
    least = 4 if language_of(path) in _FENCED_LANGUAGES else 3
    fence = fence_for(edited, least=max(least, longest_run(instruction) + 1))
    block = code_block(path, edited, fence)
    values = {"path": path, "block": block, "instruction": instruction}
    values["fenced"] = f" fenced with {fence}" if len(fence) > 3 else ""
    template = variant.file
    if region:
        template = variant.region
        start = region.first - _n_shown(lines[max(0, region.first - SURROUNDING_LINES) : region.first][::-1])
        end = region.last + _n_shown(lines[region.last : region.last + SURROUNDING_LINES])
        values |= {"first": str(region.first + 1), "last": str(region.last), "n_lines": str(len(lines))}
        values |= {"around": f"{start + 1} to {end}", "surroundings": code_block(path, _joined(lines[start:end]))}
    shown = [f"This is the file {name}, for reference:\n\n{code_block(name, text)}\n\n" for name, text in contexts]
    answer_start = variant.answer_start.format(opening=opening(path, fence))
    # With the newline behind it: a fence that opens a block inside the new text goes on with a language.
    stop = (f"\n{fence}\n",) if answer_start.startswith(fence) else ()
    return EditPrompt("".join(shown) + template.format(**values), block, answer_start, fence, stop)


def _n_shown(lines: Sequence[str]) -> int:
    """How many of the lines, the nearest first, fit beside a region."""
    return sum(n <= SURROUNDING_CHARACTERS for n in accumulate(map(len, lines)))


def _joined(lines: Sequence[str]) -> str:
    return "".join(f"{line}\n" for line in lines)
