"""Messages to prompt text, with the Jinja template a GGUF file carries.

Templates come from strangers: they run in Jinja's immutable sandbox, with the filters and globals that Hugging Face
templates expect and nothing else.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal, NoReturn

from specllm.errors import ConfigError

# What the Python code behind a template raises where the template is wrong: at compilation, in filters and methods.
_PYTHON_FAULTS = (
    TypeError, ValueError, LookupError, AttributeError, ArithmeticError, SyntaxError, RecursionError, MemoryError,
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Message:
    role: Literal["system", "user", "assistant"]
    content: str


class ChatTemplate:
    """Renders messages; raises ConfigError where the template itself refuses them or is broken."""

    def __init__(self, source: str, *, bos: str = "", eos: str = "") -> None:
        from jinja2 import TemplateError
        from jinja2.sandbox import ImmutableSandboxedEnvironment

        self._special = {"bos_token": bos, "eos_token": eos}
        self._error = TemplateError
        self._faults = (TemplateError, *_PYTHON_FAULTS)
        # trim_blocks and lstrip_blocks as transformers sets them: templates are written for that.
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
        )
        environment.filters["tojson"] = _to_json
        environment.globals["raise_exception"] = self._refuse
        environment.globals["strftime_now"] = lambda format: datetime.now().strftime(format)
        try:
            self._template = environment.from_string(source)
        except self._faults as error:
            raise ConfigError(
                f"the model's chat template is broken: {error}", "use --raw to send the prompt as it is"
            ) from None

    def render(self, messages: Sequence[Message], *, is_question: bool = True) -> str:
        """The prompt text that asks the assistant for its next message, or the conversation alone.

        A template that knows no system role, or drops it without a word, gets the system text in front of the first user
        message.
        """
        if len(messages) < 2 or messages[0].role != "system":
            return self._render(messages, is_question)
        system, user, *rest = messages
        merged = [Message(user.role, f"{system.content}\n\n{user.content}"), *rest]
        try:
            text = self._render(messages, is_question)
        except ConfigError:
            return self._render(merged, is_question)
        return text if system.content.strip() in text else self._render(merged, is_question)

    def _render(self, messages: Sequence[Message], is_question: bool) -> str:
        items = [{"role": message.role, "content": message.content} for message in messages]
        try:
            return self._template.render(messages=items, add_generation_prompt=is_question, **self._special)
        except self._faults as error:
            raise ConfigError(f"the model's chat template refuses this conversation: {error}",
                              "use --raw to send the prompt as it is") from None  # fmt: skip

    def _refuse(self, message: object) -> NoReturn:
        raise self._error(str(message))


def _to_json(value: Any, indent: int | None = None, **_: Any) -> str:
    return json.dumps(value, ensure_ascii=False, indent=indent)
