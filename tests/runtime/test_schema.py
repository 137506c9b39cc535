"""What a schema is narrowed to for drafts, and what of it is left alone."""

from __future__ import annotations

import json

import pytest

from specllm.runtime.schema import guesses

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
