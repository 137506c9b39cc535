"""The user's own editor on a text, and the moments in which Ctrl-C is not for us."""

from __future__ import annotations

import contextlib
import os
import shlex
import signal
import subprocess
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

from specllm.errors import ConfigError, StorageError

_FALLBACK = "notepad" if os.name == "nt" else "vi"


@contextlib.contextmanager
def interrupts_ignored() -> Iterator[None]:
    """Ctrl-C inside does nothing here; a program started inside gets it as usual."""
    if threading.current_thread() is not threading.main_thread() or not callable(signal.getsignal(signal.SIGINT)):
        yield
        return
    previous = signal.signal(signal.SIGINT, lambda signum, frame: None)  # not SIG_IGN, which children inherit
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, previous)


def edit_in_editor(data: bytes, name: str) -> bytes:
    """What the user makes of `data` in $VISUAL or $EDITOR, in a temporary file that ends as `name` does.

    Raises ConfigError where there is no such editor, StorageError where it failed; what it had saved by then is kept.
    """
    from specllm.app.edit.history import keep

    command = os.environ.get("VISUAL") or os.environ.get("EDITOR") or _FALLBACK
    hint = "set VISUAL or EDITOR to an editor that waits until you close it"
    try:
        words = shlex.split(command)
    except ValueError as error:
        raise ConfigError(f"cannot understand the editor {command!r}: {error}", hint) from None
    with tempfile.TemporaryDirectory(prefix="specllm-") as folder:
        file = Path(folder) / name
        try:
            file.write_bytes(data)
            with interrupts_ignored():
                code = subprocess.run([*words, str(file)], check=False).returncode
            edited = file.read_bytes()
            if code:
                kept = keep("new text", edited) if edited != data else None
                left = f"what it saved is kept in {kept}" if kept else hint
                raise StorageError(f"the editor {command} ended with {code}", left)
            return edited
        except FileNotFoundError as error:
            missing = "the text" if error.filename == str(file) else f"an editor {words[0]!r}"
            raise ConfigError(f"cannot find {missing}", hint) from None
        except OSError as error:
            raise ConfigError(f"cannot run the editor {command!r}: {error.strerror}", hint) from None
