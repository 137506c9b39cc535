"""One table of a TOML file that knows where it is: every complaint names file, table, key and line."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping
from pathlib import Path

from specllm.errors import ConfigError
from specllm.models.entries import DRAFTERS, NAME_HINT, DrafterName, is_safe_name

MAX_BYTES = 1 << 44  # 16 TiB: more is a typing error


def suggestion(word: str, known: Iterable[str]) -> str:
    """The known words that were probably meant, as `did you mean X?`, or an empty string."""
    folded = word.casefold()
    by_folded = {name.casefold(): name for name in known}
    close = difflib.get_close_matches(folded, by_folded, n=1, cutoff=0.6)
    if not close and len(folded) >= 3:
        close = [name for name in by_folded if folded in name][:3]
    return f"did you mean {' or '.join(by_folded[name] for name in close)}?" if close else ""


class Table:
    """One TOML table that knows its name, so that every complaint can say where."""

    def __init__(self, values: Mapping[str, object], where: str, path: Path, text: str) -> None:
        self.values = values
        self.where = where
        self.path = path
        self.text = text

    @property
    def name(self) -> str:
        """The last part of `models.NAME`."""
        return self.where.partition(".")[2]

    def wrong(self, key: str, what: str, hint: str) -> ConfigError:
        line = line_of(self.text, self.where, key)
        place = f"{self.path}:{line}" if line else f"{self.path}"
        table = f" in [{self.where}]" if self.where else ""
        return ConfigError(f"{place}: {key}{table} {what}", hint)

    def only(self, *known: str) -> None:
        for key in self.values:
            if key not in known:
                raise self.wrong(key, "is not a known key", suggestion(key, known) or f"known keys: {', '.join(known)}")

    def string(self, key: str) -> str | None:
        value = self.values.get(key)
        if value is not None and (not isinstance(value, str) or not value.isprintable() or not value):
            raise self.wrong(key, f"must be a line of text, not {shown(value)}", f'write {key} = "..."')
        return value

    def required(self, key: str) -> str:
        value = self.string(key)
        if value is None:
            raise self.wrong(key, "is missing", f'add {key} = "..."')
        return value

    def integer(self, key: str, *, low: int = 0, high: int = MAX_BYTES) -> int | None:
        value = self.values.get(key)
        if value is None:
            return None
        if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
            raise self.wrong(
                key,
                f"must be a whole number from {low} to {high}, not {shown(value)}",
                f"write {key} = NUMBER, without quotes",
            )
        return value

    def number(self, key: str) -> float | None:
        value = self.values.get(key)
        if value is not None and (not isinstance(value, int | float) or isinstance(value, bool)):
            raise self.wrong(key, f"must be a number, not {shown(value)}", f"write {key} = NUMBER, without quotes")
        return value

    def choice(self, key: str, default: DrafterName) -> DrafterName:
        value = self.string(key) or default
        for known in DRAFTERS:
            if value == known:
                return known
        raise self.wrong(key, f"is {value!r}", suggestion(value, DRAFTERS) or f"use one of {', '.join(DRAFTERS)}")

    def table(self, key: str) -> Table | None:
        value = self.values.get(key)
        if value is None:
            return None
        return Table(self._mapping(key, value), f"{self.where}.{key}".lstrip("."), self.path, self.text)

    def named_tables(self, key: str) -> list[tuple[str, Table]]:
        """The tables [key.NAME], each under a safe name."""
        outer = self.table(key)
        if outer is None:
            return []
        named = []
        for name in outer.values:
            if not is_safe_name(name):
                raise outer.wrong(shown(name), "cannot be a name", NAME_HINT)
            inner = outer.table(name)
            assert inner is not None
            named.append((name, inner))
        return named

    def tables(self, key: str) -> list[Table]:
        value = self.values.get(key, [])
        if not isinstance(value, list):
            raise self.wrong(key, f"must be a list of tables, not {shown(value)}", f"write {key} = [{{ ... }}]")
        return [Table(self._mapping(key, item), self.where, self.path, self.text) for item in value]

    def _mapping(self, key: str, value: object) -> Mapping[str, object]:
        if not isinstance(value, dict):
            raise self.wrong(key, f"must be a table, not {shown(value)}", f"write {key} = {{ ... }}")
        return value


def line_of(text: str, where: str, key: str) -> int | None:
    """The line (from 1) that sets `key` in table [where] or heads table [where.key]; None if it cannot be
    told.

    tomllib gives no positions; a scan of header and key lines finds them in all but the oddest layouts.
    """
    current = ""
    nested = f"{where}.{key}".lstrip(".")
    header_line = None
    assignment = re.compile(rf'(^|[{{,\s])"?{re.escape(key)}"?\s*=')
    for number, line in enumerate(text.splitlines(), start=1):
        if match := re.match(r"\s*\[{1,2}\s*([^\]]+?)\s*\]{1,2}\s*(#.*)?$", line):
            current = match[1].replace('"', "").replace("'", "").replace(" ", "")
            if current == nested:
                return number
            if current == where:
                header_line = number
        elif current == where and assignment.search(line):
            return number
    return header_line


def shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 40 else text[:37] + "..."
