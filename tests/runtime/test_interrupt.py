"""Ctrl-C while llama.cpp computes: it ends at once, nothing is lost, and what is cached stays right."""

from __future__ import annotations

import ctypes
import gc
import logging
import os
import signal
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from time import perf_counter

import numpy as np
import pytest

from specllm.config import ContextConfig
from specllm.runtime import interrupt
from specllm.runtime.interrupt import abort_on_interrupt, native_callback
from specllm.runtime.llama import LlamaModel, Weights
from tests import synthetic

PROMPT = np.random.default_rng(0).integers(5, 300, 4000).tolist()


def ctrl_c() -> None:
    os.kill(os.getpid(), signal.SIGINT)


def state() -> tuple[object, int, bool]:
    """Signal handler, wake-up descriptor, abort flag: what must be as before."""
    descriptor = signal.set_wakeup_fd(-1)
    signal.set_wakeup_fd(descriptor)
    return signal.getsignal(signal.SIGINT), descriptor, interrupt.is_abort_requested()


@pytest.fixture(autouse=True)
def nothing_is_left_behind() -> Iterator[None]:
    before = state()
    assert before[1:] == (-1, False)
    yield
    gc.collect()
    assert state() == before
    assert not [thread for thread in threading.enumerate() if thread.name == "ctrl-c"]


@pytest.fixture(scope="module", params=["llama", "mamba"])
def slow_weights(request, synthetic_models: Path) -> Iterator[Weights]:
    """A model large enough for a prefill of seconds."""
    write = {"llama": synthetic.write_llama, "mamba": synthetic.write_mamba}[request.param]
    weights = Weights(write(synthetic_models / f"slow_{request.param}.gguf", n_layer=6, n_embd=320))
    yield weights
    weights.close()


@pytest.fixture
def models(slow_weights: Weights) -> Iterator[tuple[LlamaModel, LlamaModel]]:
    config = ContextConfig(
        n_ctx=4096, n_batch=4096, n_ubatch=256, n_outputs_max=8, threads=1, kv_type="f32", flash_attention="off"
    )
    pair = LlamaModel(slow_weights, config), LlamaModel(slow_weights, config)
    yield pair
    for model in pair:
        model.close()


@pytest.mark.parametrize("delay_s", [0.05, 0.17])
def test_ctrl_c_ends_a_prefill_at_once(models, delay_s):
    """Fault 19."""
    model, fresh = models
    sent_at = 0.0

    def send() -> None:
        nonlocal sent_at
        sent_at = perf_counter()
        ctrl_c()

    timer = threading.Timer(delay_s, send)
    timer.start()
    with pytest.raises(KeyboardInterrupt), abort_on_interrupt():
        model.forward(PROMPT, logits="none")
    assert perf_counter() - sent_at < 1.0
    timer.join()
    n_past = model.n_past
    assert 0 <= n_past < len(PROMPT)
    if not model.weights.is_recurrent:  # those: see the next test
        fresh.forward(PROMPT[:n_past], logits="none")
        assert is_same(model.forward(PROMPT[n_past : n_past + 3]), fresh.forward(PROMPT[n_past : n_past + 3]))


def is_same(ours: np.ndarray, theirs: np.ndarray) -> bool:
    return bool(np.abs(ours - theirs).max() < 1e-3)


@pytest.mark.parametrize("architecture", ["llama", "mamba"])
@pytest.mark.parametrize("at_node", [1, 20, 60])
def test_what_is_cached_after_an_aborted_forward_is_what_the_model_says(
    monkeypatch, llama_gguf, mamba_gguf, architecture, at_node
):
    nodes_left = -1

    def is_aborted(data) -> bool:
        nonlocal nodes_left
        nodes_left -= 1
        return nodes_left == 0

    callback = ctypes.CFUNCTYPE(ctypes.c_bool, ctypes.c_void_p)(is_aborted)
    monkeypatch.setattr(interrupt, "ABORT_FUNCTION", ctypes.cast(callback, ctypes.c_void_p))
    weights = Weights({"llama": llama_gguf, "mamba": mamba_gguf}[architecture])
    config = ContextConfig(n_ctx=512, n_batch=64, threads=1, kv_type="f32", flash_attention="off")
    model, fresh = LlamaModel(weights, config), LlamaModel(weights, config)
    try:
        model.forward(PROMPT[:100], logits="none")
        nodes_left = at_node
        with pytest.raises(KeyboardInterrupt):
            model.forward(PROMPT[100:300], logits="none")
        n_past = model.n_past
        assert n_past < 300
        if n_past:
            fresh.forward(PROMPT[:n_past], logits="none")
        rows = [one.forward(PROMPT[n_past : n_past + 1])[0].copy() for one in (model, fresh)]
        assert is_same(*rows)
    finally:
        model.close()
        fresh.close()
        weights.close()


def test_a_forward_after_an_interrupted_one_is_not_aborted_again(models):
    model, _ = models

    def interrupted() -> None:
        with abort_on_interrupt():
            ctrl_c()
            model.forward(PROMPT, logits="none")

    for _ in range(20):
        with pytest.raises(KeyboardInterrupt):
            interrupted()
        model.rollback(0)
        with abort_on_interrupt():
            model.forward(PROMPT[:5], logits="none")
        assert model.n_past == 5


def test_nor_is_one_inside_the_same_outer_context(models):
    """As in a chat: the answer was interrupted, the conversation goes on."""
    model, _ = models

    def interrupted() -> None:
        with abort_on_interrupt():
            ctrl_c()
            model.forward(PROMPT, logits="none")

    with abort_on_interrupt():
        for _ in range(20):
            with pytest.raises(KeyboardInterrupt):
                interrupted()
            model.rollback(0)
            model.forward(PROMPT[:5], logits="none")


def call_from_c(function) -> None:
    """Lets the C library call `function`, as a comparison of qsort."""
    kind = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)
    numbers = (ctypes.c_int * 2)(2, 1)
    ctypes.CDLL(None).qsort(numbers, 2, ctypes.sizeof(ctypes.c_int), kind(function))


@pytest.mark.skipif(sys.platform == "win32", reason="the C library is found under another name there")
def test_ctrl_c_inside_a_native_callback_is_raised_after_it(monkeypatch):
    """An exception raised inside would be printed and dropped."""
    dropped = []
    monkeypatch.setattr(sys, "unraisablehook", dropped.append)
    steps = []

    @native_callback
    def callback(first, second):
        ctrl_c()
        steps.append("callback went on")
        return 0

    def caller() -> None:
        with abort_on_interrupt():
            call_from_c(callback)
            assert interrupt.is_abort_requested()
            steps.append("so did its caller")

    with pytest.raises(KeyboardInterrupt):
        caller()
    assert steps == ["callback went on", "so did its caller"]
    assert dropped == []


@pytest.mark.skipif(sys.platform == "win32", reason="the C library is found under another name there")
def test_a_ctrl_c_nobody_raised_is_raised_by_the_next_to_enter():
    reached = []

    @native_callback
    def callback(first, second):
        ctrl_c()
        return 0

    def caller() -> None:
        with abort_on_interrupt():
            call_from_c(callback)
            with abort_on_interrupt():
                reached.append("inside")

    with pytest.raises(KeyboardInterrupt):
        caller()
    assert reached == []


def test_no_ctrl_c_is_lost_while_llama_cpp_logs(llama_gguf):
    """Making a context takes a moment and logs many lines: a signal then arrives inside our log callback."""

    class Sender(logging.Handler):
        n_lines = 0

        def emit(self, record):
            self.n_lines += 1
            if self.n_lines == 3:
                ctrl_c()

    logger, sender = logging.getLogger("specllm.llama"), Sender()
    level = logger.level
    weights = Weights(llama_gguf)
    logger.addHandler(sender)
    logger.setLevel(logging.DEBUG)
    model = None
    try:
        with pytest.raises(KeyboardInterrupt), abort_on_interrupt():
            model = LlamaModel(weights, ContextConfig(n_ctx=256, threads=1))
    finally:
        logger.removeHandler(sender)
        logger.setLevel(level)
        if model:
            model.close()
        weights.close()
    assert sender.n_lines >= 3


def test_handlers_come_back_however_it_ends():
    def other_handler(signum, frame):
        raise AssertionError("not while ours is installed")

    for error in (None, RuntimeError, KeyboardInterrupt):
        previous = signal.signal(signal.SIGINT, other_handler)
        try:
            with abort_on_interrupt():
                assert signal.getsignal(signal.SIGINT) is not other_handler
                if error:
                    raise error
        except (RuntimeError, KeyboardInterrupt):
            pass
        finally:
            assert signal.getsignal(signal.SIGINT) is other_handler
            signal.signal(signal.SIGINT, previous)


def test_a_wake_up_descriptor_of_somebody_else_comes_back():
    import socket

    reader, writer = socket.socketpair()
    writer.setblocking(False)
    signal.set_wakeup_fd(writer.fileno())
    with abort_on_interrupt():
        pass
    assert signal.set_wakeup_fd(-1) == writer.fileno()
    reader.close()
    writer.close()


def test_nested_ones_end_in_any_order():
    """A suspended generator holds one open until it is collected, perhaps after the one around it has ended."""

    def steps():
        with abort_on_interrupt():
            yield 1
            yield 2

    with abort_on_interrupt():
        generator = steps()
        next(generator)
    with pytest.raises(KeyboardInterrupt):
        ctrl_c()
    with abort_on_interrupt():
        generator.close()
        with pytest.raises(KeyboardInterrupt):
            ctrl_c()
        assert interrupt.is_abort_requested()


def test_a_held_ctrl_c_waits_for_the_end_of_all(models):
    """What is finished is kept first: no exception, and no forward that ends early."""
    model, _ = models
    model.rollback(0)
    done = []

    def caller() -> None:
        with abort_on_interrupt():
            with abort_on_interrupt():
                interrupt.hold_interrupts()
                ctrl_c()
                model.forward(PROMPT[:8], logits="none")
                done.append("inner")
            done.append("outer")

    with pytest.raises(KeyboardInterrupt):
        caller()
    assert done == ["inner", "outer"]
    assert model.n_past == 8


def test_a_second_ctrl_c_is_not_held():
    with abort_on_interrupt():
        interrupt.hold_interrupts()
        ctrl_c()
        with pytest.raises(KeyboardInterrupt):
            ctrl_c()
    with abort_on_interrupt(), pytest.raises(KeyboardInterrupt):
        ctrl_c()  # nothing is held any more


def test_what_is_held_where_nobody_watches_is_nothing():
    interrupt.hold_interrupts()
    with abort_on_interrupt(), pytest.raises(KeyboardInterrupt):
        ctrl_c()


def test_outside_the_main_thread_nothing_changes():
    before = state()
    seen = []

    def work():
        with abort_on_interrupt():
            seen.append((signal.getsignal(signal.SIGINT), threading.active_count()))

    thread = threading.Thread(target=work)
    n_threads = threading.active_count()
    thread.start()
    thread.join()
    assert seen == [(before[0], n_threads + 1)]


def test_a_requested_abort_ends_a_forward_as_ctrl_c(models):
    model, _ = models
    interrupt.request_abort()
    try:
        with pytest.raises(KeyboardInterrupt):
            model.forward(PROMPT[:64], logits="none")
    finally:
        interrupt.clear_abort()


def test_ctrl_c_ends_loading(llama_gguf):
    interrupt.request_abort()
    try:
        with pytest.raises(KeyboardInterrupt):
            Weights(llama_gguf)
    finally:
        interrupt.clear_abort()
