"""Where each session's last request went."""

from __future__ import annotations

from collections import OrderedDict

MAX_SESSIONS = 65_536
"""Of more, the one that has rested longest is forgotten."""


class Sessions:
    """An actor's number for each session heard of lately."""

    def __init__(self) -> None:
        self._actors: OrderedDict[str, int] = OrderedDict()

    def __len__(self) -> int:
        return len(self._actors)

    def actor_of(self, session: str) -> int | None:
        """Where its last request went; None where that is not known."""
        return self._actors.get(session)

    def went(self, session: str, actor: int) -> None:
        """A request of the session went to `actor`."""
        self._actors[session] = actor
        self._actors.move_to_end(session)
        if len(self._actors) > MAX_SESSIONS:
            self._actors.popitem(last=False)
