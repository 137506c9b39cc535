"""Lets Ctrl-C end a forward that is still running inside llama.cpp.

While llama_decode runs, the main thread is in C and no Python signal handler can act. llama.cpp asks its abort callback
before every node of the graph, about a thousand times per forward, so that callback must not be Python either. Here it
is the C library's `strlen` on a two-byte buffer: 0 (go on) while the first byte is NUL, 1 (abort) once it is not. A
watcher thread writes that byte when the signal's number arrives on the wake-up descriptor.

An exception raised inside a callback from C is printed and dropped, so there our signal handler raises nothing: the
aborted call reports, and whoever made it raises KeyboardInterrupt.
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


@contextlib.contextmanager
def abort_on_interrupt() -> Iterator[None]:
    """Inside, Ctrl-C ends a running forward at its next graph node; KeyboardInterrupt then arrives as usual.

    Outside the main thread, where Python delivers no signals, it changes nothing.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    clear_abort()
    reader, writer = socket.socketpair()
    writer.setblocking(False)  # set_wakeup_fd demands it

    def watch() -> None:
        while received := reader.recv(16):
            if signal.SIGINT in received:
                request_abort()

    watcher = threading.Thread(target=watch, name="ctrl-c", daemon=True)
    watcher.start()
    previous_fd = signal.set_wakeup_fd(writer.fileno(), warn_on_full_buffer=False)
    previous_handler = signal.signal(signal.SIGINT, _on_interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, previous_handler)
        signal.set_wakeup_fd(previous_fd)
        writer.close()
        watcher.join()
        reader.close()
        clear_abort()


def _on_interrupt(signum: int, frame: FrameType | None) -> None:
    request_abort()
    while frame is not None:
        if frame.f_code in _native_callbacks:
            return
        frame = frame.f_back
    raise KeyboardInterrupt
