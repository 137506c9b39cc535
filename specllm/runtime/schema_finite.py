"""Whether any finite value fits a JSON schema.

Every object of `{"required": ["next"], "properties": {"next": {"$ref": "#"}}}` holds one of its own kind: an answer would run on
until it is cut.
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
    """What a reference within the document points to; None for others."""
    base, _, pointer = reference.partition("#")
    if base not in ("", root.get("$id")) or (pointer and not pointer.startswith("/")):
        return None
    target: Any = root
    for part in unquote(pointer).split("/")[1:]:
        part = part.replace("~1", "/").replace("~0", "~")
        if isinstance(target, list) and part.isdigit() and int(part) < len(target):
            target = target[int(part)]
        elif isinstance(target, dict) and part in target:
            target = target[part]
        else:
            return None
    return target


class _Unknown(Exception):
    """Too many combinations to look at."""


Shape = tuple[dict[str, Any], ...]  # schemas in which nothing is combined any more
Key = frozenset[int]  # schemas that one value has to fit, by their identity
_MOST_SHAPES = 200
_MOST_EXPANDED = 20_000  # schemas; more take longer than half a second


class Finite:
    """Which schemas of a document some finite value fits. Where that is too much to find out, all."""

    def __init__(self, root: dict[str, Any]) -> None:
        self._root = root
        self._schemas: dict[int, Schema] = {}
        self._needs: dict[Key, list[set[Key]]] = {}
        self._n_expanded = 0

    def fits(self, *schemas: Schema) -> list[bool]:
        """For each of these schemas."""
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
        """None: among them is one that nothing fits."""
        if False in [one for one in schemas if isinstance(one, bool)]:
            return None
        found = {id(one): one for one in schemas if isinstance(one, dict)}
        self._schemas |= found
        return frozenset(found)

    def _shapes(self, schemas: list[Schema], around: frozenset[int]) -> list[Shape]:
        """What one value can be that fits all of these, each as the schemas that are left when nothing is combined."""
        found: list[Shape] = [()]
        for schema in schemas:
            if not isinstance(schema, dict):
                found = found if schema else []
                continue
            if id(schema) in around:  # it stands for itself, so nothing is ever found that it could be
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
        """What values a value of this shape has to hold, for every way to make it."""
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
        """The schemas that a property has to fit; "\\0" is one that no schema names."""
        found: list[Schema] = []
        for one in shape:
            own = [one["properties"][name]] if name in one.get("properties", ()) else []
            for pattern, schema in one.get("patternProperties", {}).items():
                try:
                    own += [schema] if name != "\0" and re.search(pattern, name) else []
                except re.error:
                    own.append(True)
            if name == "\0" and one.get("patternProperties"):
                own.append(True)
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
