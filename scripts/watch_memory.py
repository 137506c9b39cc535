#!/usr/bin/env python3
"""Whether memory stays flat: many answers in one process, and its resident memory after the 20th and the last.

    scripts/watch_memory.py [-m MODEL] [--draft-model MODEL] [--answers 200] [-n 24]

A chat stays open for all of them; every other answer is a generation that loads its models, some inside a grammar, and frees
them again. Drafters take turns. Exit code 3 where memory grew by more than 2 % from the 20th answer to the last.
"""

from __future__ import annotations

import argparse
import gc
import sys
from itertools import cycle
from pathlib import Path

from specllm.app.chat.models import open_models
from specllm.app.chat.use_case import Chat
from specllm.app.generate import GenerateRequest, answer
from specllm.config import ContextConfig, DraftConfig, GenerateConfig, StructureConfig

FIRST = 20  # answers until everything has been allocated once
MOST = 1.02  # times the memory after the first ones
SCHEMA = '{"type": "object", "properties": {"name": {"type": "string"}, "n": {"type": "integer"}}, "required": ["name", "n"]}'
STRUCTURES = (None, StructureConfig(kind="json_schema", text=SCHEMA))
DRAFTERS = ("auto", "lookup", "model")
MESSAGES = (
    "Write a function that adds two numbers.",
    "What does it return for 2 and 3?",
    "Say it as JSON.",
    "Once more.",
)


def main() -> int:
    options = _options()
    wanted = GenerateRequest(
        prompt="", target=options.model, draft_model=options.draft_model, sampling={"temperature": 0.7, "seed": 1},
        context=ContextConfig(n_ctx=2048), generate=GenerateConfig(max_tokens=options.n),
    )  # fmt: skip
    readings = [0.0]
    with open_models(wanted, print) as models:
        chat = Chat(models)
        steps = zip(cycle(MESSAGES), cycle(DRAFTERS), cycle((*STRUCTURES, *reversed(STRUCTURES))), strict=False)
        for n, (message, drafter, structure) in zip(range(1, options.answers + 1), steps, strict=False):
            if n % 2:
                _say(chat, message, drafter, is_again=n % 8 == 5)
            else:
                _generate(wanted, message, drafter, structure)
            if n % FIRST == 0:
                chat.replace(None, ())
            gc.collect()
            readings.append(resident_bytes() / 1e6)
            if n % FIRST == 0:
                print(f"answer {n}: {readings[-1]:,.1f} MB", flush=True)
    growth = readings[-1] / readings[min(FIRST, options.answers)]
    print(
        f"after {FIRST} answers {readings[FIRST]:,.1f} MB, after {options.answers} {readings[-1]:,.1f} MB: {growth - 1:+.2%}"
    )
    return 0 if growth <= MOST else 3


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-m", "--model", help="the default pair without it")
    parser.add_argument("--draft-model")
    parser.add_argument("--answers", type=int, default=200)
    parser.add_argument("-n", type=int, default=24, help="tokens of an answer")
    return parser.parse_args()


def _say(chat: Chat, message: str, drafter: str, *, is_again: bool) -> None:
    chat.models.use_drafter(drafter, lambda text: None)
    with chat.ask(message, lambda text: None, is_again=is_again) as one:
        one.finish()


def _generate(wanted: GenerateRequest, message: str, drafter: str, structure: StructureConfig | None) -> None:
    request = GenerateRequest(
        prompt=message, target=wanted.target, draft_model=wanted.draft_model, sampling=wanted.sampling,
        context=wanted.context, draft=DraftConfig(drafter=drafter),
        generate=GenerateConfig(max_tokens=wanted.generate.max_tokens, structure=structure),
    )  # fmt: skip
    with answer(request) as one:
        one.finish()


def resident_bytes() -> int:
    """Memory of this process alone; pages of a mapped file come and go as the system likes."""
    fields = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines())
    return int(fields["RssAnon"].split()[0]) * 1024


if __name__ == "__main__":
    sys.exit(main())
