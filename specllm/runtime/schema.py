"""JSON schemas: which part of one can be enforced, and what answers to it probably look like.

llguidance refuses a schema with a keyword that it cannot enforce. We leave such a keyword out and say where it stands. That is
safe because a keyword can only forbid answers: without it more answers are allowed, and all other keywords hold as before.
"""

from __future__ import annotations

import copy
import json
import math
import re
from collections.abc import Callable, Iterator
from typing import Any

from specllm.runtime.compiler import MOST_LEVELS
from specllm.runtime.schema_finite import Finite, target

_MOST_NESTED = 124  # llguidance reads 127 levels, and puts three around the schema
_ONE = {"additionalItems", "additionalProperties", "items"}
_SEVERAL = {"allOf", "anyOf", "oneOf", "prefixItems", "items"}
_NAMED = {"properties", "patternProperties", "$defs", "definitions"}
_COUNTS = {"minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties"}
_NUMBERS = {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"}
_TEXTS = {"pattern", "format", "$ref"}
_BOUNDS = {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"}
# Errors of llguidance about a keyword that it supports in part, and the keywords that such an error can be about.
_REFUSALS = (
    (re.compile("oneOf constraints are not supported"), {"oneOf"}),
    (re.compile("min/maxProperties only supported"), {"minProperties", "maxProperties"}),
    (re.compile("look-around|backreferences|lookarounds"), {"pattern"}),
    (re.compile("'multipleOf' has too many digits"), {"multipleOf"}),
    (re.compile("Failed to generate regex for (integer|float) range"), _BOUNDS),
    (re.compile("Resource .* is not present"), {"$schema"}),
)
_MOST_TRIED = 100  # uses of such a keyword that are compiled one by one to find the ones that llguidance cannot enforce
# Keywords with a value that forbids nothing: leaving them out needs no warning.
_HARMLESS = (("uniqueItems", False), ("unevaluatedProperties", True), ("unevaluatedItems", True))
_ANCHORS = {"$dynamicAnchor", "$recursiveAnchor"}


def read(text: str) -> dict[str, Any]:
    """The schema as an object. Raises ValueError, with the place, for what is not a schema."""

    def refuse(constant: str) -> None:
        raise ValueError(f"{constant} is no JSON")

    def number(digits: str) -> float:
        if not math.isfinite(value := float(digits)):
            raise ValueError(f"the number {digits[:20]} is too large")
        return value

    try:
        schema = json.loads(text, parse_constant=refuse, parse_float=number)  # whose errors name line and column
    except RecursionError:
        raise ValueError(f"it is nested deeper than {_MOST_NESTED} levels") from None
    if not isinstance(schema, dict):
        raise ValueError("it must be an object")
    if _nesting(schema) > _MOST_NESTED:
        raise ValueError(f"it is nested deeper than {_MOST_NESTED} levels")
    for path, one, n_levels in _walk(schema):
        if n_levels > MOST_LEVELS:
            raise ValueError(f"it is nested deeper than {MOST_LEVELS} levels, references included")
        for key, value in one.items():
            if expected := _expected(key, value):
                raise ValueError(f"{path}/{key} must be {expected}")
    return schema


def _nesting(value: Any) -> int:
    """How many objects and lists are around the innermost value."""
    n_levels, layer = 0, [value]
    while layer := [one for one in layer if isinstance(one, dict | list)]:
        layer = [inner for one in layer for inner in (one.values() if isinstance(one, dict) else one)]
        n_levels += 1
    return n_levels


def enforced(schema: dict[str, Any], fault: Callable[[dict[str, Any]], str | None]) -> tuple[dict[str, Any], list[str]]:
    """The schema without the keywords that cannot be enforced, and the places of these as JSON pointers.

    `fault` compiles a schema and returns the error. Raises ValueError for an error that is about no such keyword.
    """
    uses = [(f"{path}/{key}", key, value) for path, one, _ in _walk(schema) for key, value in one.items()]
    schema, _ = _without(schema, {use for use, key, value in uses if key in _ANCHORS or (key, value) in _HARMLESS})
    ignored: list[str] = []
    while error := fault(schema):
        schema, places = _without(schema, _culprits(schema, error, fault))
        if not places:
            raise ValueError(error)
        ignored += places
    return schema, ignored


def _culprits(schema: dict[str, Any], error: str, fault: Callable[[dict[str, Any]], str | None]) -> set[str]:
    """The places of the keywords that the error is about; none if it is about no keyword that can be left out."""
    uses = [(f"{path}/{key}", key, value) for path, one, _ in _walk(schema) for key, value in one.items()]
    if found := re.match(r"Unimplemented keys: (\[.*\])", error):
        return {use for use, key, _ in uses if key in json.loads(found[1])}
    if found := re.match(r"Unknown format: (.*)", error):
        return {use for use, key, value in uses if key == "format" and value == found[1]}
    for refusal, keywords in _REFUSALS:
        if refusal.search(error):
            suspects = {use for use, key, _ in uses if key in keywords}
            if len(suspects) > _MOST_TRIED:
                return suspects
            # A culprit is one that still gives the error when all other suspects are left out.
            alone = [use for use in suspects if refusal.search(fault(_without(schema, suspects - {use})[0]) or "")]
            return set(alone) or suspects
    return set()


def _without(schema: dict[str, Any], places: set[str]) -> tuple[dict[str, Any], list[str]]:
    """A copy without the keywords at these places, and the places that were found. A `oneOf` becomes an `anyOf`."""
    schema = copy.deepcopy(schema)
    found = [(one, key, f"{path}/{key}") for path, one, _ in _walk(schema) for key in one if f"{path}/{key}" in places]
    for one, key, _ in found:
        items = list(one.items())
        one.clear()
        for name, value in items:
            if name != key:
                one[name] = value
            elif key == "oneOf":
                one["allOf"] = [*dict(items).get("allOf", ()), {"anyOf": value}]
    return schema, [place for _, _, place in found]


def _walk(root: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any], int]]:
    """Every schema in the document, also those that only a reference leads to, with its place (a JSON pointer) and its depth.

    Each comes once, in the order in which llguidance visits them, so the depth is that of llguidance's recursion.
    """
    todo: list[tuple[str, Any, int]] = [("#", root, 0)]
    seen: set[int] = set()
    while todo:
        path, schema, level = todo.pop()
        if not isinstance(schema, dict) or id(schema) in seen:
            continue
        seen.add(id(schema))
        yield path, schema, level
        inner: list[tuple[str, Any]] = []
        for key, value in schema.items():
            if key in _SEVERAL and isinstance(value, list):
                inner += [(f"{path}/{key}/{i}", one) for i, one in enumerate(value)]
            elif key in _ONE:
                inner.append((f"{path}/{key}", value))
            elif key in _NAMED and isinstance(value, dict):
                inner += [(f"{path}/{key}/{_escaped(name)}", one) for name, one in value.items()]
            elif key == "$ref" and isinstance(value, str):
                inner.append((value, target(root, value)))
        todo += [(path, one, level + 1) for path, one in reversed(inner)]


def _escaped(name: str) -> str:
    """The name as a part of a JSON pointer."""
    return name.replace("~", "~0").replace("/", "~1")


def _expected(key: str, value: Any) -> str:
    """What the value of this keyword must be; an empty text if it is."""

    def is_number(value: Any) -> bool:
        return isinstance(value, int | float) and not isinstance(value, bool)

    def is_schema(value: Any) -> bool:
        return isinstance(value, dict | bool)

    def are_texts(value: Any) -> bool:
        return isinstance(value, list) and all(isinstance(one, str) for one in value)

    if key in _ONE | _SEVERAL:
        is_right = key in _ONE and is_schema(value)
        if not is_right and not (key in _SEVERAL and isinstance(value, list) and all(map(is_schema, value))):
            return "a list of schemas" if key not in _ONE else "a schema"
    elif key in ("properties", "patternProperties"):
        if not isinstance(value, dict) or not all(map(is_schema, value.values())):
            return "an object whose values are schemas"
    elif key in _COUNTS and not (is_number(value) and value == int(value) and value >= 0):
        return "a whole number, 0 or more"
    elif key in _NUMBERS and not is_number(value) and not (key.startswith("exclusive") and isinstance(value, bool)):
        return "a number"
    elif key in _TEXTS and not isinstance(value, str):
        return "a text"
    elif key == "required" and not are_texts(value):
        return "a list of names"
    elif key == "enum" and not isinstance(value, list):
        return "a list"
    elif key == "type" and not (isinstance(value, str) or are_texts(value)):
        return "the name of a type or a list of them"
    elif key == "x-guidance" and not isinstance(value, dict):
        return "an object"
    return ""


# What is combined means something else once a part of it is changed.
_COMBINED = {"$ref", "allOf", "anyOf", "oneOf", "patternProperties"}


def guesses(text: str) -> list[str]:
    """Schemas that allow less than this one, the boldest first; none where it leaves nothing to guess.

    In a guess, objects have no properties but those that the schema names, and in the bold guess they have all of these. Guesses
    are for drafts only. Most schemas allow more, so their grammar forces next to nothing, but answers seldom use it.
    """
    schema = read(text)
    bold, careful = _narrowed(schema, requires=True), _narrowed(schema, requires=False)
    original = {path: one for path, one, _ in _walk(schema)}
    added = [(one, name) for path, one, _ in _walk(bold) for name in one.get("properties", ())
             if name in one.get("required", ()) and name not in original[path].get("required", ())]  # fmt: skip
    for (one, name), fits in zip(
        added, Finite(bold).fits(*(one["properties"][name] for one, name in added)), strict=True
    ):
        if not fits:  # it holds an object of the same kind; if it were required, the guess would never end
            one["required"].remove(name)
    return list(dict.fromkeys(json.dumps(guess) for guess in (bold, careful) if guess != schema))


def _narrowed(schema: Any, *, requires: bool) -> Any:
    """The schema without properties that it does not name, and perhaps with all that it does."""
    if not isinstance(schema, dict) or not _COMBINED.isdisjoint(schema):
        return schema
    narrow = dict(schema)
    if "items" in schema:
        narrow["items"] = _narrowed(schema["items"], requires=requires)
    for key in ("properties", "$defs", "definitions"):
        if isinstance(named := schema.get(key), dict):
            narrow[key] = {name: _narrowed(one, requires=requires) for name, one in named.items()}
    if narrow.get("properties"):
        if not isinstance(schema.get("additionalProperties"), dict):
            narrow["additionalProperties"] = False
        if requires:
            narrow["required"] = list(narrow["properties"])
    return narrow
