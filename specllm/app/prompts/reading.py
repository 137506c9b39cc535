"""The prompts a benchmark runs: our own mix, or a user's JSONL file in one of the formats people have lying around.

Reads files and builds texts. Knows nothing of models: which chat template is used and what is measured is not decided here.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from importlib import resources
from itertools import zip_longest
from pathlib import Path

from specllm.app.code_block import code_block, fence_for
from specllm.config import check
from specllm.errors import ConfigError

PACKAGED_MIX = "mix.jsonl"
UNNAMED_CATEGORY = "other"  # of a prompt row without a category
SCHEMA_CATEGORY = "json"  # of one with a schema
UNNAMED_PATH = "solution.py"  # HumanEvalFix has functions, not files

SHAPES = (
    '{"prompt": ..} [with "id", "category", "system", "expected", "prediction", "schema"], '
    'Spec-Bench {"question_id", "category", "turns": [..]}, '
    'HumanEval {"task_id", "prompt"}, '
    'edits {"before", "instruction"} [with "id", "path", "after"]'
)
_ONE_PER_LINE = "put one JSON object on each line; jq -c '.[]' FILE makes such lines from a JSON list"


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchPrompt:
    id: str  # unique in its list
    category: str
    prompt: str
    expected: str | None = None  # one right answer, not the only one: to force a known output, never to score
    prediction: str | None = None  # what much of the answer may be a copy of; for an edit the old file, in its block
    system: str | None = None
    schema: str | None = None  # a JSON schema that the answer must be valid against, as JSON


def read_prompts(path: Path | None) -> list[BenchPrompt]:
    """Every prompt of the file in its order, of our packaged mix for None; at least one.

    Raises ConfigError with file and line for anything that is not one of `SHAPES`.
    """
    if path is None:
        name, data = PACKAGED_MIX, (resources.files("specllm.app.prompts") / PACKAGED_MIX).read_bytes()
    else:
        name, data = str(path), _read(path)
    prompts = [_prompt(row) for row in _rows(name, data)]
    check(bool(prompts), f"{name}: there are no prompts in it", f"each line is one of: {SHAPES}")
    return _with_unique_ids(prompts)


def choose(prompts: Sequence[BenchPrompt], limit: int | None) -> list[BenchPrompt]:
    """At most `limit` prompts (None: all), one of each category in turn, categories in order of first appearance."""
    check(
        limit is None or limit >= 1, f"the limit is {limit} prompts", "use a positive number, or leave it out for all"
    )
    by_category: dict[str, list[BenchPrompt]] = {}
    for prompt in prompts:
        by_category.setdefault(prompt.category, []).append(prompt)
    turns = zip_longest(*by_category.values())
    return [prompt for turn in turns for prompt in turn if prompt is not None][:limit]


def edit_prompt(path: str, before: str, instruction: str) -> str:
    """Asks for the whole edited file in one code block.

    The file comes first, so that several instructions for one file share a prefix, and the instruction is what the model
    read last.
    """
    fence = fence_for(before)
    own_fence = f" fenced with {fence}" if len(fence) > 3 else ""
    return (
        f"This is the file {path}:\n\n{code_block(path, before)}\n\n{instruction.strip()}\n\n"
        f"Reply with the complete edited file in one code block{own_fence}, and nothing else."
    )


@dataclass(frozen=True, slots=True)
class _Row:
    """One JSON object and where it stands, for the errors."""

    name: str
    line: int
    values: dict[str, object]

    def has(self, key: str) -> bool:
        return self.values.get(key) is not None

    def error(self, problem: str, hint: str) -> ConfigError:
        return ConfigError(f"{self.name}:{self.line}: {problem}", hint)

    def text(self, key: str) -> str:
        return self.checked_text(key, self.values.get(key))

    def optional_text(self, key: str) -> str | None:
        return self.text(key) if self.has(key) else None

    def optional_object(self, key: str) -> str | None:
        """As JSON."""
        value = self.values.get(key)
        if value is None:
            return None
        if not isinstance(value, dict):
            raise self.error(f"{key!r} is {_kind(value)}, not an object", "put the schema itself there, in braces")
        return json.dumps(value)

    def checked_text(self, key: str, value: object) -> str:
        if value is None:
            raise self.error(f"{key!r} is missing", f"add it; a row is one of: {SHAPES}")
        if not isinstance(value, str):
            raise self.error(f"{key!r} is {_kind(value)}, not a text", "put it in double quotes")
        if not value.strip():
            raise self.error(f"{key!r} is empty", "give it some text, or remove the line")
        try:
            value.encode()
        except UnicodeEncodeError:  # "\ud83d" alone is fine for JSON but is no character
            raise self.error(
                f"{key!r} contains half a surrogate pair", "write the character itself, as UTF-8"
            ) from None
        return value

    def id(self) -> str:
        for key in ("id", "task_id", "question_id"):
            value = self.values.get(key)
            if isinstance(value, int) and not isinstance(value, bool):
                return str(value)
            if value is not None:
                return self.checked_text(key, value)
        return f"line-{self.line}"


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        reason = error.strerror or str(error)
        raise ConfigError(
            f"cannot read {path}: {reason}", "give a JSONL file, or leave it out for our own mix"
        ) from None


def _rows(name: str, data: bytes) -> Iterator[_Row]:
    # Split at line feeds only: JSON texts may contain the other line separators of Unicode.
    for line, raw in enumerate(data.removeprefix(b"\xef\xbb\xbf").split(b"\n"), start=1):
        if not raw.strip():
            continue
        try:
            values = json.loads(raw.decode("utf-8"))
        except UnicodeDecodeError as error:
            raise ConfigError(
                f"{name}:{line}: byte {error.start + 1} is not UTF-8", f"convert it: iconv -f latin1 -t utf-8 {name}"
            ) from None
        except json.JSONDecodeError as error:
            raise ConfigError(f"{name}:{line}: not JSON: {error.msg} at column {error.colno}", _ONE_PER_LINE) from None
        except (ValueError, RecursionError):  # a number of thousands of digits, lists nested thousands deep
            raise ConfigError(f"{name}:{line}: this JSON is too large to be read", _ONE_PER_LINE) from None
        if not isinstance(values, dict):
            raise ConfigError(f"{name}:{line}: {_kind(values)}, not a JSON object", _ONE_PER_LINE)
        yield _Row(name, line, values)


def _prompt(row: _Row) -> BenchPrompt:
    if row.has("turns"):
        return _from_spec_bench(row)
    if row.has("before") or row.has("instruction"):
        return _from_edit(row)
    if row.has("task_id") and row.has("prompt"):
        return _from_humaneval(row)
    if row.has("prompt"):
        return BenchPrompt(
            id=row.id(),
            category=row.optional_text("category") or (SCHEMA_CATEGORY if row.has("schema") else UNNAMED_CATEGORY),
            prompt=row.text("prompt"),
            expected=row.optional_text("expected"),
            prediction=row.optional_text("prediction"),
            system=row.optional_text("system"),
            schema=row.optional_object("schema"),
        )
    keys = ", ".join(repr(key[:40]) for key in list(row.values)[:8]) or "none"
    raise row.error(f"no known kind of prompt (keys: {keys})", f"use one of: {SHAPES}")


def _from_spec_bench(row: _Row) -> BenchPrompt:
    turns = row.values["turns"]
    if not isinstance(turns, list) or not turns:
        raise row.error(f"'turns' is {_kind(turns)}, not a list of texts", 'write "turns": ["the question"]')
    return BenchPrompt(id=row.id(), category=row.text("category"), prompt=row.checked_text("turns", turns[0]))


def _from_humaneval(row: _Row) -> BenchPrompt:
    block = code_block(UNNAMED_PATH, row.text("prompt"))
    prompt = f"Complete this Python function.\n\n{block}\n\nReply with the whole function in one code block."
    return BenchPrompt(id=row.id(), category=row.optional_text("category") or "humaneval", prompt=prompt)


def _from_edit(row: _Row) -> BenchPrompt:
    """A row with a path edits a file; one without is a function to be fixed, as in HumanEvalFix."""
    path = row.optional_text("path")
    category = row.optional_text("category") or ("edit" if path else "fix")
    path = path or UNNAMED_PATH
    before = row.text("before")
    after = row.optional_text("after") or row.optional_text("expected")
    prediction = row.optional_text("prediction")
    return BenchPrompt(
        id=row.id(),
        category=category,
        prompt=edit_prompt(path, before, row.text("instruction")),
        expected=code_block(path, after) if after is not None else None,
        prediction=code_block(path, before if prediction is None else prediction),
        system=row.optional_text("system"),
    )


def _with_unique_ids(prompts: Sequence[BenchPrompt]) -> list[BenchPrompt]:
    """An id that was there before gets -2, -3 and so on."""
    taken: set[str] = set()
    n_seen: dict[str, int] = {}
    unique = []
    for prompt in prompts:
        name = prompt.id
        while name in taken:
            n_seen[prompt.id] = n_seen.get(prompt.id, 1) + 1
            name = f"{prompt.id}-{n_seen[prompt.id]}"
        taken.add(name)
        unique.append(replace(prompt, id=name))
    return unique


def _kind(value: object) -> str:
    if value == []:
        return "an empty list"
    names = {dict: "an object", list: "a list", str: "a text", bool: "true or false", type(None): "null"}
    return names.get(type(value), "a number")
