"""Roles: messages, and the text that the model's chat template makes of them.

The template is asked for the whole conversation each time, and must only ever add to what it said
before: the difference is the new message's text. A message that is generated into cannot wait for
its end, so its beginning and end are found by rendering a marker in place of its content.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import msgspec

from radixray.client.content import Content, SavedContent
from radixray.client.images import Picture
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
        images: the `sha256` of those in it.
    """

    role: str
    unwritten: str = ""
    footer: str | None = None
    start: int = 0
    images: tuple[str, ...] = ()


class SavedTranscript(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A `Transcript` as data; the fields are its attributes."""

    content: SavedContent
    messages: list[dict[str, Any]]
    rendered: str
    open: _OpenMessage | None
    pictures: list[Picture]


class Transcript:
    """What a state holds: content, and the messages it is made of."""

    def __init__(self, template: ChatTemplate, content: Content) -> None:
        self.content = content
        self._template = template
        self._messages: list[dict[str, Any]] = []
        self._rendered = ""
        self._open: _OpenMessage | None = None
        self._scopes: list[list[str]] = []
        self._pictures: list[Picture] = []

    def copy(self) -> Transcript:
        """An independent copy, in which no scope is open."""
        other = Transcript(self._template, self.content.copy())
        other._messages = self._messages.copy()
        other._rendered = self._rendered
        other._open = replace(self._open) if self._open else None
        other._pictures = self._pictures.copy()
        return other

    def save(self) -> SavedTranscript:
        """As data, without its scopes."""
        return SavedTranscript(
            self.content.save(),
            [dict(message) for message in self._messages],
            self._rendered,
            replace(self._open) if self._open else None,
            self._pictures.copy(),
        )

    @classmethod
    def restored(
        cls, template: ChatTemplate, content: Content, saved: SavedTranscript
    ) -> Transcript:
        """The transcript again, under the same template."""
        transcript = cls(template, content)
        transcript._messages = [dict(message) for message in saved.messages]
        transcript._rendered = saved.rendered
        transcript._open = replace(saved.open) if saved.open else None
        transcript._pictures = list(saved.pictures)
        return transcript

    def become(self, other: Transcript, said: str) -> None:
        """Goes on from a copy of `other`, which since the fork has said `said`."""
        self._tell_scopes(said)
        copy = other.copy()
        self.content, self._messages = copy.content, copy._messages
        self._rendered, self._open = copy._rendered, copy._open
        self._pictures = copy._pictures

    @property
    def complete_messages(self) -> int:
        """How many messages have ended."""
        return len(self._messages)

    def messages(self) -> list[dict[str, Any]]:
        """The messages so far, the open one included."""
        last = [] if self._open is None else [self._message_of(self._open)]
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
        self._messages.append(self._message_of(message))
        rendered = self._template.render(self._messages, False)
        added = self._added(rendered)
        self.content.add_text(added if message.footer is None else message.footer, template=True)
        self._rendered = rendered

    def open_scope(self, scope: list[str]) -> None:
        """From now on `scope` gets what is said, by text or by a request, template aside."""
        self._scopes.append(scope)

    def in_scope(self, *, besides: list[str]) -> bool:
        """Whether a scope other than `besides` is open."""
        return any(scope is not besides for scope in self._scopes)

    def close_scope(self, scope: list[str]) -> str:
        """Ends what `open_scope` began; what was said."""
        self._scopes = [open_ for open_ in self._scopes if open_ is not scope]
        return "".join(scope)

    def add_text(self, text: str) -> None:
        """Appends text, to the open message where there is one; raises as `ChatTemplate.check`."""
        self._template.check(text)
        self._tell_scopes(text)
        self._write(text)

    def add_image(self, picture: Picture, placeholder: str) -> None:
        """Appends an image, in place of which the prompt has `placeholder`.

        Nothing is said by it: what a variable holds can be appended where the image is not.
        """
        self._pictures.append(picture)
        if self._open is not None:
            self._open.images += (picture.image.sha256,)
        self._write(placeholder)

    @property
    def num_images(self) -> int:
        """How many images it holds."""
        return len(self._pictures)

    def request_images(self) -> dict[str, Any]:
        """The fields of a request that carry its images, the bytes of equal ones once."""
        if not self._pictures:
            return {}
        return {
            "images": tuple(picture.image for picture in self._pictures),
            "image_data": {picture.image.sha256: picture.data for picture in self._pictures},
        }

    def _write(self, text: str) -> None:
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

    def _message_of(self, message: _OpenMessage) -> dict[str, Any]:
        images = {"images": list(message.images)} if message.images else {}
        return {"role": message.role, "content": self._content_of(message), **images}

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
