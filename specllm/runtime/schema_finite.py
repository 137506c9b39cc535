"""Tells whether any finite value fits a JSON schema.

None fits `{"type": "object", "required": ["next"], "properties": {"next": {"$ref": "#"}}}`, because each such object holds
another one. An answer would go on until it is cut.
"""

from __future__ import annotations

import re
from itertools import product
from typing import Any
from urllib.parse import unquote

from specllm.runtime.finite import derivable

Schema = Any  # what JSON allows in its place: a dictionary, True or False
TYPES = ("null", "boolean", "integer", "number", "string", "array", "object")


def target(root: dict[str, Any], reference: str) -> Schema | None:
    """The schema that a reference within the document points to; None for other references."""
    base, _, pointer = reference.partition("#")
    if base not in ("", root.get("$id")) or (pointer and not pointer.startswith("/")):
        return None
    found: Any = root
    for part in unquote(pointer).split("/")[1:]:
        part = part.replace("~1", "/").replace("~0", "~")
        if isinstance(found, list) and re.fullmatch("[0-9]{1,9}", part) and int(part) < len(found):
            found = found[int(part)]
        elif isinstance(found, dict) and part in found:
            found = found[part]
        else:
            return None
    return found


class _Unknown(Exception):
    """There are too many combinations to look at."""


Shape = tuple[
    dict[str, Any], ...
]  # schemas that one value fits all of; their $ref, allOf, anyOf and oneOf are resolved
Key = frozenset[int]  # the identities of schemas that one value has to fit all of
_MOST_SHAPES = 200
_MOST_EXPANDED = 20_000  # schemas; more take longer than half a second


class Finite:
    """Tells which schemas of a document a finite value fits. If there is too much to look at, the answer is that all have one."""

    def __init__(self, root: dict[str, Any]) -> None:
        self._root = root
        self._schemas: dict[int, Schema] = {}
        self._needs: dict[Key, list[set[Key]]] = {}
        self._n_expanded = 0

    def fits(self, *schemas: Schema) -> list[bool]:
        """Whether a finite value fits, for each of these schemas."""
        keys = [self._key([schema]) for schema in schemas]
        todo = [key for key in keys if key is not None]
        try:
            while todo:
                if (one := todo.pop()) not in self._needs:
                    shapes = self._shapes([self._schemas[i] for i in one], frozenset())
                    self._needs[one] = [needs for shape in shapes for needs in self._needs_of(shape)]
                    todo += [need for needs in self._needs[one] for need in needs]
        except _Unknown:
            return [True] * len(keys)
        found = derivable(self._needs)
        return [key in found for key in keys]

    def _key(self, schemas: list[Schema]) -> Key | None:
        """The key of a value that fits all of these; None if one of them is `false`."""
        if False in [one for one in schemas if isinstance(one, bool)]:
            return None
        found = {id(one): one for one in schemas if isinstance(one, dict)}
        self._schemas |= found
        return frozenset(found)

    def _shapes(self, schemas: list[Schema], around: frozenset[int]) -> list[Shape]:
        """All ways in which one value can fit all of these schemas."""
        found: list[Shape] = [()]
        for schema in schemas:
            if not isinstance(schema, dict):
                found = found if schema else []
                continue
            if id(schema) in around:  # it refers to itself without anything in between
                return []
            self._n_expanded += 1
            if self._n_expanded > _MOST_EXPANDED:
                raise _Unknown
            within = around | {id(schema)}
            choices: list[list[Shape]] = [[(schema,)]]
            choices += [self._shapes([one], within) for one in schema.get("allOf", ())]
            choices += [[shape for one in schema[key] for shape in self._shapes([one], within)]
                        for key in ("anyOf", "oneOf") if key in schema]  # fmt: skip
            if "$ref" in schema and (behind := target(self._root, schema["$ref"])) is not None:
                choices.append(self._shapes([behind], within))
            for choice in choices:
                if len(found) * len(choice) > _MOST_SHAPES:
                    raise _Unknown
                found = [(*a, *(one for one in b if all(one is not other for other in a)))
                         for a, b in product(found, choice)]  # fmt: skip
        return found

    def _needs_of(self, shape: Shape) -> list[set[Key]]:
        """For each way to make a value of this shape: the keys of the values that it has to contain."""
        types = set(TYPES)
        for one in shape:
            given = one.get("type", TYPES)
            given = {given} if isinstance(given, str) else set(given)
            types &= given | ({"integer"} if "number" in given else set())
        if types - {"array", "object"} or any("const" in one or "enum" in one for one in shape):
            return [set()]
        ways = []
        if "object" in types:
            names = dict.fromkeys(name for one in shape for name in one.get("required", ()))
            needs = [self._key(self._properties(shape, name)) for name in names]
            if max((one.get("minProperties", 0) for one in shape), default=0) > len(names):
                optional = {name for one in shape for name in one.get("properties", ()) if name not in names} | {"\0"}
                ways += [[*needs, self._key(self._properties(shape, name))] for name in optional]
            else:
                ways.append(needs)
        if "array" in types:
            n_items = max((one.get("minItems", 0) for one in shape), default=0)
            n_different = 1 + max((len(_prefix(one)) for one in shape), default=0)
            ways.append([self._key([_item(one, i) for one in shape]) for i in range(min(n_items, n_different))])
        return [{need for need in way if need is not None} for way in ways if None not in way]

    def _properties(self, shape: Shape, name: str) -> list[Schema]:
        """The schemas that a property has to fit. The name "\\0" stands for one that no schema knows."""
        found: list[Schema] = []
        for one in shape:
            own = [one["properties"][name]] if name in one.get("properties", ()) else []
            for pattern, schema in one.get("patternProperties", {}).items():
                if name == "\0" or not re.fullmatch(r"\^?[\w -]*\$?", pattern):
                    own.append(True)  # it may match: no other pattern is tried, as that can take for ever
                elif re.search(pattern, name):
                    own.append(schema)
            found += own or [one.get("additionalProperties", True)]
        return found


def _prefix(schema: dict[str, Any]) -> list[Schema]:
    """The schemas of an array's first items."""
    items = schema.get("items")
    return items if isinstance(items, list) else schema.get("prefixItems", [])


def _item(schema: dict[str, Any], i: int) -> Schema:
    prefix = _prefix(schema)
    if i < len(prefix):
        return prefix[i]
    return schema.get("additionalItems" if isinstance(schema.get("items"), list) else "items", True)
