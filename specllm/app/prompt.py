"""From what a user typed to the token ids a model expects."""

from __future__ import annotations

from collections.abc import Sequence

from specllm.app.chat_template import ChatTemplate, Message
from specllm.config import GenerateConfig
from specllm.decoding.protocols import Token
from specllm.errors import ConfigError
from specllm.runtime.llama import Weights
from specllm.runtime.vocab import Vocab

_BREAK = "\ue0f1"  # private use: no template or text needs it


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
    """The conversation through the file's chat template, up to where the assistant goes on.

    Special tokens are the template's alone: `<|im_end|>` inside a message stays text, so that a file which mentions it cannot
    end its own turn or speak as somebody else.
    """
    vocab, source = weights.vocab, weights.chat_template
    if source is None:
        raise ConfigError(f"{weights.path.name} has no chat template", "use --raw")
    bos = vocab.text(vocab.bos) if vocab.bos >= 0 else ""
    eos = vocab.text(vocab.eos) if vocab.eos >= 0 else ""
    plain = [Message(message.role, _as_text(message.content, vocab)) for message in messages]
    text = ChatTemplate(source, bos=bos, eos=eos).render(plain)
    tokens = [vocab.bos] if vocab.adds_bos and not (bos and text.startswith(bos)) else []
    for part in text.split(_BREAK):
        tokens += vocab.tokenize(part, adds_special=False, parses_special=True)
    return tokens


def _as_text(content: str, vocab: Vocab) -> str:
    """The content with every special token's text broken behind its first character."""
    content = content.replace(_BREAK, "")
    if "<" in content or "[" in content:  # all special tokens known begin with one of these
        for special in vocab.control_texts:
            content = content.replace(special, f"{special[0]}{_BREAK}{special[1:]}")
    return content
