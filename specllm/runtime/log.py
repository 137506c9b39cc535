"""llama.cpp's log lines as records of the Python logger `specllm.llama`.

llama.cpp writes to stderr by itself, and so does the callback that `import llama_cpp` installs. Ours
takes its place: nothing is printed unless somebody gives the logger a handler, and the last complaints
are kept, because llama.h reports a failed load as a null pointer and says why in the log alone.
"""

from __future__ import annotations

import ctypes
import logging
import os
from collections import deque

from specllm.errors import BackendError
from specllm.runtime.interrupt import native_callback
from specllm.runtime.rebuild import rebuild_command

LOGGER = logging.getLogger("specllm.llama")
LOGGER.addHandler(logging.NullHandler())  # else logging's last resort would print warnings to stderr

CONT = 5  # GGML_LOG_LEVEL_CONT: goes on with the line before
LEVELS = {  # enum ggml_log_level of ggml.h; the binding's own table is of another version
    0: logging.INFO,
    1: logging.DEBUG,
    2: logging.INFO,
    3: logging.WARNING,
    4: logging.ERROR,
}
N_RECENT = 50

_recent: deque[tuple[int, str]] = deque(maxlen=N_RECENT)
_callback: object | None = None  # llama.cpp holds a bare pointer to it: it must live as long as the process


class LineJoiner:
    """Turns the pieces llama.cpp logs (lines, parts of lines, single dots) into lines with one level each."""

    def __init__(self) -> None:
        self._level = logging.INFO
        self._text = ""

    def feed(self, level: int, text: str) -> list[tuple[int, str]]:
        """The (logging level, line) pairs that `text` completes; a line without an end waits for its rest."""
        lines = []
        if level != CONT:
            if self._text:
                lines.append((self._level, self._text))
            self._level, self._text = LEVELS.get(level, logging.INFO), ""
        *done, self._text = (self._text + text).split("\n")
        lines += [(self._level, line) for line in done]
        return [(number, line.rstrip()) for number, line in lines if line.strip()]


_joiner = LineJoiner()


def install() -> None:
    """llama.cpp logs through `specllm.llama` from here on; calling it again changes nothing.

    Raises BackendError where the binding or its libraries cannot be loaded.
    """
    global _callback
    if _callback is not None:
        return
    os.environ.setdefault("GGML_NO_BACKTRACE", "1")  # an assertion in ggml would print its backtrace to stdout
    try:
        import llama_cpp
    except (ImportError, OSError, RuntimeError) as error:  # RuntimeError: the binding's own "failed to load"
        hint = f"build it again: {rebuild_command()}"
        raise BackendError(f"llama-cpp-python cannot be loaded: {error}", hint) from error
    callback = llama_cpp.llama_log_callback(_receive)
    llama_cpp.llama_log_set(callback, ctypes.c_void_p(None))
    _callback = callback


def recent_errors() -> list[str]:
    """The last error lines of llama.cpp, oldest first; its last warnings where there was no error."""
    errors = [line for level, line in _recent if level >= logging.ERROR]
    return errors or [line for _, line in _recent]


def forget_errors() -> None:
    """`recent_errors` is empty: what comes next belongs to what is done next."""
    _recent.clear()


@native_callback
def _receive(level: int, text: bytes | None, _user_data: int | None) -> None:
    for number, line in _joiner.feed(level, (text or b"").decode("utf-8", errors="replace")):
        if number >= logging.WARNING:
            _recent.append((number, line))
        LOGGER.log(number, "%s", line)
