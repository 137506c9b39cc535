"""What an answer to a JSON schema probably looks like: every object with the properties it names, all of them and no others.

For drafts only. Most schemas leave objects open and properties optional, so that their grammar forces next to nothing, yet
answers are seldom made of anything else.
"""

from __future__ import annotations

import json
from typing import Any

# What is combined means something else once a part of it is changed.
_COMBINED = {"$ref", "allOf", "anyOf", "oneOf", "patternProperties"}


def guesses(text: str) -> list[str]:
    """Schemas that allow less than this one, the boldest first; none where it leaves nothing to guess."""
    schema = json.loads(text)
    bold, careful = _narrowed(schema, requires=True), _narrowed(schema, requires=False)
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
