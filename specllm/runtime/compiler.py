"""llguidance's compiler, made safe for any input.

The compiler is recursive, and a stack overflow ends the process. So it runs in a thread with a large stack, and callers refuse
grammars that are nested deeper than `MOST_LEVELS`. An internal error of the compiler (a Rust panic) becomes a ValueError.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from typing import TYPE_CHECKING, Any, TypeVar

from llguidance import LLMatcher, LLParserLimits, LLTokenizer

if TYPE_CHECKING:
    from llguidance._lib import JsonCompileOptions

T = TypeVar("T")

# JSON on one line as `json.dumps` writes it: then keys and punctuation leave no choice and can be drafted, nothing is spent on
# indentation, and no model loses itself in white space. A schema's own "x-guidance" goes before this.
_JSON_LAYOUT: JsonCompileOptions = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}

# Levels of nesting, references included. A stack of 8 MiB held 500 levels of a JSON schema and not 1,000 (llguidance 1.9.1; no
# other input needed more for a level). So this limit needs 4 MiB at most.
MOST_LEVELS = 250
_STACK_BYTES = 64 * 2**20
# Characters of a schema or a grammar. Large schemas have 100,000; what is far larger compiles for minutes.
MOST_CHARACTERS = 2_000_000


def from_schema(schema: dict[str, Any]) -> str:
    """A JSON schema in llguidance's own form. Raises ValueError for what is no JSON."""
    return LLMatcher.grammar_from_json_schema(json.dumps(schema), defaults=_JSON_LAYOUT)


def from_lark(lark: str) -> str:
    return LLMatcher.grammar_from_lark(lark)


def from_regex(regex: str) -> str:
    return LLMatcher.grammar_from_regex(regex)


def fault(source: str) -> str | None:
    """Why this grammar (in llguidance's own form) cannot be compiled; None where it can."""
    is_error, messages = _in_deep_stack(lambda: LLMatcher.validate_grammar_with_warnings(source, limits=_limits()))
    return str(messages[0]) if is_error else None


def compiled(tokenizer: LLTokenizer, source: str) -> LLMatcher:
    """A matcher, which may be in error."""
    return _in_deep_stack(lambda: LLMatcher(tokenizer, source, log_level=0, limits=_limits()))


def is_empty(lark: str) -> bool:
    """Whether no text fits a grammar of one lexeme; False where it is too large to know."""
    matcher = compiled(_bytes(), from_lark(lark))
    if matcher.is_error() or any(matcher.compute_bitmask()):
        return False
    return "NoExtension" in matcher.get_error()


@lru_cache(maxsize=1)
def _bytes() -> LLTokenizer:
    """A vocabulary that has a token for each byte."""
    return LLTokenizer("byte")


def _limits() -> LLParserLimits:
    return LLParserLimits(verbose_errors=False)


def _in_deep_stack(question: Callable[[], T]) -> T:
    """The answer, computed in a thread with a large stack. Raises ValueError for a Rust panic."""
    usual = threading.stack_size(_STACK_BYTES)
    try:
        pool = ThreadPoolExecutor(1)
        result = pool.submit(question)  # starts the thread
    finally:
        threading.stack_size(usual)
    with pool:
        try:
            return result.result()
        except BaseException as error:  # PanicException is not an Exception
            if type(error).__name__ == "PanicException":
                raise ValueError(f"llguidance failed ({error})") from None
            raise
