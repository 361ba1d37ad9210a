"""Chats as one text and back, for endpoints that are sent messages and never say their template.

The markup is made of code points that Unicode keeps free of any character, so no text holds them;
one that does is refused.
"""

from __future__ import annotations

from dataclasses import dataclass

from radixray.errors import InvalidRequestError, UnsupportedFeatureError
from radixray.tokenizer.chat_template import ChatTemplate

BEGIN, BODY, END = "\ufdd0", "\ufdd1", "\ufdd2"

_SOURCE = (
    "{%- for message in messages -%}"
    f"{BEGIN}{{{{ message.role }}}}{BODY}{{{{ message.content }}}}{END}"
    "{%- endfor -%}"
    f"{{%- if add_generation_prompt -%}}{BEGIN}assistant{BODY}{{%- endif -%}}"
)


class MessageMarkup(ChatTemplate):
    """The template whose texts `read_chat` reads."""

    def __init__(self) -> None:
        super().__init__(_SOURCE, {})

    def check(self, text: str) -> None:
        """Raises InvalidRequestError: `text` holds the markup's own code points."""
        if any(mark in text for mark in (BEGIN, BODY, END)):
            raise InvalidRequestError(
                "text must not hold the code points U+FDD0 to U+FDD2, which are no characters",
                param="text",
            )


@dataclass(frozen=True)
class Chat:
    """What a chat endpoint is to go on from.

    Attributes:
        messages: those that have ended.
        begun: what the assistant's message begins with already.
    """

    messages: list[dict[str, str]]
    begun: str


def read_chat(text: str) -> Chat:
    """The chat that a text with markup is.

    Raises:
        UnsupportedFeatureError: there is text outside of roles, or it does not end within an
            assistant's message.
    """
    outside, *pieces = text.split(BEGIN)
    messages: list[dict[str, str]] = []
    open_: dict[str, str] | None = None
    for piece in pieces:
        role, _, rest = piece.partition(BODY)
        content, ended, after = rest.partition(END)
        outside += after
        open_ = {"role": role, "content": content}
        if ended:
            messages.append(open_)
            open_ = None
    if outside:
        raise UnsupportedFeatureError(
            f"a chat endpoint takes messages only: {outside!r:.80} stands in no role; put it in "
            f"one, or use api='completions'",
            param="api",
        )
    if open_ is None or open_["role"] != "assistant":
        where = "outside of roles" if open_ is None else f"in role {open_['role']!r}"
        raise UnsupportedFeatureError(
            f"a chat endpoint generates in the assistant's role only, not {where}", param="role"
        )
    return Chat(messages, open_["content"])
