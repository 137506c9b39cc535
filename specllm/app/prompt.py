"""From what a user typed to the token ids a model expects."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from specllm.app.chat.template import Message
from specllm.app.chat.tokens import ChatTokenizer, as_text
from specllm.config import GenerateConfig
from specllm.decoding.protocols import Token
from specllm.errors import ConfigError
from specllm.runtime.llama import Weights
from specllm.runtime.vocab import unused_mark


def tokenize_prompt(weights: Weights, prompt: str, config: GenerateConfig) -> list[Token]:
    """The prompt as the model wants it: through the file's chat template, or as it is where `is_raw` or it has none.

    What was typed behind --raw is the one place where a user's text is read as special tokens.
    """
    if config.is_raw or weights.chat_template is None:
        return _raw_tokens(weights, prompt, config)
    messages = [Message("system", config.system)] if config.system is not None else []
    tokenizer = ChatTokenizer(weights, config.template_vars)
    return tokenizer.tokens([*messages, Message("user", prompt)], answer_start=config.answer_start)


def tokenize_messages(weights: Weights, messages: Sequence[Message]) -> list[Token]:
    """The conversation through the file's chat template, up to where the assistant goes on; see `ChatTokenizer.tokens`."""
    return ChatTokenizer(weights).tokens(messages)


def no_template(name: str) -> str:
    """The remark about a model of that name."""
    return f"{name} has no chat template: the prompt goes as it is; --raw says that this is meant"


def remarks(weights: Weights, config: GenerateConfig) -> Iterator[str]:
    """What a user should know about how the prompt reaches the model."""
    template = weights.chat_template
    if template is None:
        if not config.is_raw:
            yield no_template(weights.path.name)
    elif config.structure and not config.is_raw and "think>" in template:
        off = ("enable_thinking", False)
        if off not in config.template_vars:
            hint = f"; --template-var {off[0]}=false tells it so" if off[0] in template else ""
            yield f"the answer begins at once with what was asked for: the model cannot think before it{hint}"


def _raw_tokens(weights: Weights, prompt: str, config: GenerateConfig) -> list[Token]:
    vocab, name = weights.vocab, weights.path.name
    for option, value in (("--system", config.system), ("--template-var", config.template_vars)):
        if value:
            hint = "leave out --raw" if weights.chat_template else f"{name} has none: put it into the prompt"
            raise ConfigError(f"there is no chat template to put {option} into", hint)
    n_typed = config.n_typed if config.is_raw else 0
    typed, rest = prompt[:n_typed], "" if n_typed is None else prompt[n_typed:]
    mark = unused_mark(prompt, config.answer_start)
    tokens = vocab.tokenize_marked(typed + as_text(vocab, rest + config.answer_start, mark), mark)
    return tokens if not vocab.adds_bos or tokens[:1] == [vocab.bos] else [vocab.bos, *tokens]
