#!/usr/bin/env python3
"""How well a model edits, by the wording of the prompt: what `specllm edit` would make of each row, and whether its tests pass.

    scripts/eval_edit.py ROWS.jsonl [-m MODEL] [--variants fence,plain] [--limit N] [--drafter auto] [--json OUT]

A row is {"instruction", "before"} with "id", "path", "test": Python that fails by an exception when it runs behind the new
file (as in HumanEvalFix). Without "test" only what became of the file is counted. New code runs in a child process with
limits on time, memory and file size, which is no jail: use rows and models that you trust so far.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from time import perf_counter
from typing import Any

from specllm.app.drafting import Drafting
from specllm.app.edit.prompts import DEFAULT_VARIANT, VARIANTS
from specllm.app.edit.use_case import EditRequest, Task, edit_from, prepare
from specllm.app.generate import GenerateRequest, Plan, make_plan
from specllm.app.generation import Session
from specllm.app.opening import opening
from specllm.app.prompt import tokenize_prompt
from specllm.config import DRAFTERS, DraftConfig
from specllm.decoding.protocols import Token
from specllm.decoding.sampling import KeyedSampler
from specllm.errors import BadReply, SpecllmError
from specllm.runtime.interrupt import abort_on_interrupt
from specllm.runtime.llama import Weights

UNNAMED_PATH = "solution.py"
MEMORY_BYTES, FILE_BYTES = 1 << 30, 1 << 20  # what tested code may take


@dataclass(frozen=True)
class Outcome:
    """One answer to one row."""

    id: str
    variant: str
    kind: str  # passed, failed, timed out, changed, unchanged, unparsable, truncated, too long
    seconds: float  # with the prompt's prefill, which is cold
    n_tokens: int
    decode_s: float
    n_accepted: int
    warnings: tuple[str, ...] = ()
    said: str = ""  # the error, or the end of what the tests printed
    reply: str = ""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("rows", type=Path)
    parser.add_argument("-m", "--model")
    parser.add_argument("--variants", default=",".join(VARIANTS), help=f"some of {','.join(VARIANTS)}")
    parser.add_argument("--limit", type=int, help="the first so many rows")
    parser.add_argument("--drafter", choices=DRAFTERS, default="auto")
    parser.add_argument("--test-seconds", type=float, default=10.0, help="for the tests of one row")
    parser.add_argument("--json", type=Path, metavar="OUT", help="every outcome with its reply")
    args = parser.parse_args()
    variants = args.variants.split(",")
    if unknown := set(variants) - VARIANTS.keys():
        parser.error(f"no variant {', '.join(sorted(unknown))}")
    rows = [json.loads(line) for line in args.rows.read_text(encoding="utf-8").splitlines() if line.strip()]
    outcomes: list[Outcome] = []
    out = args.json.resolve() if args.json else None
    try:
        with tempfile.TemporaryDirectory(prefix="eval-edit-") as folder, abort_on_interrupt():
            os.chdir(folder)  # so that the prompt names the row's path alone
            for outcome in evaluate(rows[: args.limit], variants, args):
                outcomes.append(outcome)
                print(f"{outcome.id:32.32s} {outcome.variant:14s} {outcome.kind:11s} {outcome.seconds:6.1f} s",
                      file=sys.stderr, flush=True)  # fmt: skip
    except KeyboardInterrupt:
        print("interrupted; what follows are the rows so far", file=sys.stderr)
    except SpecllmError as error:
        sys.exit(f"error: {error.message}\nhint: {error.hint}")
    if out:
        out.write_text(json.dumps([asdict(outcome) for outcome in outcomes], indent=1), encoding="utf-8")
    print_table(outcomes, variants)


def evaluate(rows: Sequence[dict[str, Any]], variants: Sequence[str], args: argparse.Namespace) -> Iterator[Outcome]:
    """Every row with every variant, the variants of one row beside each other in time, on one loaded model."""
    tasks = [(row, variant, task_of(row, variant, args)) for row in rows for variant in variants]
    with opened([task for *_, task in tasks]) as (session, drafting, plan):
        for row, variant, task in tasks:
            yield answered(row, variant, task, session, drafting, plan, args.test_seconds)


def task_of(row: dict[str, Any], variant: str, args: argparse.Namespace) -> Task:
    """The row's file, written below the current folder, and what is asked about it."""
    path = Path(row.get("path") or UNNAMED_PATH)
    if path.is_absolute() or ".." in path.parts:
        sys.exit(f"error: the path {path} leaves the folder\nhint: give one that does not")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(row["before"], encoding="utf-8", newline="")
    request = EditRequest(
        path=path, instruction=row["instruction"], variant=variant, target=args.model, sampling={"seed": 0},
        draft=DraftConfig(drafter=args.drafter),
    )  # fmt: skip
    return prepare(request)


@contextmanager
def opened(tasks: Sequence[Task]) -> Iterator[tuple[Session, Drafting, Plan]]:
    """The model, with room for the longest of the tasks."""
    plan = make_plan(tasks[0].request)
    with opening(plan, lambda text: print(text, file=sys.stderr)) as loaded:
        sizes = [
            loaded.context_size(
                len(tokenize_prompt(loaded.weights, r.prompt, r.generate)), r.sized(len(predicted(loaded.weights, r)))
            )
            for r in (task.request for task in tasks)
        ]
        session, drafting, _ = loaded.session(max(sizes))
        yield session, drafting, plan


def predicted(weights: Weights, request: GenerateRequest) -> list[Token]:
    return weights.vocab.tokenize(request.prediction or "", adds_special=False, parses_special=False)


def answered(
    row: dict[str, Any], variant: str, task: Task, session: Session, drafting: Drafting, plan: Plan, test_s: float
) -> Outcome:
    """One answer from a cold start, and what it is worth."""
    request, weights = task.request, session.target.weights
    session.target.rollback(0)
    session.context = []
    drafting.reference = reference = predicted(weights, request)
    config = request.sized(len(reference))
    session.drafter = drafting.chosen()
    prompt = tokenize_prompt(weights, request.prompt, request.generate)
    started = perf_counter()
    kind, warnings, said, reply = "too long", (), "", ""
    generation = None
    try:
        generation = session.generate(prompt, KeyedSampler(plan.sampling), plan.draft.most_drafted, config)
        for _ in generation:
            pass
        seconds = perf_counter() - started
        if generation.finish_reason == "interrupted":
            raise KeyboardInterrupt
        last = generation.last_round
        reply = task.prompt.reply(generation.text, is_stopped=last is not None and last.reason == "stop")
        if generation.finish_reason == "length":
            kind = "truncated"
        else:
            edit = edit_from(task, reply)
            kind, said = judged(row, edit.after, edit.is_changed, test_s)
            warnings = edit.warnings
    except BadReply as error:
        kind, said = "unparsable", error.message
    except SpecllmError as error:
        seconds, said = perf_counter() - started, error.message
    metrics = generation.metrics if generation else None
    return Outcome(
        str(row.get("id", "")), variant, kind, seconds, metrics.n_committed if metrics else 0,
        metrics.decode_s if metrics else 0.0, metrics.n_accepted if metrics else 0, warnings, said, reply,
    )  # fmt: skip


def judged(row: dict[str, Any], new: str, is_changed: bool, test_s: float) -> tuple[str, str]:
    """What the new text is worth, and what the tests said."""
    if not is_changed:
        return "unchanged", ""
    if not row.get("test"):
        return "changed", ""
    with tempfile.TemporaryDirectory(prefix="eval-test-") as folder:
        script = Path(folder) / "test.py"
        script.write_text(f"{new}\n\n{row['test']}\n", encoding="utf-8")
        try:
            done = subprocess.run(
                [sys.executable, "-I", str(script)], cwd=folder, env={}, stdin=subprocess.DEVNULL, capture_output=True,
                timeout=test_s, preexec_fn=lambda: limit(test_s), check=False,
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            return "timed out", ""
    said = done.stderr.decode(errors="replace").strip().splitlines()[-1:] or [""]
    return ("passed", "") if done.returncode == 0 else ("failed", said[0])


def limit(seconds: float) -> None:
    """In the child: a loop ends, memory and disk stay."""
    resource.setrlimit(resource.RLIMIT_CPU, (int(seconds) + 1, int(seconds) + 1))
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    resource.setrlimit(resource.RLIMIT_FSIZE, (FILE_BYTES, FILE_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def print_table(outcomes: Sequence[Outcome], variants: Sequence[str]) -> None:
    """One line for each variant. `changed` counts every usable reply that differs from the file, tested or not."""
    print(f"{'variant':14s} {'rows':>5s} {'passed':>7s} {'changed':>8s} {'unparsable':>11s} {'truncated':>10s} "
          f"{'warned':>7s} {'seconds':>8s} {'tok/s':>6s}")  # fmt: skip
    for variant in variants:
        mine = [outcome for outcome in outcomes if outcome.variant == variant]
        kinds = [outcome.kind for outcome in mine]
        n_changed = sum(kind in ("passed", "failed", "timed out", "changed") for kind in kinds)
        decode_s = sum(outcome.decode_s for outcome in mine)
        speed = sum(outcome.n_tokens for outcome in mine) / decode_s if decode_s else 0.0
        print(f"{variant:14s} {len(mine):5d} {kinds.count('passed'):7d} {n_changed:8d} {kinds.count('unparsable'):11d} "
              f"{kinds.count('truncated'):10d} {sum(bool(outcome.warnings) for outcome in mine):7d} "
              f"{sum(outcome.seconds for outcome in mine):8.1f} {speed:6.1f}")  # fmt: skip
    print(f"the default is {DEFAULT_VARIANT}")


if __name__ == "__main__":
    main()
