"""Every way specllm can fail on purpose. Each error says what is wrong and names the next step.

SpecllmError                    exit 1
├── ConfigError                 exit 2   a flag, a config file or a prompt that cannot be used as it is
├── ModelError                           something about a model file
│   ├── ModelNotFound                    no such name or path
│   ├── BadModelFile                     not a GGUF, truncated, or an architecture this build does not know
│   ├── DigestMismatch                   the bytes are not the ones models.toml promises
│   └── DownloadError                    no source could deliver it
├── IncompatiblePair                     the draft model's vocabulary is not the target's
├── OutOfMemory                          does not fit this machine
├── ContextFull                          more tokens than the context holds
├── NothingAllowed                       the grammar leaves no token to go on with
├── IncompleteAnswer                     the answer ended before its grammar did
├── BackendError                         llama.cpp itself failed or crashed
│   └── RollbackUnsupported              this context cannot drop tokens again
├── BadReply                             the model's reply cannot be used for what was asked
├── StorageError                         disk full, read-only folder, unwritable file
├── AnswerIsNo                  exit 3   the command worked and the answer is "no"
└── Interrupted                 exit 130 Ctrl-C
"""

from __future__ import annotations

from typing import ClassVar


class SpecllmError(Exception):
    """An expected failure: `message` for the first line, `hint` for the step that mends it."""

    exit_code: ClassVar[int] = 1

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint


class ConfigError(SpecllmError):
    exit_code = 2


class ModelError(SpecllmError):
    pass


class ModelNotFound(ModelError):
    pass


class BadModelFile(ModelError):
    pass


class DigestMismatch(ModelError):
    pass


class DownloadError(ModelError):
    pass


class IncompatiblePair(SpecllmError):
    pass


class OutOfMemory(SpecllmError):
    pass


class ContextFull(SpecllmError):
    pass


class NothingAllowed(SpecllmError):
    pass


class IncompleteAnswer(SpecllmError):
    pass


class BackendError(SpecllmError):
    pass


class RollbackUnsupported(BackendError):
    pass


class BadReply(SpecllmError):
    pass


class StorageError(SpecllmError):
    pass


class AnswerIsNo(SpecllmError):
    exit_code = 3


class Interrupted(SpecllmError):
    exit_code = 130
