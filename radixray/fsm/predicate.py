"""Constraints written in Python: an automaton by hand, or a question about the text so far.

A predicate is one of:

- an object with ``start() -> state``, ``step(state, byte) -> state or None`` (no member continues
  like this), ``final(state) -> bool`` and, if it likes, ``forced(state) -> bytes``. States that can
  be hashed have their masks cached.
- a callable ``(text: str) -> bool``: may the output still begin like this? The output may end
  wherever the answer is yes.

Predicates are code and run in the engine's process, within a time budget for each mask. They come
from programs only, never over HTTP.
"""

from __future__ import annotations

import pickle
import time
from collections.abc import Callable, Hashable
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from radixray.errors import ConstraintError
from radixray.fsm.base_matcher import BaseMatcher
from radixray.fsm.mask_cache import MaskCache
from radixray.fsm.vocabulary import TokenVocabulary

MASK_BUDGET_S = 1.0
"""Default time a predicate may take for one mask."""

MASK_CACHE_BYTES = 16 * 2**20
"""Bound of one predicate's mask cache."""

_CLOCK_EVERY = 64
"""Steps between two looks at the clock."""


class TextState(NamedTuple):
    """Where a TextPredicate is: whole characters, and the beginning of the next."""

    text: str
    pending: bytes = b""


class TextPredicate:
    """A callable over text as a predicate over bytes.

    In the middle of a character the output is as viable as before it, but a token may end there
    only if some character leads on: else the next token would find no way.
    """

    def __init__(self, is_viable: Callable[[str], bool]) -> None:
        self._is_viable = is_viable

    def start(self) -> TextState | None:
        """The empty text."""
        return TextState("") if self._is_viable("") else None

    def step(self, state: TextState, byte: int) -> TextState | None:
        """One byte further."""
        data = state.pending + bytes((byte,))
        if data[0] < 0x80:
            char = chr(byte)
        elif not (needed := _length(data)):
            return None
        elif len(data) < needed:
            return TextState(state.text, data)
        else:
            char = data.decode()
        text = state.text + char
        return TextState(text) if self._is_viable(text) else None

    def final(self, state: TextState) -> bool:
        """Wherever a character ends: only viable texts are states."""
        return not state.pending

    def may_pause(self, state: TextState) -> bool:
        """Whether a token may end here.

        Where one byte of a character is missing, all that can be it are asked about; where more
        are, one for each next byte. A character that would be viable alone among hundreds may
        then be reached only by a token that spells all of it.
        """
        if not state.pending:
            return True
        for byte in range(0x80, 0xC0):
            data = state.pending + bytes((byte,))
            # In the middle of what may follow: the same character as the shorter prefix asks about.
            data += b"\xa0" * (_length(data) - len(data))
            if _length(data) and self._is_viable(state.text + data.decode()):
                return True
        return False


class PredicateConstraint:
    """A predicate made ready for a vocabulary.

    Attributes:
        nbytes: what it takes itself is not known.
    """

    nbytes = 0

    def __init__(
        self, predicate: Any, vocabulary: TokenVocabulary, budget_s: float = MASK_BUDGET_S
    ) -> None:
        """Args: `budget_s` is the time one mask may take.

        Raises:
            ConstraintError: not a predicate, or it does not even allow an empty beginning.
        """
        if not all(callable(getattr(predicate, name, None)) for name in ("start", "step", "final")):
            if not callable(predicate) or isinstance(predicate, type):
                raise ConstraintError(
                    "predicate must be a callable over the text so far, or have start(), step() "
                    f"and final(), not {predicate!r:.80}",
                    param="predicate",
                )
            is_viable: Any = predicate
            predicate = TextPredicate(is_viable)
        self.vocabulary = vocabulary
        self._predicate = predicate
        self._budget_s = budget_s
        self._masks = MaskCache(MASK_CACHE_BYTES, vocabulary.vocab_size)
        self.first = guarded(predicate.start)
        if self.first is None:
            raise ConstraintError("predicate allows no output at all", param="predicate")

    @classmethod
    def unpickle(cls, data: bytes, vocabulary: TokenVocabulary) -> PredicateConstraint:
        """The constraint of a pickled predicate.

        Raises:
            ConstraintError: it cannot be loaded here, or as the class.
        """
        try:
            predicate = pickle.loads(data)
        except Exception as error:
            raise ConstraintError(
                f"predicate cannot be loaded: {error!r}", param="predicate"
            ) from error
        return cls(predicate, vocabulary)

    def matcher(self) -> PredicateMatcher:
        """A new matcher, at the start of an output."""
        return PredicateMatcher(self)

    def mask(self, state: Any) -> NDArray[np.bool_]:
        """bool [vocab_size], read-only: the ids allowed in a state, and EOS where it is final."""
        known = guarded(self._masks.get, state) if guarded(_is_hashable, state) else None
        if known is not None:
            return known
        may_pause = getattr(self._predicate, "may_pause", None)
        if may_pause is not None:
            may_pause = partial(guarded, may_pause)
        mask = self.vocabulary.allowed(self._timed_step(), state, may_pause)
        mask[self.vocabulary.eos_index] = self.final(state)
        if _is_hashable(state):
            guarded(self._masks.put, state, mask)
        mask.flags.writeable = False
        return mask

    def walk(self, state: Any, data: bytes) -> tuple[Any, int]:
        """The state after as many bytes of `data` as may follow, and how many those are."""
        step = self._timed_step()
        for count, byte in enumerate(data):
            following = step(state, byte)
            if following is None:
                return state, count
            state = following
        return state, len(data)

    def final(self, state: Any) -> bool:
        """Whether the output may end here."""
        return bool(guarded(self._predicate.final, state))

    def forced(self, state: Any) -> bytes:
        """What the predicate says must follow."""
        forced = getattr(self._predicate, "forced", None)
        if forced is None or self.final(state):
            return b""
        data = guarded(forced, state)
        if not isinstance(data, bytes):
            raise ConstraintError(
                f"predicate failed: forced() must give bytes, not {data!r:.80}", param="predicate"
            )
        return data[: self.walk(state, data)[1]]

    def _timed_step(self) -> Callable[[Any, int], Any]:
        """The predicate's step, which fails once the budget is spent."""
        step = self._predicate.step
        deadline = time.monotonic() + self._budget_s
        calls = 0

        def timed(state: Any, byte: int) -> Any:
            nonlocal calls
            calls += 1
            if calls % _CLOCK_EVERY == 0 and time.monotonic() > deadline:
                raise ConstraintError(
                    f"predicate took over {self._budget_s:g} s for one mask, after {calls} steps",
                    param="predicate",
                )
            return guarded(step, state, byte)

        return timed


class PredicateMatcher(BaseMatcher):
    """A position in a PredicateConstraint."""

    def __init__(self, constraint: PredicateConstraint) -> None:
        super().__init__(constraint.vocabulary)
        self._constraint = constraint
        self._states = [constraint.first]  # before each token, and now
        self._known: tuple[int, NDArray[np.bool_]] | None = None  # for states without a hash

    def _mask(self) -> NDArray[np.bool_]:
        place = len(self._states)
        if self._known is None or self._known[0] != place:
            self._known = place, self._constraint.mask(self._states[-1])
        mask = self._known[1]
        if not mask.any():
            raise ConstraintError(
                f"predicate: no token is allowed after output token {len(self._tokens)}, and the "
                "output may not end",
                param="predicate",
            )
        return mask

    def _take(self, token_id: int, spelling: bytes) -> bool:
        state, count = self._constraint.walk(self._states[-1], spelling)
        if count < len(spelling):
            return False
        self._states.append(state)
        self._known = None
        return True

    def _undo(self, n: int) -> None:
        del self._states[-n:]
        self._known = None

    def _forced(self) -> bytes:
        return self._constraint.forced(self._states[-1])

    def _viable(self, data: bytes) -> int:
        return self._constraint.walk(self._states[-1], data)[1]

    def is_accepting(self) -> bool:
        """See `Matcher.is_accepting`."""
        return self._constraint.final(self._states[-1])


def guarded(function: Callable[..., Any], *args: Any) -> Any:
    """Calls a part of a predicate; whatever it raises becomes a ConstraintError."""
    try:
        return function(*args)
    except ConstraintError:
        raise
    except (Exception, SystemExit) as error:
        raise ConstraintError(f"predicate failed: {error!r:.300}", param="predicate") from error


def _is_hashable(state: Any) -> bool:
    # A text never comes again: keeping its masks would only push out others.
    if isinstance(state, TextState) or not isinstance(state, Hashable):
        return False
    try:
        hash(state)
    except TypeError:  # a tuple of lists
        return False
    return True


def _length(data: bytes) -> int:
    """Bytes of the character that `data` begins or is; 0 if there is none."""
    first = data[0]
    needed = 2 if 0xC2 <= first <= 0xDF else 3 if 0xE0 <= first <= 0xEF else 4
    if not 0xC2 <= first <= 0xF4 or any(byte & 0xC0 != 0x80 for byte in data[1:]):
        return 0
    if len(data) > 1:
        # Overlong spellings, surrogates, and what lies beyond Unicode.
        low = {0xE0: 0xA0, 0xF0: 0x90}.get(first, 0x80)
        high = {0xED: 0x9F, 0xF4: 0x8F}.get(first, 0xBF)
        if not low <= data[1] <= high:
            return 0
    return needed
