"""Stops in text that comes in pieces."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol


class StopSearch(Protocol):
    """Looks for one kind of stop, a character at a time.

    Attributes:
        length: how many of the last characters a stop may begin with; once found, its length.
    """

    length: int

    def step(self, char: str) -> bool:
        """Reads one character; True when a stop is complete."""
        ...


class StopStrings:
    """Lets text through up to the first stop.

    The first is the one complete earliest, and of several complete at once the longest: so the
    result does not depend on how the text was cut into pieces.

    Args:
        stops: strings to look for.
        searches: for other kinds of stops.
    """

    def __init__(self, stops: Sequence[str], searches: Sequence[StopSearch] = ()) -> None:
        self._searches: list[StopSearch] = [*map(_Search, stops), *searches]
        self._held = ""
        self._matched: str | None = None

    def push(self, text: str) -> tuple[str, str | None]:
        """The text now safe to emit, and the stop found, or None.

        Text that may be the beginning of a stop is held back. After a match nothing more is
        emitted.
        """
        if self._matched is not None:
            return "", self._matched
        if not self._searches:
            return text, None
        pending = self._held + text
        for end, char in enumerate(text, start=len(self._held) + 1):
            found = [search.length for search in self._searches if search.step(char)]
            if found:
                begin = end - max(found)
                self._matched = pending[begin:end]
                self._held = ""
                return pending[:begin], self._matched
        safe = len(pending) - max(search.length for search in self._searches)
        self._held = pending[safe:]
        return pending[:safe], None

    def finish(self) -> str:
        """The text held back, which turned out to begin no stop."""
        held, self._held = self._held, ""
        return held


class _Search:
    """Knuth, Morris and Pratt's search for one string, a character at a time.

    Attributes:
        stop: the string.
        length: how much of its beginning the text read so far ends in.
    """

    def __init__(self, stop: str) -> None:
        self.stop = stop
        self.length = 0
        # _shorter[n]: the longest proper beginning of stop[:n] that also ends it.
        self._shorter = [0, 0]
        for char in stop[1:]:
            self._shorter.append(self._extend(self._shorter[-1], char))

    def step(self, char: str) -> bool:
        """Reads one character; True when the string is complete."""
        self.length = self._extend(self.length, char)
        return self.length == len(self.stop)

    def _extend(self, length: int, char: str) -> int:
        while length and self.stop[length] != char:
            length = self._shorter[length]
        return length + 1 if self.stop[length] == char else 0
