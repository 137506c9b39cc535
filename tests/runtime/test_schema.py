"""What a schema is narrowed to for drafts, and what of it is left alone."""

from __future__ import annotations

import json

import pytest

from specllm.runtime.schema import guesses
from specllm.runtime.schema_finite import Finite

TEXT = {"type": "string"}
OPEN = {"type": "object", "properties": {"a": TEXT, "b": TEXT}, "required": ["b"]}
CLOSED = {**OPEN, "additionalProperties": False}
ALL = {**CLOSED, "required": ["a", "b"]}
COMBINED = {"anyOf": [OPEN, {"type": "null"}]}
MAP = {"type": "object", "additionalProperties": TEXT}

CASES = {  # the schema, its guesses
    "all properties, then no others": (OPEN, [ALL, CLOSED]),
    "closed already": (CLOSED, [ALL]),
    "nothing left to guess": (ALL, []),
    "closed is all that is left": ({**OPEN, "required": ["a", "b"]}, [ALL]),
    "other properties that it describes": ({**OPEN, "additionalProperties": TEXT}, [{**MAP, **OPEN, "required": ["a", "b"]}]),
    "no properties": (MAP, []),
    "no object": (TEXT, []),
    "in an array": ({"type": "array", "items": OPEN}, [{"type": "array", "items": one} for one in (ALL, CLOSED)]),
    "in an object": (
        {"properties": {"properties": OPEN}, "additionalProperties": False, "required": ["properties"]},
        [{"properties": {"properties": one}, "additionalProperties": False, "required": ["properties"]}
         for one in (ALL, CLOSED)],
    ),
    "in a definition": (
        {"$defs": {"d": OPEN}, "definitions": {"d": OPEN}, "items": {"$ref": "#/$defs/d"}},
        [{"$defs": {"d": one}, "definitions": {"d": one}, "items": {"$ref": "#/$defs/d"}} for one in (ALL, CLOSED)],
    ),
    "combined": ({"items": COMBINED}, []),
    "combined at the root": ({**OPEN, "allOf": [{"required": ["c"]}]}, []),
    "with patterns": ({**OPEN, "patternProperties": {"^x": TEXT}}, []),
    "true and false": ({"items": True, "$defs": {"no": False}}, []),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_a_guess_closes_objects_and_requires_their_properties(name):
    schema, expected = CASES[name]
    assert [json.loads(text) for text in guesses(json.dumps(schema))] == expected


def test_the_order_of_properties_stays():
    (guess, _) = guesses('{"properties": {"b": {}, "a": {"properties": {"z": {}, "y": {}}}}}')
    assert json.loads(guess)["required"] == ["b", "a"]
    assert json.loads(guess)["properties"]["a"]["required"] == ["z", "y"]


NODE = {"type": "object", "properties": {"value": {"type": "integer"}, "next": {"$ref": "#"}}, "required": ["value"]}


@pytest.mark.parametrize("schema", [
    NODE,
    {"type": "object", "properties": {"a": {"$ref": "#/$defs/b"}, "x": {}}, "$defs": {
        "b": {"type": "object", "properties": {"c": {"$ref": "#"}, "y": {}}}}},
    {"type": "object", "properties": {"left": {"type": "array", "items": {"$ref": "#"}, "minItems": 1}, "right": {"$ref": "#"}}},
    {"type": "array", "items": {"$ref": "#/definitions/n"}, "minItems": 1, "definitions": {
        "n": {"type": "object", "properties": {"n": {"type": "object", "properties": {"m": {"$ref": "#/definitions/n"}}}}}}},
])  # fmt: skip
def test_a_guess_is_finite_where_an_object_may_hold_its_own_kind(schema):
    """All properties but those: else the keys would be guessed for ever."""
    for guess in map(json.loads, guesses(json.dumps(schema))):
        assert Finite(guess).fits(guess) == [True]


def test_what_would_not_go_on_for_ever_is_still_guessed():
    (guess,) = guesses(json.dumps(NODE))
    assert json.loads(guess)["required"] == ["value"]
    optional = {**NODE, "properties": {**NODE["properties"], "other": {"type": "boolean"}}}
    assert json.loads(guesses(json.dumps(optional))[0])["required"] == ["value", "other"]


def test_a_value_as_deep_as_allowed_is_guessed_about():
    inner: dict[str, object] = {"type": "null"}
    for _ in range(60):
        inner = {"type": "object", "properties": {"a": inner}}
    assert len(guesses(json.dumps(inner))) == 2
