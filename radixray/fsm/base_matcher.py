"""What all matchers do alike: the end of the output, rollback, messages, the trace."""

from __future__ import annotations

from abc import ABC, abstractmethod

import numpy as np
from numpy.typing import NDArray

from radixray.constraint import TraceStep
from radixray.errors import ConstraintError
from radixray.fsm.vocabulary import TokenVocabulary

FIRST_ALLOWED = 10
"""Allowed ids that a trace names in each step."""


class BaseMatcher(ABC):
    """A `matcher.Matcher` but for the language itself, which a subclass knows.

    Attributes:
        vocabulary: whose ids it takes.
    """

    def __init__(self, vocabulary: TokenVocabulary) -> None:
        self.vocabulary = vocabulary
        self._tokens: list[int] = []
        self._jumped: list[bool] = []
        self._ended = False

    # What a subclass provides; none of these is called once an EOS id was taken.

    @abstractmethod
    def _mask(self) -> NDArray[np.bool_]:
        """See `Matcher.mask`."""

    @abstractmethod
    def _take(self, token_id: int, spelling: bytes) -> bool:
        """Moves on by a token that spells something; False, and nothing moved, if it may not."""

    @abstractmethod
    def _undo(self, n: int) -> None:
        """Moves back by n > 0 tokens."""

    @abstractmethod
    def _forced(self) -> bytes:
        """See `Matcher.forced`."""

    @abstractmethod
    def _viable(self, data: bytes) -> int:
        """See `Matcher.viable`."""

    @abstractmethod
    def is_accepting(self) -> bool:
        """See `Matcher.is_accepting`."""

    def _continues(self) -> bool:
        """Whether any token other than EOS is allowed; asked where the output is a member."""
        mask = self._mask()
        return int(mask.sum()) > int(mask[self.vocabulary.eos_index].sum())

    def _state(self) -> int:
        """A number for where it is, for the trace."""
        return len(self._tokens)

    # The protocol.

    def mask(self) -> NDArray[np.bool_]:
        """See `Matcher.mask`."""
        return self.vocabulary.no_ids if self._ended else self._mask()

    def advance(self, token_id: int, *, forced: bool = False) -> None:
        """See `Matcher.advance`."""
        if self._ended:
            raise ConstraintError(f"token {token_id} follows the end of a constrained output")
        if token_id in self.vocabulary.eos_token_ids:
            if not self.is_accepting():
                raise ConstraintError(
                    f"EOS id {token_id} at output token {len(self._tokens)}: the output does not "
                    "match its constraint yet"
                )
            self._ended = True
        else:
            spelling = self.vocabulary.bytes_of(token_id)
            if not spelling or not self._take(token_id, spelling):
                raise ConstraintError(
                    f"token {token_id} ({spelling!r}) at output token {len(self._tokens)} is not "
                    "allowed by the constraint"
                )
        self._tokens.append(token_id)
        self._jumped.append(forced)

    def forced(self) -> bytes:
        """See `Matcher.forced`."""
        return b"" if self._ended else self._forced()

    def viable(self, data: bytes) -> int:
        """See `Matcher.viable`."""
        return 0 if self._ended or not data else self._viable(data)

    def rollback(self, n: int) -> None:
        """See `Matcher.rollback`."""
        if not 0 <= n <= len(self._tokens):
            raise ValueError(f"cannot roll back {n} of {len(self._tokens)} tokens")
        if n:
            moves = n - self._ended  # an EOS id moved nothing
            self._ended = False
            if moves:
                self._undo(moves)
            del self._tokens[-n:]
            del self._jumped[-n:]

    def is_finished(self) -> bool:
        """See `Matcher.is_finished`."""
        return self._ended or (self.is_accepting() and not self._continues())

    def trace(self) -> list[TraceStep]:
        """See `Matcher.trace`."""
        # Taken again rather than noted on the way: most outputs are never looked at.
        tokens, jumped = self._tokens.copy(), self._jumped.copy()
        self.rollback(len(tokens))
        steps: list[TraceStep] = []
        for step, (token_id, forced) in enumerate(zip(tokens, jumped, strict=True)):
            allowed = np.flatnonzero(self.mask())
            steps.append(
                TraceStep(
                    step=step,
                    state=self._state(),
                    token=token_id,
                    text=self.vocabulary.bytes_of(token_id).decode(errors="backslashreplace"),
                    allowed=len(allowed),
                    first_allowed=tuple(map(int, allowed[:FIRST_ALLOWED])),
                    forced=forced,
                    why=self._why(token_id, forced, len(allowed)),
                )
            )
            self.advance(token_id, forced=forced)
        return steps

    def _why(self, token_id: int, forced: bool, allowed: int) -> str:
        if token_id in self.vocabulary.eos_token_ids:
            return "ends the output, which matches"
        if forced:
            return f"forced: only {_shown(self._forced())} can follow"
        if allowed == 1:
            return "the only token allowed"
        return f"chosen by the model out of {allowed}"


def _shown(data: bytes) -> str:
    text = data.decode(errors="backslashreplace")
    return repr(text if len(text) <= 60 else text[:57] + "...")
