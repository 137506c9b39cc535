"""Log records as notes on stderr: warnings always, more of them with -v."""

from __future__ import annotations

import contextlib
import logging

_LLAMA = "specllm.llama"  # what llama.cpp says; errors quote what matters of it


class _Notes(logging.Handler):
    is_verbose = False

    def filter(self, record: logging.LogRecord) -> bool:
        return self.is_verbose or record.name != _LLAMA

    def emit(self, record: logging.LogRecord) -> None:
        from specllm.ui.console import write_note

        with contextlib.suppress(OSError):
            write_note(self.format(record))


_notes = _Notes()
_notes.setFormatter(logging.Formatter("warning: %(message)s"))


def log_to_stderr(verbose: int) -> int:
    """Sends log records to stderr: warnings, specllm's own from -v on, with what llama.cpp says from -vv on."""
    root = logging.getLogger()
    root.addHandler(_notes)
    if verbose:
        _notes.is_verbose = True
        root.setLevel(logging.DEBUG if verbose > 1 else logging.INFO)
        _notes.setFormatter(logging.Formatter("%(levelname)s %(name)s: %(message)s"))
        quiet = ("httpx", "httpcore", "urllib3", "filelock", *(() if verbose > 1 else (_LLAMA,)))
        for name in quiet:
            logging.getLogger(name).setLevel(logging.WARNING)
    return verbose
