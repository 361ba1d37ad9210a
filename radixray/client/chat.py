"""Roles: messages, and the text that the model's chat template makes of them.

The template is asked for the whole conversation each time, and must only ever add to what it said
before: the difference is the new message's text. A message that is generated into cannot wait for
its end, so its beginning and end are found by rendering a marker in place of its content.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from radixray.client.content import Content
from radixray.errors import TemplateError
from radixray.tokenizer.chat_template import ChatTemplate

_MARKER = "RadixRayMessageContent"


@dataclass
class _OpenMessage:
    """A message being written.

    Attributes:
        unwritten: its text so far, until its beginning is written, which happens when the first
            generation needs it.
        footer: what closes it; None until then.
        start: where its text begins in the transcript's; from then on.
    """

    role: str
    unwritten: str = ""
    footer: str | None = None
    start: int = 0


class Transcript:
    """What a state holds: content, and the messages it is made of."""

    def __init__(self, template: ChatTemplate, content: Content) -> None:
        self.content = content
        self._template = template
        self._messages: list[dict[str, Any]] = []
        self._rendered = ""
        self._open: _OpenMessage | None = None
        self._scopes: list[list[str]] = []

    def copy(self) -> Transcript:
        """An independent copy, in which no scope is open."""
        other = Transcript(self._template, self.content.copy())
        other._messages = self._messages.copy()
        other._rendered = self._rendered
        other._open = replace(self._open) if self._open else None
        return other

    def become(self, other: Transcript, said: str) -> None:
        """Goes on from a copy of `other`, which since the fork has said `said`."""
        self._tell_scopes(said)
        copy = other.copy()
        self.content, self._messages = copy.content, copy._messages
        self._rendered, self._open = copy._rendered, copy._open

    @property
    def complete_messages(self) -> int:
        """How many messages have ended."""
        return len(self._messages)

    def messages(self) -> list[dict[str, Any]]:
        """The messages so far, the open one included."""
        open_ = self._open
        last = [] if open_ is None else [{"role": open_.role, "content": self._content_of(open_)}]
        return [dict(message) for message in self._messages] + last

    def open_role(self, role: str) -> None:
        """Begins a message."""
        self._open = _OpenMessage(role)

    def close_role(self) -> None:
        """Ends the open message.

        Raises:
            TemplateError: the template fails, or changes what it said of earlier messages.
        """
        message, self._open = self._open, None
        assert message is not None
        self._messages.append({"role": message.role, "content": self._content_of(message)})
        rendered = self._template.render(self._messages, False)
        added = self._added(rendered)
        self.content.add_text(added if message.footer is None else message.footer, template=True)
        self._rendered = rendered

    def open_scope(self, scope: list[str]) -> None:
        """From now on `scope` gets what is said, by text or by a request, template aside."""
        self._scopes.append(scope)

    def close_scope(self, scope: list[str]) -> str:
        """Ends what `open_scope` began; what was said."""
        self._scopes = [open_ for open_ in self._scopes if open_ is not scope]
        return "".join(scope)

    def add_text(self, text: str) -> None:
        """Appends text, to the open message where there is one."""
        self._tell_scopes(text)
        if self._open is None:
            self.content.add_text(text)
            return
        if self._open.footer is None:
            self._open.unwritten += text
        else:
            self.content.add_text(text, template=True)

    def prompt_ids(self) -> list[int]:
        """The tokens a request continues from.

        Raises:
            TemplateError: as `close_role`.
        """
        message = self._open
        if message is not None and message.footer is None:
            header, message.footer = self._frame(message.role)
            self.content.add_text(header, template=True)
            message.start = len(self.content.text)
            self.content.add_text(message.unwritten, template=True)
        return self.content.prompt_ids()

    def add_output(
        self,
        prompt_ids: list[int],
        token_ids: list[int],
        text: str,
        *,
        cut: bool = False,
        skip: int = 0,
    ) -> None:
        """Appends a request's output, as `Content.add_output`."""
        self._tell_scopes(text[skip:])
        self.content.add_output(prompt_ids, token_ids, text, cut=cut, skip=skip)

    def _tell_scopes(self, text: str) -> None:
        for scope in self._scopes:
            scope.append(text)

    def _content_of(self, message: _OpenMessage) -> str:
        written = message.footer is not None
        return self.content.text[message.start :] if written else message.unwritten

    def _frame(self, role: str) -> tuple[str, str]:
        """What comes before and after the content of the next message."""
        marked = [*self._messages, {"role": role, "content": _MARKER}]
        header, found, footer = self._added(self._template.render(marked, False)).partition(_MARKER)
        if not found or _MARKER in footer:
            raise TemplateError(
                f"the chat template does not show a {role} message's content once, so nothing can "
                f"be generated into it"
            )
        # The first message's rendering may hold a default system message, which the opening of
        # an answer to nothing would lack.
        if role == "assistant" and self._messages:
            header = self._added(self._template.render(self._messages, True))
        return header, footer

    def _added(self, rendered: str) -> str:
        if not rendered.startswith(self._rendered):
            raise TemplateError(
                "the chat template rewrites history: with a message added, earlier ones read "
                "differently"
            )
        return rendered[len(self._rendered) :]
