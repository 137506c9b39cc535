"""A model file made of another one: where it goes, where it is made, and its name once it is whole."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from specllm.app.models import LocatedModel, add_model, locate, require_free
from specllm.app.offload import plan_gpu_layers
from specllm.config import ContextConfig
from specllm.errors import ConfigError
from specllm.models.disk import locked, make_folder, move_whole, require_space, storage_errors
from specllm.models.entries import is_safe_name
from specllm.models.gguf_header import GgufHeader, read_header
from specllm.models.store import lock_file, models_dir
from specllm.runtime.llama import LlamaModel, Weights
from specllm.runtime.quantize import FILE_TYPES
from specllm.runtime.trimmed_vocab import open_context, read_trimmed

TYPES = ("q4_0", "iq4_nl")  # that may be faster than what the source has
MIN_GAIN = 1.03  # a new file must be this much faster than the source to be worth its disk space
_PLACE = ".make-"  # what the folder of unfinished files is called, at its beginning
_COPIES = 3  # of the source, that unfinished files may take


def types_of(name: str) -> tuple[str, ...]:
    """What --type means; ConfigError for what is none."""
    named: dict[str, tuple[str, ...]] = {"auto": TYPES, "same": (), **{known: (known,) for known in FILE_TYPES}}
    if name not in named:
        raise ConfigError(f"there is no type {name}", f"take one of {', '.join(named)}")
    return named[name]


@dataclass(frozen=True, slots=True)
class Remade:
    """A file that does not exist yet."""

    source: LocatedModel
    header: GgufHeader  # of the source
    name: str
    path: Path

    @classmethod
    def of(cls, source_name: str | None, output: Path | None, ending: str) -> Remade:
        """Made of the model of that name or path; without `output` it goes to the other models, its name ending in `ending`.

        Raises ConfigError where the source cannot be used or the name is taken.
        """
        source = locate(source_name)
        header = read_header(source.path)
        if header.n_parts > 1:
            raise ConfigError(
                f"{source.path.name} is one of {header.n_parts} parts", "merge them first: llama-gguf-split --merge"
            )
        if read_trimmed(source.path):
            raise ConfigError(
                f"{source.path.name} has a trimmed vocabulary already", "take the model that it was made of"
            )
        path = output.expanduser().absolute() if output else models_dir() / f"{source.name}-{ending}.gguf"
        if not is_safe_name(path.stem):
            raise ConfigError(
                f"{path.stem!r} cannot be a name", "name the file with -o: letters, digits and . _ + - before its .gguf"
            )
        remade = cls(source, header, path.stem, path)
        remade._require_free()
        return remade

    @contextlib.contextmanager
    def workplace(self, notice: Callable[[str], None]) -> Iterator[Path]:
        """A folder beside the file to be, gone afterwards, in which nobody else makes a model of that name.

        Raises ConfigError where somebody else has made one meanwhile, StorageError where there is no room.
        """
        folder = make_folder(self.path.parent)
        _clear_left_over(folder)
        with locked(lock_file(self.name), lambda: notice(f"another specllm makes {self.name}; waiting")):
            self._require_free()
            require_space(folder, _COPIES * self.header.file_bytes)
            with storage_errors(self.path), tempfile.TemporaryDirectory(dir=folder, prefix=_PLACE) as place:
                yield Path(place)

    def keep(self, made: Path) -> None:
        """Moves what was made to its place and gives it its name."""
        self._require_free()
        ours = made.stat()
        try:
            move_whole(made, self.path)
            add_model(self.name, self.path, made_of=self.source.name if self.source.model else str(self.source.path))
        except BaseException:  # without its name it would only be in the way of the next attempt
            with contextlib.suppress(OSError):
                if os.path.samestat(self.path.stat(), ours):  # a file of somebody else's stays
                    self.path.unlink()
            raise

    def _require_free(self) -> None:
        """Raises ConfigError where the file is there or the name is taken."""
        if self.path.exists():
            raise ConfigError(f"there is a {self.name} already", f"choose another file with -o, or remove {self.path}")
        require_free(self.name)


def _clear_left_over(folder: Path) -> None:
    """What killed attempts left; one that is a day old is of nobody who still works."""
    for place in folder.glob(f"{_PLACE}*"):
        with contextlib.suppress(OSError):
            if time.time() - place.stat().st_mtime > 86_400:
                shutil.rmtree(place)


@contextlib.contextmanager
def opened(path: Path, context: ContextConfig) -> Iterator[LlamaModel]:
    """The model at `path` on what of this machine holds it, to be measured."""
    weights = Weights(path, n_gpu_layers=plan_gpu_layers(read_header(path), "auto", context))
    try:
        with contextlib.closing(open_context(weights, context)) as model:
            yield model
    finally:
        weights.close()
