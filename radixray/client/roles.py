"""Which role of a chat is open in a state."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from radixray.client.chat import Transcript
from radixray.client.expressions import nested_role_error
from radixray.client.op_queue import OpQueue
from radixray.errors import InvalidRequestError


class Roles:
    """The roles of one state: one open at a time, begun and ended as operations.

    Attributes:
        open: the open role, or None.
    """

    def __init__(
        self, queue: OpQueue, transcript: Callable[[], Transcript], inherited: str | None
    ) -> None:
        self.open = inherited
        self._inherited = inherited is not None
        self._queue = queue
        self._transcript = transcript

    @contextmanager
    def within(self, role: str) -> Iterator[None]:
        """The role is open inside, and closed after an exception, too; raises as `begin`."""
        self.begin(role)
        try:
            yield
        finally:
            # Nothing is open where the body ended it by itself.
            self._close()

    def begin(self, role: str) -> None:
        """Opens `role`.

        Raises:
            InvalidRequestError: another one is open.
        """
        if self.open is not None and not self._inherited:
            raise nested_role_error(role, self.open)
        # One that was open where this branch was forked off: only the next message can end it.
        self._close()
        self.open = role
        self._queue.do(f"{role} role", lambda: self._transcript().open_role(role))

    def end(self, role: str) -> None:
        """Closes `role`.

        Raises:
            InvalidRequestError: it is not open.
        """
        if self.open != role:
            state = f"role {self.open!r} is" if self.open else "none is"
            raise InvalidRequestError(f"role {role!r} ends, but {state} open", param="role")
        self._close()

    def _close(self) -> None:
        if (role := self.open) is not None:
            self.open, self._inherited = None, False
            self._queue.do(f"{role} role", lambda: self._transcript().close_role())
