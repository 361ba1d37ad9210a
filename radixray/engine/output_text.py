"""The text of one output, as its tokens come."""

from __future__ import annotations

from collections.abc import Sequence

from radixray.fsm.stop_regex import StopRegex
from radixray.tokenizer.detokenizer import IncrementalDetokenizer
from radixray.tokenizer.stop import StopStrings
from radixray.tokenizer.tokenizer import Tokenizer


class OutputText:
    """Detokenises, and ends the text at the first stop.

    Tokens are only noted as they come, and read when the text is wanted, which may be while the
    model computes the next token. Only where there are stops to be found, on which the next step
    depends, are they read at once.

    Args:
        tokenizer: of the model.
        stop: strings that end the text.
        stop_regex: patterns of what does.

    Raises:
        ConstraintError: a pattern is none.
    """

    def __init__(
        self, tokenizer: Tokenizer, stop: Sequence[str], stop_regex: Sequence[str] = ()
    ) -> None:
        self._detokenizer = IncrementalDetokenizer(tokenizer)
        self._stops = StopStrings(stop, [StopRegex(pattern) for pattern in stop_regex])
        self._look_at_once = bool(stop or stop_regex)
        self._unread: list[int] = []
        self._ready = ""
        self._ended = False

    def add(self, token: int, may_stop: bool = True) -> str | None:
        """Takes a token; the stop it completes, or None.

        Args:
            may_stop: False lets its text through unseen.
        """
        self._unread.append(token)
        if not self._look_at_once:
            return None
        if not may_stop:
            self._ready += self._detokenizer.push(self._unread)
            self._unread.clear()
            return None
        return self._read()

    def end(self) -> str | None:
        """No more tokens come: what was held back is text now. The stop it completes."""
        self._ended = True
        return self._read() if self._look_at_once else None

    def take(self) -> str:
        """The text that became certain since the last call."""
        self._read()
        text, self._ready = self._ready, ""
        return text

    def _read(self) -> str | None:
        text = self._detokenizer.push(self._unread) if self._unread else ""
        self._unread.clear()
        if self._ended:
            text += self._detokenizer.finish()
        safe, stop = self._stops.push(text)
        self._ready += safe
        if self._ended and stop is None:
            # It turned out to be no stop.
            self._ready += self._stops.finish()
        return stop
