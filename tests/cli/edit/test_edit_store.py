"""What `store add` refuses, an answer about it does not keep either."""

from __future__ import annotations

import io
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from specllm.app.store.add import add_to_store
from specllm.app.store.stores import stats
from specllm.cli.main import Invocation
from specllm.decoding.sampling import KeyedSampler
from specllm.models.progress import NoProgress
from tests.cli.conftest import Result
from tests.cli.edit.conftest import AFTER, QUICK, Edit
from tests.cli.edit.says import pick_of

KEY = "AK" + "IAQ3EGRZ7VJ2HQWXYZ"  # put together, so that nobody who looks for secrets finds one here


@pytest.fixture
def store(folder: Path, llama_gguf: Path) -> Callable[[], bool]:
    """A store called `mine`; says whether there are answers in it."""
    (folder / ".git").mkdir(exist_ok=True)
    (folder / "some.txt").write_text("some text\n")
    add_to_store("mine", [folder / "some.txt"], str(llama_gguf), NoProgress())
    return lambda: any(part.kind == "answers" for part in stats("mine").parts)


SECRET_FILES = {
    ".env": "the name of a secret", "server.pem": "the name of a secret", "link.txt": "the name of a secret",
    "ignored.txt": "ignored by git", "build/deep.txt": "ignored by git", ".git/config": "ignored by git",
    "key.txt": "looks like a secret",
}  # fmt: skip


@pytest.fixture
def secrets(folder: Path) -> None:
    (folder / ".gitignore").write_text("ignored.*\nbuild/\n")
    for name in SECRET_FILES:
        file = folder / name
        file.parent.mkdir(exist_ok=True)
        if name == "link.txt":
            file.symlink_to(".env")
        else:
            file.write_text("a\nb\n" + "x\n" * 100 + (f"{KEY}\n" if name == "key.txt" else ""))


@pytest.mark.usefixtures("secrets")
@pytest.mark.parametrize("name", SECRET_FILES)
def test_an_edit_of_what_a_store_refuses_is_not_kept(
    edit: Edit, store: Callable[[], bool], caplog: pytest.LogCaptureFixture, name: str
) -> None:
    for how in (["--lines", "1:2"], ["-n", "500", "--lines", "1"]):
        edit(name, "--store", "mine", *how, "--dry-run", "Swap", reply="b\na\n```")
    edit(
        "t.py",
        "--store",
        "mine",
        "--context",
        name,
        "--lines",
        "2",
        "-c",
        "1500",
        "Swap",
        reply="    return b - a\n```",
    )
    assert not store()
    assert len(caplog.messages) == 3
    assert all(m.startswith("the answer is not in the store: ") and SECRET_FILES[name] in m for m in caplog.messages)


def test_an_edit_of_another_file_is_kept(edit: Edit, store: Callable[[], bool], folder: Path) -> None:
    (folder / ".gitignore").write_text("ignored.*\n")
    assert edit("t.py", "--store", "mine", "Fix add", reply=f"{AFTER}```").code == 0
    assert store()


@pytest.fixture
def generate(llama_gguf: Path, monkeypatch: pytest.MonkeyPatch, capsysbinary) -> Callable[..., Result]:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO()))

    def generate(*words: str, reply: str) -> Result:
        monkeypatch.setattr(KeyedSampler, "pick", pick_of(reply.encode()))
        code = Invocation(["generate", "-m", str(llama_gguf), *QUICK, "--store", "mine", "-n", "50", *words]).run()
        captured = capsysbinary.readouterr()
        return Result(code, captured.out.decode(), captured.err.decode())

    return generate


@pytest.mark.usefixtures("secrets")
@pytest.mark.parametrize("option", ["--prompt-file", "--prediction"])
@pytest.mark.parametrize("name", SECRET_FILES)
def test_an_answer_about_what_a_store_refuses_is_not_kept(
    generate: Callable[..., Result], store: Callable[[], bool], caplog, name: str, option: str
) -> None:
    generate("-c", "1024", "Repeat it", option, name, reply="a b")
    assert (store(), len(caplog.messages)) == (False, 1)
    assert SECRET_FILES[name] in caplog.text


@pytest.mark.parametrize("how", [[], ["--raw"]], ids=str)
def test_a_secret_that_begins_in_the_prompt_is_seen(
    generate: Callable[..., Result], store: Callable[[], bool], caplog, how: list[str]
) -> None:
    generate(*how, f"Go on: {KEY[:9]}", reply=f"{KEY[9:]} and so on")
    generate(*how, f"Go on: {KEY}", reply="no")
    generate(*how, "API_KEY: 9f86d081", reply="\n884c7d659a2feaa0c55ad015\n")
    assert (store(), len(caplog.messages)) == (False, 3)
    generate(*how, "Go on: AKIA", reply="yes")
    assert store()
