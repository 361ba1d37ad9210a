"""Stop strings over text that comes in pieces."""

from __future__ import annotations

from collections.abc import Sequence


class StopStrings:
    """Lets text through up to the first stop string.

    The first is the one complete earliest, and of several complete at once the longest: so the
    result does not depend on how the text was cut into pieces.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        self._searches = [_Search(stop) for stop in stops]
        self._held = ""
        self._matched: str | None = None

    def push(self, text: str) -> tuple[str, str | None]:
        """The text now safe to emit, and the stop string found, or None.

        Text that may be the beginning of a stop string is held back. After a match nothing more
        is emitted.
        """
        if self._matched is not None:
            return "", self._matched
        if not self._searches:
            return text, None
        pending = self._held + text
        for end, char in enumerate(text, start=len(self._held) + 1):
            found = [search.stop for search in self._searches if search.step(char)]
            if found:
                self._matched = max(found, key=len)
                self._held = ""
                return pending[: end - len(self._matched)], self._matched
        safe = len(pending) - max(search.length for search in self._searches)
        self._held = pending[safe:]
        return pending[:safe], None

    def finish(self) -> str:
        """The text held back, which turned out to begin no stop string."""
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
