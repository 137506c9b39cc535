#!/usr/bin/env python3
"""Measures what a forward costs by its width, with ggml's own kernels and with specllm's, in turn.

Each arm is a process of its own with the model loaded; in every round each width is measured once in each arm, one after the
other, so that what else the machine does hits all arms alike. Medians in milliseconds, V(w) / V(1) beside them, and the
reading of a prompt in tokens per second. The yardstick of V(1) is a program that reads as many bytes as the packed weights
have, with as many threads.

    .venv/bin/python scripts/bench_widths.py qwen2.5-coder-1.5b-instruct --arms off,on,avx2

An arm is `off` (ggml's own), `on` (the fastest instruction set here) or the name of an instruction set.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import mmap
import os
import statistics
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from specllm.kernels import build

READ = -1  # in place of a width: the yardstick
WIDTHS = (1, 2, 3, 4, 5, 6, 8, 12, 16, 24, 32, 64)
PREFILL = 512


def measure_forever(path: Path, threads: int, depth: int) -> None:
    """The child: reads a width per line (0: read a prompt), answers with the seconds of the best of a few forwards."""
    from specllm.config import ContextConfig
    from specllm.runtime.kernels import put_in_place
    from specllm.runtime.llama import LlamaModel, Weights

    started = time.perf_counter()
    weights = Weights(path)
    load_s = time.perf_counter() - started
    model = LlamaModel(weights, ContextConfig(n_ctx=depth + PREFILL + 64, threads=threads, n_outputs_max=max(WIDTHS)))
    tokens = [1000 + 37 * i % 20_000 for i in range(depth + PREFILL)]
    model.forward(tokens[:depth], logits="none")
    status = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    anonymous = next((line.split()[1] for line in status if line.startswith("RssAnon")), "0")
    say(
        {
            "load_s": load_s,
            "kernels": put_in_place().name,
            "anonymous_mb": int(anonymous) / 1000,
            "threads": model.threads,
        }
    )
    yardstick = Yardstick(model.threads) if put_in_place().name else None
    for line in sys.stdin:
        width = int(line)
        if width == READ:
            say({"seconds": yardstick.read_s() if yardstick else 0.0})
            continue
        seconds = []
        for _ in range(3 if width else 1):
            model.rollback(depth)
            started = time.perf_counter()
            if width:
                model.forward(tokens[depth : depth + width])
            else:
                model.forward(tokens[depth : depth + PREFILL], logits="last")
            seconds.append(time.perf_counter() - started)
        say({"seconds": min(seconds)})


class Yardstick:
    """Memory of the size of the packed weights, and threads that read it; only where specllm's kernels compute."""

    def __init__(self, threads: int) -> None:
        library = os.environ.get("SPECLLM_KERNELS_LIBRARY") or build.LIBRARY
        self._native = ctypes.CDLL(str(library))
        self._native.specllm_packed_total.restype = ctypes.c_size_t
        self._native.specllm_read.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
        self._share = self._native.specllm_packed_total() // threads // 64 * 64
        self._pool = ThreadPoolExecutor(threads)
        self._threads = threads
        self._memory = mmap.mmap(-1, self._share * threads)
        self._memory.madvise(mmap.MADV_HUGEPAGE)
        self._address = ctypes.addressof(ctypes.c_char.from_buffer(self._memory))
        ctypes.memset(self._address, 1, self._share * threads)

    def read_s(self) -> float:
        """The least of a few times."""
        seconds = []
        for _ in range(3):
            started = time.perf_counter()
            places = [self._address + i * self._share for i in range(self._threads)]
            list(self._pool.map(self._native.specllm_read, places, [self._share] * self._threads))
            seconds.append(time.perf_counter() - started)
        return min(seconds)


def say(answer: dict[str, Any]) -> None:
    print(json.dumps(answer), flush=True)


class Arm:
    def __init__(self, name: str, path: Path, threads: int, depth: int) -> None:
        self.name = name
        self.readings: dict[int, list[float]] = {}
        environment = {
            **os.environ,
            "SPECLLM_KERNELS": "off" if name == "off" else "on",
            "SPECLLM_KERNELS_SET": "" if name in ("off", "on") else name,
        }
        command = [sys.executable, __file__, str(path), "--child", "--threads", str(threads), "--depth", str(depth)]
        self.process = subprocess.Popen(
            command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self.facts = self._hear()

    def measure(self, width: int) -> None:
        assert self.process.stdin is not None
        print(width, file=self.process.stdin, flush=True)
        self.readings.setdefault(width, []).append(self._hear()["seconds"])

    def median_ms(self, width: int) -> float:
        return 1000 * statistics.median(self.readings[width])

    def _hear(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            sys.exit(f"error: the arm {self.name} ended\nhint: its words are above")
        answer: dict[str, Any] = json.loads(line)
        return answer


def show(arms: list[Arm], widths: list[int]) -> None:
    for arm in arms:
        facts = arm.facts
        print(f"{arm.name}: {facts['kernels'] or 'stock'}, loaded in {facts['load_s']:.2f} s, "
              f"{facts['anonymous_mb']:.0f} MB of its own, {facts['threads']} threads")  # fmt: skip
    print(
        "width  "
        + "".join(f"{arm.name:>18}" for arm in arms)
        + "".join(f"{arm.name + '/' + arms[0].name:>18}" for arm in arms[1:])
    )
    for width in widths:
        if width == READ:
            print("  read " + "".join(f"{arm.median_ms(READ):10.1f}        " for arm in arms))
            continue
        if width:
            cells = [
                f"{arm.median_ms(width):10.1f} {arm.median_ms(width) / arm.median_ms(widths[0]):6.2f} " for arm in arms
            ]
        else:
            cells = [f"{1000 * PREFILL / arm.median_ms(0):10.1f} tok/s " for arm in arms]
        ratios = [f"{arm.median_ms(width) / arms[0].median_ms(width):18.2f}" for arm in arms[1:]]
        print(f"{width or 'prompt':>6} " + "".join(cells) + "".join(ratios), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", help="a registered name or the path of a GGUF file")
    parser.add_argument("--arms", default="off,on")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=0, help="default: as many as specllm takes")
    parser.add_argument("--depth", type=int, default=256, help="tokens in the cache")
    parser.add_argument("--widths", default=",".join(map(str, WIDTHS)))
    parser.add_argument("--no-prompt", action="store_true", help="leave out the reading of a prompt")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    path = Path(options.model)
    if options.child:
        measure_forever(path, options.threads, options.depth)
        return
    if not path.is_file():
        found = subprocess.run(
            [sys.executable, "-m", "specllm", "models", "path", options.model], capture_output=True, text=True
        )
        if found.returncode:
            sys.exit(found.stderr)
        path = Path(found.stdout.strip())
    widths = [int(width) for width in options.widths.split(",")] + ([] if options.no_prompt else [0]) + [READ]
    arms = [Arm(name, path, options.threads, options.depth) for name in options.arms.split(",")]
    for number in range(options.rounds):
        for width in widths:
            for arm in arms[number % len(arms) :] + arms[: number % len(arms)]:
                arm.measure(width)
    show(arms, widths)
    for arm in arms:
        arm.process.kill()


if __name__ == "__main__":
    main()
