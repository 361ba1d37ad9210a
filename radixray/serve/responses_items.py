"""The items of a response as they grow: texts become messages, calls become calls."""

from __future__ import annotations

import secrets
from collections.abc import Iterable

from radixray.serve.responses_protocol import (
    ArgumentsDelta,
    ArgumentsDone,
    Event,
    ItemEvent,
    OutputCall,
    OutputItem,
    OutputMessage,
    OutputText,
    PartEvent,
    TextDelta,
    TextDone,
)
from radixray.serve.tool_calls import CallPiece

ADDED, DONE = "response.output_item.added", "response.output_item.done"
PART_ADDED, PART_DONE = "response.content_part.added", "response.content_part.done"


class ItemWriter:
    """Writes one item after the other, and the events that tell of it.

    Attributes:
        items: those that are complete.
    """

    def __init__(self) -> None:
        self.items: list[OutputItem] = []
        self._open: _OpenText | _OpenCall | None = None

    def write(self, pieces: Iterable[str | CallPiece]) -> list[Event]:
        """The events for pieces of text and of calls."""
        events: list[Event] = []
        for piece in pieces:
            if isinstance(piece, CallPiece):
                if piece.id is not None:
                    events += self.close("completed")
                    events += self._begin(_OpenCall(len(self.items), piece.id, piece.name or ""))
                text = piece.arguments
            else:
                if not isinstance(self._open, _OpenText):
                    events += self.close("completed")
                    events += self._begin(_OpenText(len(self.items)))
                text = piece
            if self._open is not None and text:
                events.append(self._open.add(text))
        return events

    def end(self, status: str) -> list[Event]:
        """The last events; an answer without any item becomes an empty message."""
        events: list[Event] = []
        if not self.items and self._open is None:
            events += self._begin(_OpenText(0))
        return events + self.close(status)

    def close(self, status: str) -> list[Event]:
        """Completes the item that is being written, if one is."""
        writing, self._open = self._open, None
        if writing is None:
            return []
        item = writing.item(status)
        self.items.append(item)
        done = ItemEvent(type=DONE, output_index=writing.index, item=item)
        return [*writing.done(), done]

    def _begin(self, item: _OpenText | _OpenCall) -> list[Event]:
        self._open = item
        return item.added()


class _OpenText:
    """A message being written, of one part."""

    def __init__(self, index: int) -> None:
        self.index = index
        self._id = f"msg_{secrets.token_hex(16)}"
        self._texts: list[str] = []

    def added(self) -> list[Event]:
        item = OutputMessage(self._id, "in_progress", [])
        return [
            ItemEvent(type=ADDED, output_index=self.index, item=item),
            PartEvent(
                type=PART_ADDED, item_id=self._id, output_index=self.index, part=OutputText("")
            ),
        ]

    def add(self, text: str) -> Event:
        self._texts.append(text)
        return TextDelta(item_id=self._id, output_index=self.index, delta=text)

    def done(self) -> list[Event]:
        part = OutputText("".join(self._texts))
        return [
            TextDone(item_id=self._id, output_index=self.index, text=part.text),
            PartEvent(type=PART_DONE, item_id=self._id, output_index=self.index, part=part),
        ]

    def item(self, status: str) -> OutputMessage:
        return OutputMessage(self._id, status, [OutputText("".join(self._texts))])


class _OpenCall:
    """A call being written."""

    def __init__(self, index: int, call_id: str, name: str) -> None:
        self.index = index
        self._id = f"fc_{secrets.token_hex(16)}"
        self._call_id = call_id
        self._name = name
        self._arguments: list[str] = []

    def added(self) -> list[Event]:
        return [ItemEvent(type=ADDED, output_index=self.index, item=self.item("in_progress"))]

    def add(self, text: str) -> Event:
        self._arguments.append(text)
        return ArgumentsDelta(item_id=self._id, output_index=self.index, delta=text)

    def done(self) -> list[Event]:
        arguments = "".join(self._arguments)
        return [
            ArgumentsDone(
                item_id=self._id, output_index=self.index, name=self._name, arguments=arguments
            )
        ]

    def item(self, status: str) -> OutputCall:
        return OutputCall(self._id, status, self._call_id, self._name, "".join(self._arguments))
