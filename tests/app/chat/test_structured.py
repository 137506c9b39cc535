"""Chats whose answers have a structure: every turn, after every command, whoever drafts."""

from __future__ import annotations

import re

import pytest

from specllm.app.chat.models import open_models
from specllm.app.chat.use_case import Chat
from specllm.app.generate import GenerateRequest
from specllm.config import ContextConfig, DraftConfig, GenerateConfig, StructureConfig
from specllm.errors import ConfigError, IncompleteAnswer
from tests.app.chat.chats import ask, is_settled

PATTERN = r"(yes|no, it is the other)( end){2}\."


def opened(path, drafter: str, *, n: int = 60, pattern: str = PATTERN, draft=None):
    return open_models(
        GenerateRequest(
            prompt="", target=str(path), draft_model=draft and str(draft), sampling={"temperature": 0.9, "seed": 7},
            context=ContextConfig(n_ctx=1024, threads=1, kv_type="f32", flash_attention="off"),
            draft=DraftConfig(drafter=drafter, draft_length=6, confidence_floor=0.0),
            generate=GenerateConfig(max_tokens=n, structure=StructureConfig(kind="regex", text=pattern)),
        ),
        lambda text: None,
    )  # fmt: skip


def test_every_turn_keeps_to_it_and_says_what_plain_decoding_says(llama_gguf, close_draft_gguf):
    texts = {}
    for drafter in ("none", "lookup", "model"):
        with opened(llama_gguf, drafter, draft=close_draft_gguf) as models:
            chat = Chat(models)
            said = []
            for message in ("one", "no, it is the other end end. or", "three"):
                answer = ask(chat, message)
                said.append(chat.turns[-1].text)
                assert answer.shortfall is None
                assert is_settled(chat)
            assert answer.metrics.n_reused > 0
            ask(chat, "three", is_again=True)
            models.use_drafter("lookup", lambda text: None)
            models.set("temperature", "0")
            ask(chat, "four")
            texts[drafter] = [*said, *(turn.text for turn in chat.turns)]
            assert answer.metrics.accepted_by_source["grammar"] > 0 or drafter == "none"
    assert all(re.fullmatch(PATTERN, text) for text in texts["none"])
    assert texts["none"] == texts["lookup"] == texts["model"]


def test_an_answer_that_is_cut_is_told(llama_gguf):
    with opened(llama_gguf, "lookup", n=3) as models:
        answer = ask(chat := Chat(models), "one")
        assert isinstance(answer.shortfall, IncompleteAnswer)
        assert chat.turns[-1].finish_reason == "length"
        models.set("max_tokens", "60")
        assert ask(chat, "two").shortfall is None


def test_what_cannot_be_compiled_is_refused_before_anything_is_loaded(tmp_path):
    with pytest.raises(ConfigError, match="regular expression"), opened(tmp_path / "none.gguf", "none", pattern="("):
        pass
