"""Messages to prompt text, with the Jinja template a GGUF file carries.

Templates come from strangers. They run in Jinja's immutable sandbox, in a process of their own (`sandbox.py`), with what
Hugging Face's templates expect and nothing else.
"""

from __future__ import annotations

import atexit
import json
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from specllm.config import OUR_TEMPLATE_VARS
from specllm.errors import BackendError, ConfigError

MAX_CPU_S = 3.0  # for one request; real templates take milliseconds
MAX_WAIT_S = 60.0  # for one request, where the process cannot limit its own time (Windows) or hangs

_SANDBOX = Path(__file__).with_name("sandbox.py")
_HINT = "use --raw to send the prompt as it is"
_PROBE = "specllm"


@dataclass(frozen=True, slots=True)
class Message:
    role: Literal["system", "user", "assistant"]
    content: str


class ChatTemplate:
    """Renders messages; raises ConfigError where the template itself refuses them, is broken or works without end.

    `variables` are the user's, e.g. `enable_thinking`.
    """

    def __init__(
        self, source: str, *, bos: str = "", eos: str = "", variables: Mapping[str, object] | None = None
    ) -> None:
        self._source = source
        # transformers gives `tools` and `documents` always, and templates ask whether they are none.
        self._variables = {"tools": None, "documents": None, **(variables or {}), "bos_token": bos, "eos_token": eos}
        answer = _sandbox.ask({"source": source})
        if "error" in answer:
            raise ConfigError(f"the model's chat template is broken: {answer['error']}", _HINT)
        known = sorted({*answer["names"]} - {*OUR_TEMPLATE_VARS})
        for name in variables or ():
            if name not in known:
                hint = f"it looks at {', '.join(known)}" if known else "it looks at none: leave --template-var out"
                raise ConfigError(f"the model's chat template looks at no variable {name!r}", hint)

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
        text, error = self._try(messages, is_question, has_parts=self._takes_parts)
        if text is None:
            raise ConfigError(f"the model's chat template refuses this conversation: {error}", _HINT)
        return text

    @cached_property
    def _takes_parts(self) -> bool:
        """Whether it shows a text only as one of several parts of a content, e.g. beside images."""

        def shows_probe(has_parts: bool) -> bool:
            text, _ = self._try([Message("user", _PROBE)], True, has_parts=has_parts)
            return text is not None and _PROBE in text

        return not shows_probe(False) and shows_probe(True)

    def _try(self, messages: Sequence[Message], is_question: bool, *, has_parts: bool) -> tuple[str | None, str]:
        """The text, or why there is none."""
        items = [
            {"role": one.role, "content": [{"type": "text", "text": one.content}] if has_parts else one.content}
            for one in messages
        ]
        variables = {**self._variables, "messages": items, "add_generation_prompt": is_question}
        answer = _sandbox.ask({"source": self._source, "variables": variables})
        return answer.get("text"), answer.get("error", "")


class _Sandbox:
    """The process that renders templates: started when first needed, ended when it takes too long, and with this one."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._lock = threading.Lock()

    def start(self) -> None:
        """It is starting, so that nobody waits for it later."""
        with self._lock:
            self._started()

    def ask(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Its answer; raises ConfigError where it had to be ended."""
        with self._lock:
            line = self._exchange(json.dumps(request).encode() + b"\n")
        if not line:
            raise ConfigError("the model's chat template takes too much time or memory", _HINT)
        answer: dict[str, Any] = json.loads(line)
        return answer

    def stop(self) -> None:
        if (process := self._process) is not None:
            self._process = None
            process.kill()
            process.communicate()

    def _started(self) -> subprocess.Popen[bytes]:
        if self._process is None:
            try:
                # A session of its own: Ctrl-C in the terminal is meant for this process.
                self._process = subprocess.Popen(
                    [sys.executable, "-P", _SANDBOX, str(MAX_CPU_S)], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                    stderr=subprocess.DEVNULL, start_new_session=True,
                )  # fmt: skip
            except OSError as error:
                hint = f"check that {sys.executable} can be started"
                raise BackendError(f"the chat template cannot be run: {error}", hint) from None
        return self._process

    def _exchange(self, request: bytes) -> bytes:
        """The line that answers it; empty, and the process ended, where there is none."""
        process = self._started()
        assert process.stdin is not None
        assert process.stdout is not None
        timer = threading.Timer(MAX_WAIT_S, process.kill)
        timer.start()
        line = b""
        try:
            process.stdin.write(request)
            process.stdin.flush()
            line = process.stdout.readline()
        except OSError:  # it ended before it had read everything
            pass
        finally:
            timer.cancel()
            if not line.endswith(b"\n"):  # after Ctrl-C too: that answer would be taken for the next request's
                self.stop()
                line = b""
        return line


_sandbox = _Sandbox()
atexit.register(_sandbox.stop)
start_sandbox = _sandbox.start
