"""What the tests of chats share: how one is opened, asked and compared."""

from __future__ import annotations

from collections.abc import Callable

from specllm.app.chat.models import ChatModels
from specllm.app.chat.use_case import Chat
from tests.synthetic import EOS, IM_END

NO_EOG = ((EOS, float("-inf")), (IM_END, float("-inf")))
ENDS = ((EOS, float("-inf")), (IM_END, 6.0))  # every few tokens
MakeModels = Callable[..., ChatModels]


def ask(chat: Chat, message: str, said: list[str] | None = None, **options):
    """Answers to the end; the answer."""
    with chat.ask(message, [].append if said is None else said.append, **options) as answer:
        answer.finish()
    return answer


def again(chat: Chat, models: ChatModels) -> Chat:
    """The same conversation in a fresh process."""
    fresh = Chat(models, system=chat.system, overflow=chat.overflow)
    fresh.replace(chat.system, chat.turns)
    fresh.n_dropped = chat.n_dropped
    return fresh


def is_settled(chat: Chat) -> bool:
    """Whether the cache holds all of the conversation but its last token, which the next forward feeds."""
    session = chat.models.session
    return session.target.n_past == len(session.context) - 1
