"""Several processes that write to the same place: nothing of either is lost."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from specllm.app import models as app
from specllm.models.registry import Registry

N = 6  # processes

# Waits until all the others are there too, so that they really run at once.
MEETING = """
import pathlib, sys, time
number, folder = sys.argv[1], pathlib.Path(sys.argv[2])
def meet():
    (folder / f"here-{number}").touch()
    while len(list(folder.glob("here-*"))) < %d:
        time.sleep(0.001)
"""


def at_once(code: str, folder: Path, n: int = N) -> list[subprocess.CompletedProcess[str]]:
    """The code, in `n` processes that go on from `meet()` together; `number` tells them apart."""
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", MEETING % n + code, str(number), str(folder)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for number in range(n)
    ]
    return [
        subprocess.CompletedProcess(process.args, process.returncode, *output)
        for process in processes
        for output in [process.communicate(timeout=60)]
    ]


def outputs(done: Sequence[subprocess.CompletedProcess[str]]) -> list[str]:
    """What each printed; no process failed."""
    assert [one.returncode for one in done] == [0] * len(done), [one.stderr for one in done]
    return [one.stdout.strip() for one in done]


def test_models_added_at_once_are_all_there(user_file: Path, models_dir: Path, tmp_path: Path) -> None:
    (tmp_path / "x.gguf").write_bytes(b"GGUF")
    code = """
from specllm.app.models import add_model
meet()
for i in range(5):
    add_model(f"model-{number}-{i}", folder / "x.gguf")
"""
    outputs(at_once(code, tmp_path))
    names = {f"model-{number}-{i}" for number in range(N) for i in range(5)}
    assert names <= Registry.load().models.keys()


def test_one_name_for_several_models_is_given_once(user_file: Path, models_dir: Path, tmp_path: Path) -> None:
    code = """
from specllm.app.models import add_model
from specllm.errors import ConfigError
(folder / f"{number}.gguf").write_bytes(b"GGUF")
meet()
try:
    print(add_model("mine", folder / f"{number}.gguf").path)
except ConfigError as error:
    print(error.message)
"""
    said = outputs(at_once(code, tmp_path))
    (given,) = [line for line in said if line.endswith(".gguf")]
    assert str(app.locate("mine").path) == given
    assert said.count("there is a mine already") == N - 1


def test_a_tuned_pair_and_a_new_model_are_both_there(user_file: Path, models_dir: Path, tmp_path: Path) -> None:
    (tmp_path / "x.gguf").write_bytes(b"GGUF")
    code = """
from specllm.app.models import add_model
from specllm.app.tune.pair import apply
from specllm.models.entries import Pair
meet()
for i in range(5):
    if number == "0":
        apply(Pair(name=f"pair-{i}", target="qwen2.5-coder-1.5b-instruct", draft="qwen2.5-coder-0.5b-instruct"))
    else:
        add_model(f"model-{i}", folder / "x.gguf")
"""
    outputs(at_once(code, tmp_path, n=2))
    registry = Registry.load()
    assert {f"pair-{i}" for i in range(5)} <= registry.pairs.keys()
    assert {f"model-{i}" for i in range(5)} <= registry.models.keys()


def test_one_model_pulled_at_once_is_fetched_once(models_dir: Path, full_index: Path, tmp_path: Path) -> None:
    code = """
from specllm.models.progress import NoProgress
from specllm.models.pull import pull
from tests.models.wheelhouse import tiny_model
meet()
print(pull(tiny_model(), NoProgress()).was_there)
"""
    assert sorted(outputs(at_once(code, tmp_path, n=3))) == ["False", "True", "True"]


def test_what_two_answers_taught_about_two_kinds_of_text_is_kept(tmp_path: Path) -> None:
    code = """
from specllm.app import learned
from specllm.decoding.acceptance import Acceptance
file = folder / "learned.json"
meet()
for i in range(20):
    learned.save(file, f"{number}-{i}", {"lookup": Acceptance({}, 0.5)})
"""
    outputs(at_once(code, tmp_path))
    kinds = json.loads((tmp_path / "learned.json").read_text(encoding="utf-8"))["kinds"]
    assert kinds.keys() == {f"{number}-{i}" for number in range(N) for i in range(20)}


@pytest.mark.parametrize("kind", ["draft", "target"])
def test_a_model_made_twice_at_once_is_made_once(
    kind: str, llama_gguf: Path, user_file: Path, models_dir: Path, tmp_path: Path
) -> None:
    """What the second one finds taken it leaves alone."""
    code = f"""
from specllm.app import make_{kind} as module
from specllm.errors import SpecllmError
def measured(path, label, threads):
    figures = {{"token_s": 1.0 if label == "source" else 0.5}} if "{kind}" == "draft" else {{
        "seconds": {{1: 1.0 if label == "source" else 0.5}}}}
    return module.Candidate(label=label, n_bytes=path.stat().st_size, **figures)
module._measured = measured
request = module.{kind.title()}Request(source={str(llama_gguf)!r}, output=folder / "fast.gguf", types=("q4_0",), threads=1)
meet()
try:
    print(module.make_{kind}(request, lambda text: None).name)
except SpecllmError as error:
    print(error.message)
"""
    assert sorted(outputs(at_once(code, tmp_path, n=3))) == [
        "fast",
        "there is a fast already",
        "there is a fast already",
    ]
    assert app.locate("fast").path == tmp_path / "fast.gguf"
    assert not app.verify_models(["fast"])[0].is_first_record
