"""Tool calls in what a model writes, as it writes.

The format is that of Hermes, Qwen and SmolLM2: ``<tool_call>`` and ``</tool_call>`` around a call
``{"name": ..., "arguments": {...}}``, or around an array of calls.
"""

from __future__ import annotations

import json
import re
import secrets
from dataclasses import dataclass

OPEN, CLOSE = "<tool_call>", "</tool_call>"

_SURELY_A_TAG = len("<tool")
"""A tag that the end of the output cuts off is dropped from so many characters on."""
_HEAD = re.compile(r'\{\s*"name"\s*:\s*"([^"\\]*)"\s*,\s*"(?:arguments|parameters)"\s*:\s*(?=\{)')
_BETWEEN_CALLS = " \t\r\n[],"


@dataclass(frozen=True)
class CallPiece:
    """A piece of a call; the first one has `id` and `name`. The `arguments` join to JSON text."""

    index: int
    arguments: str
    id: str | None = None
    name: str | None = None


class ToolCallParser:
    """Tells text from calls; the pieces do not depend on how the text was cut.

    No tag is ever part of the text. A block that holds no call is text, without its tags; a call
    that the end of the output cuts off before its arguments is dropped.

    Args:
        inside: the output begins inside of a block.
        max_calls: further ones are dropped.
    """

    def __init__(self, *, inside: bool, max_calls: int) -> None:
        self.calls = 0
        self._max_calls = max_calls
        self._step = self._between if inside else self._outside
        self._buffer = ""
        self._call = _Call()
        self._pieces: list[str | CallPiece] = []

    def push(self, text: str) -> list[str | CallPiece]:
        """Text and pieces of calls that became certain with `text`."""
        self._buffer += text
        while self._buffer and self._step():
            pass
        pieces, self._pieces = self._pieces, []
        return pieces

    def finish(self) -> list[str | CallPiece]:
        """What was held back; call once, after the last `push`."""
        held, self._buffer = self._buffer, ""
        if self._step == self._outside:
            tag = _cut_tag(held, OPEN)
            held = held[:tag].rstrip() if len(held) - tag >= _SURELY_A_TAG else held
            return [held] if held and not (self.calls and held.isspace()) else []
        if self._step == self._not_a_call and _cut_tag(held, CLOSE) > 0:
            return [held]
        return []

    # Each step takes from the buffer; False where it needs more text.

    def _outside(self) -> bool:
        before, tag, rest = self._buffer.partition(OPEN)
        if tag:
            self._say(before.rstrip())
            self._buffer, self._step = rest, self._between
            return True
        # Whitespace before a tag belongs to the tag.
        certain = len(self._buffer[: _cut_tag(self._buffer, OPEN)].rstrip())
        self._say(self._buffer[:certain])
        self._buffer = self._buffer[certain:]
        return False

    def _between(self) -> bool:
        self._buffer = self._buffer.lstrip(_BETWEEN_CALLS)
        if self._buffer.startswith(CLOSE):
            self._buffer, self._step = self._buffer[len(CLOSE) :], self._outside
        elif self._buffer.startswith("{"):
            self._call, self._step = _Call(), self._in_call
        elif CLOSE.startswith(self._buffer):
            return False
        else:
            self._step = self._not_a_call
        return True

    def _in_call(self) -> bool:
        call = self._call
        taken = call.take(self._buffer)
        self._buffer = self._buffer[taken:]
        if call.name is not None and call.index is None:
            call.index = self.calls
            if call.index < self._max_calls:
                self.calls += 1
            self._tell(CallPiece(call.index, "", f"call_{secrets.token_hex(12)}", call.name))
        if call.index is not None and call.news:
            self._tell(CallPiece(call.index, call.news))
        if not call.ended:
            return False
        if call.index is None:
            self._say(call.text)
        self._step = self._between
        return True

    def _not_a_call(self) -> bool:
        text, tag, rest = self._buffer.partition(CLOSE)
        if tag:
            self._say(text)
            self._buffer, self._step = rest, self._outside
            return True
        certain = _cut_tag(self._buffer, CLOSE)
        self._say(self._buffer[:certain])
        self._buffer = self._buffer[certain:]
        return False

    def _say(self, text: str) -> None:
        if text:
            self._pieces.append(text)

    def _tell(self, piece: CallPiece) -> None:
        if piece.index < self._max_calls:
            self._pieces.append(piece)


class _Call:
    """A call being read.

    Attributes:
        index: its number, once it is told.
        name: once it is known.
        news: what the last text added to its arguments.
        ended: nothing more belongs to it.
    """

    def __init__(self) -> None:
        self.text = ""
        self.index: int | None = None
        self.name: str | None = None
        self.news = ""
        self._object = _Extent()
        self._arguments = _Extent()

    @property
    def ended(self) -> bool:
        return self._object.ended

    def take(self, text: str) -> int:
        """Reads on; the number of characters that belong to the call."""
        taken = self._object.take(text)
        new = text[:taken]
        self.text += new
        if self.name is None and (head := _HEAD.match(self.text)):
            self.name = head[1]
            new = self.text[head.end() :]
        if self.name is not None:
            self.news = new[: self._arguments.take(new)]
        elif self.ended:
            self._read_whole()
        return taken

    def _read_whole(self) -> None:
        # Its keys come in another order, or its arguments as JSON inside a string.
        try:
            call = json.loads(self.text, strict=False)
        except (ValueError, RecursionError):
            return
        name = call.get("name")
        arguments = call.get("arguments", call.get("parameters", {}))
        if isinstance(name, str):
            self.name = name
            whole = isinstance(arguments, str)
            self.news = arguments if whole else json.dumps(arguments, ensure_ascii=False)


class _Extent:
    """How far a JSON object reaches. Where it is broken, it ends before a tag at the latest."""

    def __init__(self) -> None:
        self.ended = False
        self._depth = 0
        self._in_string = False
        self._escaped = False

    def take(self, text: str) -> int:
        """Reads on; the number of characters that belong to the object."""
        for i, char in enumerate(text):
            if self.ended:
                return i
            if self._in_string:
                if self._escaped:
                    self._escaped = False
                elif char == "\\":
                    self._escaped = True
                elif char == '"':
                    self._in_string = False
            elif char == '"':
                self._in_string = True
            elif char in "{[":
                self._depth += 1
            elif char in "}]":
                self._depth -= 1
                self.ended = self._depth == 0
            elif char == "<":
                self.ended = True
                return i
        return len(text)


def _cut_tag(text: str, tag: str) -> int:
    """Where the longest ending of `text` that begins `tag` starts."""
    sizes = range(min(len(tag) - 1, len(text)), 0, -1)
    return len(text) - next((size for size in sizes if tag.startswith(text[-size:])), 0)
