#!/usr/bin/env python3
"""The same prompts through llama-server and through specllm, taking turns prompt by prompt; one table.

    scripts/compare_llama_server.py --server PATH/llama-server [--prompts FILE.jsonl] [--limit 6] [-n 256]
        [--modes none,ngram-simple,ngram-map-k,ngram-mod,draft-simple] [--arms none,auto]

Needs the default pair (or -m and --draft-model). One server a mode is started on 127.0.0.1 with its own defaults, as many
threads as specllm and the same context size; all get the same token ids, greedy, no prompt cache. Only one of them computes
at a time. Stop other work first: a busy core falsifies every figure.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import statistics
import subprocess
import time
import urllib.request
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from specllm.app.drafting import new_acceptance
from specllm.app.generate import GenerateRequest, Plan, make_plan
from specllm.app.generation import Session
from specllm.app.opening import Opening, opening
from specllm.app.prompt import tokenize_prompt
from specllm.app.prompts.reading import BenchPrompt, choose, read_prompts
from specllm.config import ContextConfig, DraftConfig, GenerateConfig
from specllm.decoding.sampling import KeyedSampler

FIRST_PORT = 18100


class Server:
    """One llama-server in one speculation mode."""

    def __init__(self, command: Sequence[str], port: int) -> None:
        self._port = port
        self._process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def wait(self) -> None:
        for _ in range(240):
            with contextlib.suppress(OSError):
                if b"ok" in urllib.request.urlopen(f"http://127.0.0.1:{self._port}/health", timeout=2).read():
                    return
            if self._process.poll() is not None:
                raise SystemExit(f"error: llama-server ended with {self._process.returncode}")
            time.sleep(0.5)
        raise SystemExit("error: llama-server did not start")

    def ask(self, prompt: Sequence[int], n: int) -> tuple[str, float, int]:
        """Text, seconds and tokens of the decode, as the server times them."""
        body = {"prompt": list(prompt), "n_predict": n, "temperature": 0, "cache_prompt": False}
        request = urllib.request.Request(
            f"http://127.0.0.1:{self._port}/completion", json.dumps(body).encode(), {"Content-Type": "application/json"}
        )
        reply = json.load(urllib.request.urlopen(request, timeout=1800))
        return reply["content"], reply["timings"]["predicted_ms"] / 1e3, reply["timings"]["predicted_n"]

    def stop(self) -> None:
        self._process.terminate()
        self._process.wait()


class Ours:
    """specllm with the target loaded once, an arm at a time."""

    def __init__(self, plan: Plan, opened: Opening) -> None:
        self.plan, self.weights = plan, opened.weights
        session, self.drafting, _ = opened.session(plan.context.n_ctx)
        self.target = session.target

    def tokens(self, text: str) -> list[int]:
        return tokenize_prompt(self.weights, text, GenerateConfig())

    def ask(self, arm: str, prediction: str | None, prompt: Sequence[int], n: int) -> tuple[str, float, int]:
        """Text, seconds and tokens of the decode, timed as the server does: from the prompt's end to the last token.

        Drafters start cold with every prompt; where its row predicts the answer (the file of an edit) they may use that.
        """
        config = replace(self.drafting.config, drafter=arm)
        reference = self.weights.vocab.tokenize(prediction or "", adds_special=False, parses_special=False)
        drafting = replace(self.drafting, config=config, reference=reference, acceptance=new_acceptance())
        session = Session(self.target, drafting.chosen())
        k = config.most_drafted
        generation = session.generate(prompt, KeyedSampler(self.plan.sampling), k, GenerateConfig(max_tokens=n))
        for _ in generation:
            pass
        return generation.text, generation.metrics.decode_s, generation.metrics.n_committed


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--server", required=True)
    parser.add_argument("--prompts", type=Path)
    parser.add_argument("--limit", type=int, default=6)
    parser.add_argument("-n", type=int, default=256)
    parser.add_argument("--modes", default="none,ngram-simple,ngram-map-k,ngram-mod")
    parser.add_argument("--arms", default="none,auto")
    parser.add_argument("-m", "--model")
    parser.add_argument("--draft-model")
    parser.add_argument("--ctx", type=int, default=8192)
    parser.add_argument("--threads", type=int, default=0)
    options = parser.parse_args()

    request = GenerateRequest(
        prompt="", target=options.model, draft_model=options.draft_model, sampling={"temperature": 0.0},
        context=ContextConfig(n_ctx=options.ctx, threads=options.threads), draft=DraftConfig(drafter="auto"),
    )  # fmt: skip
    plan = make_plan(request)
    prompts = choose(read_prompts(options.prompts), options.limit)
    with opening(plan, print, loads_all=True) as opened:
        compare(options, Ours(plan, opened), prompts)


def compare(options: argparse.Namespace, ours: Ours, prompts: Sequence[BenchPrompt]) -> None:
    """Every prompt through every arm and server in turn; prints each figure, and a table behind the last."""
    with servers(options, ours) as running:
        figures: dict[str, list[tuple[float, int, str]]] = defaultdict(list)
        for i, prompt in enumerate(prompts):
            tokens = ours.tokens(prompt.prompt)
            asks: dict[str, Callable[[Sequence[int], int], tuple[str, float, int]]] = {
                f"specllm {arm}": partial(ours.ask, arm, prompt.prediction) for arm in options.arms.split(",")
            }
            asks |= {f"llama-server {mode}": server.ask for mode, server in running.items()}
            names = list(asks)
            for name in names[i % len(names) :] + names[: i % len(names)]:
                text, seconds, n = asks[name](tokens, options.n)
                figures[name].append((seconds, n, text))
                print(f"{prompt.id:24s} {len(tokens):5d} {name:26s} {n:5d} tokens {n / seconds:7.2f} tok/s", flush=True)
    print_table(figures, f"specllm {options.arms.split(',')[0]}")


@contextlib.contextmanager
def servers(options: argparse.Namespace, ours: Ours) -> Iterator[dict[str, Server]]:
    """One server a mode, all ready; stopped at the end."""
    running: dict[str, Server] = {}
    try:
        for port, mode in enumerate(options.modes.split(","), FIRST_PORT):
            command = [
                options.server, "-m", str(ours.weights.path), "-c", str(options.ctx), "-t", str(ours.target.threads),
                "-np", "1", "--host", "127.0.0.1", "--port", str(port),
            ]  # fmt: skip
            command += ["--spec-type", mode] if mode != "none" else []
            if mode.startswith("draft") and ours.plan.draft_model:
                command += ["-md", str(ours.plan.draft_model.path)]
            running[mode] = Server(command, port)
            running[mode].wait()
        yield running
    finally:
        for server in running.values():
            server.stop()


def print_table(figures: dict[str, list[tuple[float, int, str]]], baseline: str) -> None:
    """Speed over all prompts, and the median of the ratios prompt by prompt against the baseline."""
    base = figures[baseline]
    print(f"\n{'':28s} {'tok/s':>8s} {'x ' + baseline:>16s}  same text as {baseline}")
    for name, rows in figures.items():
        speed = sum(n for _, n, _ in rows) / sum(seconds for seconds, _, _ in rows)
        ratios = [(n / s) / (bn / bs) for (s, n, _), (bs, bn, _) in zip(rows, base, strict=True)]
        same = sum(text == other for (_, _, text), (_, _, other) in zip(rows, base, strict=True))
        print(f"{name:28s} {speed:8.2f} {statistics.median(ratios):16.2f}  {same} of {len(rows)}")


if __name__ == "__main__":
    main()
