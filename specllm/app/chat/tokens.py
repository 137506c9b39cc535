"""A conversation to token ids: through the chat template, with the tokens of earlier answers as they were generated.

Text that a model wrote is often not tokenized again the way it was generated. So that the KV cache of earlier turns stays
right, the template's text is cut where an answer stands in it unchanged, and the answer's own tokens are put there. Where the
template rewrites an answer (thinking dropped, blanks trimmed), its rewritten text is tokenized instead: what the template
says counts.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from specllm.app.chat.template import ChatTemplate, Message
from specllm.decoding.protocols import Token
from specllm.errors import ConfigError
from specllm.runtime.llama import Weights
from specllm.runtime.vocab import Detokenizer, Vocab, broken, unused_mark

_BEGIN, _END = "\ufdd0", "\ufdd1"  # around an answer, and its number; noncharacters are in no text
_ANSWER = re.compile(f"{_BEGIN}(\\d+){_BEGIN}([^{_BEGIN}{_END}]*){_END}")
_STRAY_MARK = re.compile(f"{_BEGIN}\\d+{_BEGIN}|{_END}")

Piece = str | int  # text of the template, or the number of the message whose tokens stand there


class ChatTokenizer:
    """Knows one model's template and vocabulary."""

    def __init__(self, weights: Weights, variables: Sequence[tuple[str, object]] = ()) -> None:
        """`variables` are those of the template that the user has set."""
        source = weights.chat_template
        if source is None:
            raise ConfigError(f"{weights.path.name} has no chat template", "use --raw")
        self._vocab = vocab = weights.vocab
        self._bos = vocab.text(vocab.bos) if vocab.bos >= 0 else ""
        eos = vocab.text(vocab.eos) if vocab.eos >= 0 else ""
        self._template = ChatTemplate(source, bos=self._bos, eos=eos, variables=dict(variables))

    def tokens(
        self,
        messages: Sequence[Message],
        answers: Mapping[int, Sequence[Token]] | None = None,
        *,
        is_question: bool = True,
        answer_start: str = "",
    ) -> list[Token]:
        """The conversation, up to where the assistant goes on if it `is_question`, there with what its answer begins with.

        `answers`: the tokens of some messages, by their place. Special tokens are the template's alone: `<|im_end|>` inside
        a message stays text, so that a file which mentions it cannot end its own turn or speak as somebody else.
        """
        mark = unused_mark(answer_start, *(message.content for message in messages))
        plain = [Message(message.role, self._as_text(message, mark)) for message in messages]
        *pieces, last = self._pieces(plain, set(answers or ()), is_question)
        assert isinstance(last, str)  # what is behind the last answer
        pieces.append(last + as_text(self._vocab, answer_start, mark))
        first = pieces[0]
        has_bos = bool(self._bos) and isinstance(first, str) and first.startswith(self._bos)
        tokens = [self._vocab.bos] if self._vocab.adds_bos and not has_bos else []
        is_inside = False
        for piece in pieces:
            if isinstance(piece, str):
                tokens += self._vocab.tokenize_marked(piece, mark, is_inside=is_inside)
                is_inside = False
            else:
                answer = (answers or {})[piece]
                tokens += answer
                is_inside = bool(answer)
        return tokens

    def _as_text(self, message: Message, mark: str) -> str:
        """Of an answer, `</think>` and other tokens that the model writes as text stay what they are: templates look for them."""
        return as_text(self._vocab, message.content, mark, keeps_user_defined=message.role == "assistant")

    def _pieces(self, messages: Sequence[Message], numbers: set[int], is_question: bool) -> list[Piece]:
        """The template's text, cut at those answers that stand in it as they are."""
        text = self._template.render(messages, is_question=is_question)
        if any(mark in message.content for message in messages for mark in (_BEGIN, _END)):
            return [text]
        unchanged = set(numbers)
        while unchanged:
            marked = [
                Message(message.role, f"{_BEGIN}{i}{_BEGIN}{message.content}{_END}") if i in unchanged else message
                for i, message in enumerate(messages)
            ]
            cut = _cut(text, self._template.render(marked, is_question=is_question), messages, unchanged)
            if isinstance(cut, list):
                return cut
            unchanged -= cut
        return [text]


def _cut(text: str, marked: str, messages: Sequence[Message], numbers: set[int]) -> list[Piece] | set[int]:
    """`text` cut where `marked`, the same with marks around some messages, has them; else the messages that must be left
    alone because the template does something else with them where they are marked."""
    found = list(_ANSWER.finditer(marked))
    if lost := numbers - {int(match[1]) for match in found}:
        return lost
    pieces: list[Piece] = []
    at = done = 0  # in `text` and in `marked`
    before: set[int] = set()  # the message in front of this one
    for match in found:
        number, content = int(match[1]), match[2]
        between = _STRAY_MARK.sub("", marked[done : match.start()])
        if not text.startswith(between, at):
            return before or numbers
        at += len(between)
        if content != messages[number].content or not text.startswith(content, at):
            return {number}
        pieces += [between, number]
        at, done, before = at + len(content), match.end(), {number}
    return [*pieces, text[at:]]


def as_text(vocab: Vocab, text: str, mark: str, *, keeps_user_defined: bool = False) -> str:
    """The text with marks, so that `Vocab.tokenize_marked` reads no special token in it."""
    if not vocab.may_hold_special(text):
        return text
    return broken(text, vocab.controls if keeps_user_defined else vocab.specials, mark)


def shown_tokens(vocab: Vocab, tokens: Sequence[Token], text: str) -> list[Token]:
    """Tokens whose text is exactly `text`, the beginning of what `tokens` spell: as many of them as fit whole.

    An answer that was cut (a stop string, Ctrl-C) may end inside a token: the rest of `text` is tokenized, and bytes of an
    incomplete character are left out.
    """
    detokenizer = Detokenizer(vocab)
    n_kept = n_kept_characters = n_characters = 0
    for n, token in enumerate(tokens, start=1):
        n_characters += len(detokenizer.push(token))
        if n_characters > len(text):
            break
        if detokenizer.is_whole:
            n_kept, n_kept_characters = n, n_characters
    rest = text[n_kept_characters:]
    return [*tokens[:n_kept], *(vocab.tokenize(rest, adds_special=False, parses_special=False) if rest else ())]
