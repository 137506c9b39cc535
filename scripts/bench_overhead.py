#!/usr/bin/env python3
"""What specllm itself costs: per round outside the models' forwards, in memory, and against llama-server.

    scripts/bench_overhead.py [--server PATH/llama-server] [--runs 5] [-n 128]

Needs the default pair. Stop other work first: a busy core falsifies every figure. With --server, plain decoding is measured
in alternation with that binary, which should be built from the same sources with the same flags.
"""

from __future__ import annotations

import argparse
import json
import logging
import re
import statistics
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np

from specllm.app.generate import GenerateRequest, make_plan
from specllm.app.generation import Session
from specllm.app.opening import opening
from specllm.app.prompt import tokenize_prompt
from specllm.config import ContextConfig, DraftConfig, GenerateConfig, SamplingConfig
from specllm.decoding.sampling import KeyedSampler
from specllm.runtime.llama import LlamaModel

PROMPT = "Write a Python module with a class for rational numbers: constructor, all operators, comparison, tests."
GREEDY = SamplingConfig(temperature=0.0)
SAMPLED = SamplingConfig(temperature=0.8, top_k=40, top_p=0.95, min_p=0.05, seed=7)
N_CTX = 2048


class ForwardClock:
    """Adds up the seconds a model spends in forward and rollback."""

    def __init__(self, model: LlamaModel) -> None:
        self.seconds = 0.0
        self._forward, self._rollback = model.forward, model.rollback
        model.forward = self._timed(self._forward)
        model.rollback = self._timed(self._rollback)

    def _timed(self, function):
        def timed(*args, **kwargs):
            started = time.perf_counter()
            try:
                return function(*args, **kwargs)
            finally:
                self.seconds += time.perf_counter() - started

        return timed


@contextmanager
def loaded(drafter: str, k: int, sampling: SamplingConfig) -> Iterator[tuple[Session, list[int]]]:
    """The default pair, loaded, and the tokens of PROMPT."""
    config = GenerateConfig()
    draft = DraftConfig(drafter=drafter, draft_length=k)
    context = ContextConfig(n_ctx=N_CTX, gpu_layers=0)
    plan = make_plan(GenerateRequest(prompt=PROMPT, sampling={}, context=context, draft=draft, generate=config))
    with opening(replace(plan, sampling=sampling), lambda text: None) as opened:
        session, drafting, _ = opened.session(N_CTX)
        session.drafter = drafting.chosen()
        yield session, tokenize_prompt(opened.weights, PROMPT, config)


def round_overhead(n: int) -> None:
    """Milliseconds per round outside both models' forwards, by rows reached, against the budget."""
    print("outside the forwards, per round (ms; budget 0.5 + 0.1 per row greedy, 0.5 + 0.35 per row sampled)")
    for name, sampling, per_row in (("greedy", GREEDY, 0.1), ("sampled", SAMPLED, 0.35)):
        for drafter, k in (("none", 0), ("lookup", 15), ("model", 7)):
            with loaded(drafter, k, sampling) as (session, prompt):
                clocks = [ForwardClock(model) for model in (session.target, session.draft_model) if model]
                costs, spare = [], []
                generation = session.generate(prompt, KeyedSampler(sampling), k, GenerateConfig(max_tokens=n))
                n_rounds = before = 0
                for _ in generation:
                    now = sum(clock.seconds for clock in clocks)
                    round = generation.last_round
                    if round and generation.metrics.n_rounds > n_rounds:
                        n_rounds = generation.metrics.n_rounds
                        outside = round.draft_s + round.verify_s + round.rest_s - (now - before)
                        drafted = len(round.draft.tokens) if drafter == "model" else 0  # its rows are sampled as well
                        costs.append(outside * 1e3)
                        spare.append(outside * 1e3 - 0.5 - per_row * (len(round.tokens) + drafted))
                    before = now
                costs, spare = costs[1:], spare[1:]  # the first round touches memory for the first time
                print(
                    f"  {name:8s} {drafter:7s} k={k:<3d} median {statistics.median(costs):.3f}  "
                    f"95 % {np.percentile(costs, 95):.3f}  over budget in {sum(s > 0 for s in spare)} of {len(spare)} rounds"
                )


def peak_memory() -> None:
    """Peak RSS of a child that reads 1,500 tokens and decodes, against what llama.cpp says it needs."""
    for drafter, k in (("none", 0), ("lookup", 15)):
        output = subprocess.run(
            [sys.executable, __file__, "--memory-child", drafter, str(k)], capture_output=True, text=True, check=True
        ).stdout
        figures = json.loads(output.strip().splitlines()[-1])
        reported = sum(figures["buffers_mib"].values())
        bound = reported + (k + 1) * figures["n_vocab"] * 4 / 2**20 + 80
        print(
            f"peak RSS, {drafter} k={k}: {figures['peak_mib']:.0f} MiB; bound {bound:.0f} MiB = "
            + " + ".join(f"{name} {mib:.0f}" for name, mib in figures["buffers_mib"].items())
            + f" + {(k + 1) * figures['n_vocab'] * 4 / 2**20:.0f} rows + 80"
        )


def memory_child(drafter: str, k: int) -> None:
    lines: list[str] = []

    class Keep(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            lines.append(record.getMessage())

    logger = logging.getLogger("specllm.llama")
    logger.addHandler(Keep())
    logger.setLevel(logging.DEBUG)
    with loaded(drafter, k, GREEDY) as (session, prompt):
        long = (prompt * 200)[:1500]
        for _ in session.generate(long, KeyedSampler(GREEDY), k, GenerateConfig(max_tokens=32)):
            pass
        n_vocab = session.target.n_vocab
    # Not ru_maxrss: across fork and exec that remembers the parent's peak.
    status = Path("/proc/self/status").read_text(encoding="utf-8")
    peak = int(re.search(r"VmHWM:\s+(\d+)", status)[1]) / 1024
    buffers: dict[str, float] = {}
    for line in lines:
        if found := re.search(r"(model|KV|compute|output)\s+buffer size\s*=\s*([\d.]+) MiB", line):
            buffers[found[1]] = buffers.get(found[1], 0) + float(found[2])
    print(json.dumps({"peak_mib": peak, "n_vocab": n_vocab, "buffers_mib": buffers}))


def against_server(server: str, runs: int, n: int) -> None:
    """Plain decode speed of specllm and of llama-server, in alternation."""
    with loaded("none", 0, GREEDY) as (session, prompt):
        command = [
            server, "-m", str(session.target.weights.path), "-c", str(N_CTX), "-t", str(session.target.threads), "-np", "1",
            "--host", "127.0.0.1", "--port", "18091",
        ]  # fmt: skip
        with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
            try:
                _wait_for(18091)
                ours, theirs = [], []
                for i in range(runs + 1):
                    theirs.append(_ask(18091, prompt, n))
                    session.context.clear()
                    generation = session.generate(prompt, KeyedSampler(GREEDY), 0, GenerateConfig(max_tokens=n))
                    for _ in generation:
                        pass
                    ours.append(generation.metrics.decode_tok_per_s or 0.0)
                    print(f"  {i or 'warm-up'}: specllm {ours[-1]:.2f}, llama-server {theirs[-1]:.2f} tok/s")
            finally:
                process.terminate()
    ours, theirs = ours[1:], theirs[1:]
    ratio = statistics.median(a / b for a, b in zip(ours, theirs, strict=True))
    ours_median, theirs_median = statistics.median(ours), statistics.median(theirs)
    print(f"plain decoding: specllm {ours_median:.2f}, llama-server {theirs_median:.2f} tok/s, ratio {ratio:.3f}")


def _wait_for(port: int) -> None:
    for _ in range(120):
        time.sleep(0.5)
        try:
            if b"ok" in urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=2).read():
                return
        except OSError:
            pass
    raise SystemExit("error: llama-server did not start")


def _ask(port: int, prompt: list[int], n: int) -> float:
    body = {"prompt": prompt, "n_predict": n, "temperature": 0, "cache_prompt": False, "ignore_eos": True}
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}/completion", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    timings = json.load(urllib.request.urlopen(request, timeout=600))["timings"]
    return float(timings["predicted_per_second"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--server", help="llama-server binary to measure against")
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("-n", type=int, default=128, help="tokens per run")
    parser.add_argument("--memory-child", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.memory_child:
        memory_child(options.memory_child[0], int(options.memory_child[1]))
        return
    round_overhead(options.n)
    peak_memory()
    if options.server:
        against_server(options.server, options.runs, options.n)


if __name__ == "__main__":
    main()
