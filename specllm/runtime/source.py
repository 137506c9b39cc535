"""Translates what the user asks for to llguidance's own form, and refuses what llguidance cannot take or no finite text fits."""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Iterator
from functools import lru_cache
from typing import Any

from specllm.config import StructureConfig
from specllm.decoding.protocols import Token
from specllm.errors import ConfigError
from specllm.runtime import compiler, finite, lexemes, schema
from specllm.runtime.schema_finite import Finite
from specllm.runtime.vocab import Vocab

# White space between the parts of an answer, for a schema that asks for it: at most a line break and 25 levels of 8 blanks.
_WHITE_SPACE = r"[ \t\r\n]{1,201}"
# Finds schemas in a Lark grammar, and skips strings, comments and regular expressions.
_JSON_IN_LARK = re.compile(r"""(?P<json>%json\s*)(?=\{)|"(?:\\.|[^"\\])*"|//.*|\#.*|/(?:\\.|[^/\\\n])+/""")
_MOST_SHOWN = 300  # characters of an error that may quote a grammar
NAMES = {
    "json_schema": "the JSON schema",
    "json_object": "a JSON object",
    "regex": "the regular expression",
    "choice": "the choices",
    "grammar": "the grammar",
}
_HINTS = {
    "json_object": "this is a defect of specllm",
    "choice": "give fewer or shorter texts",
    "json_schema": "correct the schema, or make it simpler",
    "regex": "use the syntax of Rust's regex: no look-around, no back references",
    "grammar": "use Lark syntax with a rule `start`, or GBNF with a rule `root`",
}


def check_structure(structure: StructureConfig) -> None:
    """Raises ConfigError for what cannot be compiled, before any model is loaded."""
    source, _ = source_of(structure, None)
    with refusing(structure):
        if fault := compiler.fault(source):
            raise ValueError(fault)


def source_of(structure: StructureConfig, vocab: Vocab | None) -> tuple[str, tuple[str, ...]]:
    """The structure in llguidance's own form, and the warnings about it. Without a vocabulary, tokens in a GBNF grammar are not
    looked up. Raises ConfigError for a structure that is wrong, too large, or that no finite text fits."""
    text = structure.text
    with refusing(structure):
        if len(text) + sum(map(len, structure.choices)) > compiler.MOST_CHARACTERS:
            raise ValueError(f"it is longer than {compiler.MOST_CHARACTERS:,} characters")
        if structure.kind == "json_schema":
            return _json_source(text)
        if structure.kind == "json_object":
            return compiler.from_schema({"type": "object"}), ()
        if structure.kind == "regex":
            return compiler.from_regex(text), ()
        warnings: list[str] = []
        if structure.kind == "choice":
            lark = "start: CHOICE\nCHOICE: " + " | ".join(map(json.dumps, dict.fromkeys(structure.choices)))
        elif re.search(r"(?m)^\s*(%llguidance\b|start\s*:)", text):
            lark = _with_schemas(text, warnings)
        elif vocab:
            lark = lexemes.lark_from_gbnf(text, lambda special: _token_of(vocab, special), vocab.eog)
        else:
            lark = lexemes.lark_from_gbnf(text)
        _check_rules(finite.lark_rules(lark))
        return compiler.from_lark(lark), tuple(warnings)
    raise AssertionError


@lru_cache(maxsize=8)
def _json_source(text: str) -> tuple[str, tuple[str, ...]]:
    asked, warnings = _asked(schema.read(text))
    return compiler.from_schema(asked), warnings


def _asked(given: dict[str, Any]) -> tuple[dict[str, Any], tuple[str, ...]]:
    """The part of a schema that can be enforced, and a warning if that is not all."""
    asked, ignored = schema.enforced(given, lambda one: compiler.fault(compiler.from_schema(one)))
    if (layout := asked.get("x-guidance", {})).get("whitespace_flexible") is True:
        layout.setdefault("whitespace_pattern", _WHITE_SPACE)
    if not all(Finite(asked).fits(asked)):
        raise ValueError("no finite answer fits it: something in it always needs itself again")
    return asked, (f"{', '.join(ignored)} cannot be enforced and is left out, all else holds",) if ignored else ()


def _with_schemas(lark: str, warnings: list[str]) -> str:
    """The Lark grammar, with each schema in it reduced to the part that can be enforced."""
    written, at = "", 0
    for found in _JSON_IN_LARK.finditer(lark):
        if found["json"] and found.start() >= at:
            try:
                given, end = json.JSONDecoder().raw_decode(lark, found.end())
            except (ValueError, RecursionError):
                continue  # llguidance says what is wrong
            asked, ignored = _asked(schema.read(json.dumps(given)))
            warnings += ignored
            written, at = f"{written}{lark[at : found.end()]}{json.dumps(asked)}", end
    return written + lark[at:]


def _check_rules(rules: dict[str, finite.Alternatives]) -> None:
    """Raises ValueError for rules that are nested too deep for llguidance, and if no finite text fits `start`."""
    edges = {name: [used.removeprefix("?") for one in several for used in one] for name, several in rules.items()}
    if finite.depth(edges, "start") > compiler.MOST_LEVELS:
        raise ValueError(f"it is nested deeper than {compiler.MOST_LEVELS} levels, rules within rules included")
    needs = {name: [[used for used in one if used[0] != "?"] for one in several] for name, several in rules.items()}
    if "start" in rules and "start" not in finite.derivable(needs):
        raise ValueError("no finite text fits it: some rule behind `start` always needs itself again")


def _token_of(vocab: Vocab, special: str) -> Token:
    """The token with this text, found as llama.cpp finds it."""
    tokens = vocab.tokenize(special, adds_special=False, parses_special=True)
    if len(tokens) != 1:
        raise ValueError(f"{special} is no token of this model")
    return tokens[0]


@contextlib.contextmanager
def refusing(structure: StructureConfig) -> Iterator[None]:
    """Turns a ValueError into a ConfigError that names the structure and the next step."""
    try:
        yield
    except ValueError as error:
        reason = first_line(str(error))
        shown = reason if len(reason) <= _MOST_SHOWN else f"{reason[:_MOST_SHOWN]} ..."
        raise ConfigError(f"{NAMES[structure.kind]} cannot be used: {shown}", _HINTS[structure.kind]) from None


def first_line(text: str) -> str:
    """The first line of an error of llguidance; if it ends with a colon, also the line that tells the cause."""
    first, *others = text.strip().split("\n")
    said = [line.removeprefix("error: ") for line in others if line.startswith("error: ")]
    return f"{first} {said[0]}" if first.endswith(":") and said else first
