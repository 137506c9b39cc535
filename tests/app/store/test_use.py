"""Answers that draft from a store, and the store that keeps them."""

from __future__ import annotations

from pathlib import Path

import pytest

from specllm.app.generate import GenerateRequest, answer
from specllm.app.store.add import add_to_store
from specllm.app.store.stores import open_store, stats
from specllm.config import ContextConfig, DraftConfig, GenerateConfig
from specllm.errors import ConfigError
from specllm.models.progress import NoProgress
from specllm.runtime.llama import Weights


def asked(target: Path, store: str | None, drafter: str = "store", k: int | None = 6) -> tuple[str, dict[str, object]]:
    request = GenerateRequest(
        prompt="def it(self):", target=str(target), sampling={"temperature": 0.0, "seed": 1},
        context=ContextConfig(n_ctx=512, threads=1, kv_type="f32", flash_attention="off"),
        draft=DraftConfig(drafter=drafter, draft_length=k, store=store), generate=GenerateConfig(max_tokens=40, is_raw=True),
    )  # fmt: skip
    with answer(request) as made:
        made.finish()
    return made.text, made.metrics.as_dict()


@pytest.fixture
def store(llama_gguf: Path, tmp_path: Path) -> str:
    file = tmp_path / "some.py"
    file.write_text("def it(self):\n    return self.the(it)\n")
    add_to_store("mine", [file], str(llama_gguf), NoProgress())
    return "mine"


def test_an_answer_is_drafted_from_the_last_one_and_stays_the_same(llama_gguf: Path, store: str) -> None:
    plain, _ = asked(llama_gguf, None, "none")
    first, _ = asked(llama_gguf, store)
    again, figures = asked(llama_gguf, store)
    assert plain == first == again
    assert figures["accepted_by_source"]["store"] > 25  # of 40: the answer of the first time
    kinds = [part.kind for part in stats(store).parts]
    assert sorted(kinds) == ["answers", "files"]


def test_auto_takes_it_too(llama_gguf: Path, store: str) -> None:
    asked(llama_gguf, store)
    plain, _ = asked(llama_gguf, None, "none")
    assert asked(llama_gguf, store, "auto", None)[0] == plain


def test_what_is_not_there_is_said(llama_gguf: Path) -> None:
    with pytest.raises(ConfigError, match="there is no store"):
        DraftConfig(drafter="store")
    with pytest.raises(ConfigError, match="no store 'other'"):
        asked(llama_gguf, "other")


def test_a_store_that_cannot_be_written_costs_no_answer(
    llama_gguf: Path, store: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    from specllm.app.store.stores import Store
    from specllm.errors import StorageError

    def full(self: Store, answer: object, **_: object) -> None:
        raise StorageError("no space left", "free some")

    monkeypatch.setattr(Store, "remember", full)
    assert asked(llama_gguf, store)[0]
    assert "no space left" in caplog.text
    assert open_store(store, Weights(llama_gguf, is_vocab_only=True).vocab, "llama").n_tokens
