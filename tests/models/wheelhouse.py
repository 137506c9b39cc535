"""A package index in a folder: real wheels that carry a model in parts, for the real pip."""

from __future__ import annotations

import base64
import hashlib
import shutil
import zipfile
from collections import namedtuple
from collections.abc import Mapping
from pathlib import Path

from specllm.models.entries import Model, WheelsSource

CONTENT = b"GGUF" + bytes(range(256)) * 400
PARTS = 2
PART_BYTES = -(-len(CONTENT) // PARTS)
SOURCE = WheelsSource(
    package="tiny-model-part{n}", version="1.0", member="tiny_model_part{n}/data/part{n:02}.bin", parts=PARTS
)
Usage = namedtuple("Usage", "total used free")  # of a disk


def tiny_model(**changes: object) -> Model:
    """A model of the wheels that build() makes."""
    fields: dict[str, object] = {
        "name": "tiny",
        "file": "tiny.gguf",
        "bytes": len(CONTENT),
        "sha256": hashlib.sha256(CONTENT).hexdigest(),
        "sources": (SOURCE,),
    }
    return Model(**(fields | changes))  # type: ignore[arg-type]


def build(folder: Path, *, content: bytes = CONTENT, source: WheelsSource = SOURCE) -> None:
    """`folder` is a package index with all parts of `content`."""
    folder.mkdir(exist_ok=True)
    size = -(-len(content) // source.parts)
    for number in range(1, source.parts + 1):
        piece = content[(number - 1) * size : number * size]
        write_wheel(folder, number, {source.member_of(number): piece}, source=source)


def write_wheel(folder: Path, number: int, members: Mapping[str, bytes], *, source: WheelsSource = SOURCE) -> Path:
    """One wheel that pip takes, with these members and what a wheel must have."""
    package, _, version = source.requirement(number).partition("==")
    stem = f"{package.replace('-', '_')}-{version}"
    info = f"{stem}.dist-info"
    everything = dict(members)
    everything[f"{info}/METADATA"] = f"Metadata-Version: 2.1\nName: {package}\nVersion: {version}\n".encode()
    everything[f"{info}/WHEEL"] = b"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    record = "".join(
        f"{name},sha256={base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b'=').decode()},{len(data)}\n"
        for name, data in everything.items()
    )
    everything[f"{info}/RECORD"] = f"{record}{info}/RECORD,,\n".encode()
    path = folder / f"{stem}-py3-none-any.whl"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in everything.items():
            archive.writestr(name, data)
    return path


def keep_wheels(model_folder: Path, index: Path) -> Path:
    """The wheels of `index` lie where an interrupted pull has put them."""
    kept = model_folder / "wheels"
    kept.mkdir(parents=True)
    for number, wheel in enumerate(sorted(index.glob("*.whl")), start=1):
        shutil.copy(wheel, kept / f"part-{number:03}.whl")
    return kept
