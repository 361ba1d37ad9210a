"""Two constraints at once: the output is a member of both languages."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from radixray.errors import ConstraintError
from radixray.fsm.base_matcher import BaseMatcher
from radixray.fsm.matcher import CompiledConstraint, Matcher
from radixray.fsm.vocabulary import TokenVocabulary


class ProductConstraint:
    """The intersection of two compiled constraints of one vocabulary; more by nesting."""

    def __init__(
        self, first: CompiledConstraint, second: CompiledConstraint, vocabulary: TokenVocabulary
    ) -> None:
        self._first = first
        self._second = second
        self._vocabulary = vocabulary
        self.nbytes = first.nbytes + second.nbytes

    def matcher(self) -> ProductMatcher:
        """A new matcher, at the start of an output."""
        return ProductMatcher(self._first.matcher(), self._second.matcher(), self._vocabulary)


class ProductMatcher(BaseMatcher):
    """Two matchers that move together.

    A token is allowed if both allow it. Each by itself can be completed from there, but perhaps not
    both in the same way: then a dead end may follow, which `mask` reports.
    """

    def __init__(self, first: Matcher, second: Matcher, vocabulary: TokenVocabulary) -> None:
        """Args: `first` and `second` are at the start, or after the same output."""
        super().__init__(vocabulary)
        self._both = first, second
        self._known_mask: NDArray[np.bool_] | None = None

    def _mask(self) -> NDArray[np.bool_]:
        if self._known_mask is None:
            first, second = self._both
            mask = first.mask() & second.mask()
            if not mask.any():
                raise ConstraintError(
                    "the two constraints have no token in common after output token "
                    f"{len(self._tokens)}"
                )
            mask.flags.writeable = False
            self._known_mask = mask
        return self._known_mask

    def _take(self, token_id: int, spelling: bytes) -> bool:
        first, second = self._both
        if min(first.viable(spelling), second.viable(spelling)) < len(spelling):
            return False
        try:
            first.advance(token_id)
        except ConstraintError:  # the bytes are allowed, but no tokens go on from there
            return False
        try:
            second.advance(token_id)
        except ConstraintError:
            first.rollback(1)
            return False
        self._known_mask = None
        return True

    def _undo(self, n: int) -> None:
        for matcher in self._both:
            matcher.rollback(n)
        self._known_mask = None

    def _forced(self) -> bytes:
        first, second = self._both
        # What one forces the other must take; where they differ is a dead end.
        forced = max(first.forced(), second.forced(), key=len)
        return forced[: min(first.viable(forced), second.viable(forced))]

    def _viable(self, data: bytes) -> int:
        return min(matcher.viable(data) for matcher in self._both)

    def is_accepting(self) -> bool:
        """See `Matcher.is_accepting`."""
        return all(matcher.is_accepting() for matcher in self._both)
