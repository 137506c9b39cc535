"""Lets Ctrl-C end a forward that is still running inside llama.cpp.

While llama_decode runs, the main thread is in C and no Python signal handler can act. llama.cpp asks its abort callback
before every node of the graph, about a thousand times per forward, so that callback must not be Python either. Here it
is the C library's `strlen` on a two-byte buffer: 0 (go on) while the first byte is NUL, 1 (abort) once it is not. A
watcher thread writes that byte when the signal's number arrives on the wake-up descriptor.

An exception raised inside a callback from C is printed and dropped, so there our signal handler raises nothing: the
aborted call reports, and whoever made it raises KeyboardInterrupt. Where nobody did, `abort_on_interrupt` raises it.
"""

from __future__ import annotations

import contextlib
import ctypes
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from types import CodeType, FrameType
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")

_libc = ctypes.CDLL("msvcrt" if sys.platform == "win32" else None)
ABORT_FUNCTION = ctypes.cast(_libc.strlen, ctypes.c_void_p)
_flag = ctypes.create_string_buffer(2)
ABORT_DATA = ctypes.cast(_flag, ctypes.c_void_p)
_native_callbacks: set[CodeType] = set()
_ENDING = {signal.SIGINT, signal.SIGTERM, getattr(signal, "SIGQUIT", signal.SIGTERM)}  # whoever handles these raises
_SETTLE = 0  # on the wake-up descriptor, where no signal has this number

_watcher: _Watcher | None = None  # while somebody is inside abort_on_interrupt
_n_inside = 0
_is_unraised = False  # a Ctrl-C came inside a native callback, or while it had to wait, and nobody has raised it yet
_is_held = False  # Ctrl-C has to wait


def native_callback(function: Callable[P, R]) -> Callable[P, R]:
    """Marks a function that C calls: Ctrl-C is not raised inside it."""
    _native_callbacks.add(function.__code__)
    return function


def request_abort() -> None:
    """Makes every forward that runs now or starts later return early, until `clear_abort`."""
    _flag[0] = b"\x01"


def clear_abort() -> None:
    _flag[0] = b"\x00"


def is_abort_requested() -> bool:
    return _flag[0] != b"\x00"


class _Watcher:
    """A thread that requests the abort the moment a signal arrives, and our handler of SIGINT. Made in the main thread."""

    def __init__(self) -> None:
        self._reader, self._writer = socket.socketpair()
        self._writer.setblocking(False)  # set_wakeup_fd demands it
        self._is_settled = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="ctrl-c", daemon=True)
        self._thread.start()
        self._previous_fd = signal.set_wakeup_fd(self._writer.fileno(), warn_on_full_buffer=False)
        self._previous_handler = signal.signal(signal.SIGINT, _on_interrupt)

    def settle(self) -> None:
        """Returns once every signal up to now has had its effect on the flag, so that a late one cannot set it again."""
        self._is_settled.clear()
        self._writer.send(bytes([_SETTLE]))
        self._is_settled.wait()

    def close(self) -> None:
        signal.signal(signal.SIGINT, self._previous_handler)
        signal.set_wakeup_fd(self._previous_fd)
        self._writer.close()
        self._thread.join()
        self._reader.close()

    def _watch(self) -> None:
        while received := self._reader.recv(16):
            if not _ENDING.isdisjoint(received) and not _is_held:
                request_abort()
            if _SETTLE in received:
                self._is_settled.set()


@contextlib.contextmanager
def abort_on_interrupt() -> Iterator[None]:
    """Inside, Ctrl-C ends a running forward at its next graph node; KeyboardInterrupt then arrives as usual.

    May be nested, and left in any order (a suspended generator leaves when it is collected): the first to enter installs
    the handler and the last to leave removes it. Outside the main thread, where Python delivers no signals, it changes
    nothing.
    """
    global _watcher, _n_inside, _is_held
    is_ignored = (
        signal.getsignal(signal.SIGINT) == signal.SIG_IGN
    )  # started in the background: Ctrl-C is for somebody else
    if is_ignored or threading.current_thread() is not threading.main_thread():
        yield
        return
    if _watcher is None:
        _watcher = _Watcher()
    _n_inside += 1
    try:
        _settle()
        yield
        _is_held = _is_held and _n_inside > 1
        _settle()
    finally:
        _n_inside -= 1
        _is_held = _is_held and _n_inside > 0
        _forget()
        if not _n_inside and _watcher is not None:
            watcher, _watcher = _watcher, None
            watcher.close()
            clear_abort()


def hold_interrupts() -> None:
    """Ctrl-C waits for the end of the outermost `abort_on_interrupt`, so that what is finished gets kept; a second one does
    not."""
    global _is_held
    _is_held = _watcher is not None


def _settle() -> None:
    """Nothing of an earlier Ctrl-C is left; raises KeyboardInterrupt where one has not been raised yet."""
    if _forget():
        raise KeyboardInterrupt


def _forget() -> bool:
    """Clears the flag; whether a Ctrl-C was waiting to be raised."""
    global _is_unraised
    if _watcher is not None:
        _watcher.settle()
    clear_abort()
    if _is_held:
        return False
    was_unraised, _is_unraised = _is_unraised, False
    return was_unraised


def _on_interrupt(signum: int, frame: FrameType | None) -> None:
    global _is_unraised
    if _is_held and not _is_unraised:
        _is_unraised = True
        return
    request_abort()
    while frame is not None:
        if frame.f_code in _native_callbacks:
            _is_unraised = True
            return
        frame = frame.f_back
    _is_unraised = False
    raise KeyboardInterrupt
