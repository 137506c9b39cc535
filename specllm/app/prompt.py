"""From what a user typed to the token ids a model expects."""

from __future__ import annotations

from collections.abc import Sequence

from specllm.app.chat.template import Message
from specllm.app.chat.tokens import ChatTokenizer
from specllm.config import GenerateConfig
from specllm.decoding.protocols import Token
from specllm.errors import ConfigError
from specllm.runtime.llama import Weights


def tokenize_prompt(weights: Weights, prompt: str, config: GenerateConfig) -> list[Token]:
    """The prompt as the model wants it: through the file's chat template, or as it is where `is_raw` or it has none."""
    if config.is_raw or weights.chat_template is None:
        if config.system:
            raise ConfigError(
                "there is no chat template to put --system into",
                "leave out --raw" if weights.chat_template else f"{weights.path.name} has none: put it into the prompt",
            )
        tokens = weights.vocab.tokenize(prompt, adds_special=True, parses_special=True)
    else:
        messages = [Message("system", config.system)] if config.system is not None else []
        tokens = tokenize_messages(weights, [*messages, Message("user", prompt)])
    return tokens + weights.vocab.tokenize(config.answer_start, adds_special=False, parses_special=False)


def tokenize_messages(weights: Weights, messages: Sequence[Message]) -> list[Token]:
    """The conversation through the file's chat template, up to where the assistant goes on; see `ChatTokenizer.tokens`."""
    return ChatTokenizer(weights).tokens(messages)
