"""What every kind of constraint offers the engine, whatever it is compiled from."""

from __future__ import annotations

from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from radixray.constraint import TraceStep
from radixray.fsm.vocabulary import TokenVocabulary


class Matcher(Protocol):
    """Follows the output of one request; not safe for use by several threads at once.

    Every method may raise ConstraintError where the constraint itself fails: a predicate raises
    or takes too long, a library gives up. The request cannot go on then.

    Attributes:
        vocabulary: whose ids it takes.
    """

    vocabulary: TokenVocabulary

    def mask(self) -> NDArray[np.bool_]:
        """bool [vocab_size], read-only: the ids that may come next.

        These are the tokens that keep the output a prefix of some member of the language, and the
        EOS ids exactly when it is a member. After an EOS id nothing is allowed.

        Raises:
            ConstraintError: nothing is allowed although the output is not a member: a dead end.
                Cannot happen with `regex` and `choices`.
        """
        ...

    def advance(self, token_id: int, *, forced: bool = False) -> None:
        """Takes a token.

        Args:
            forced: for the trace: whether it was taken without asking the model.

        Raises:
            ConstraintError: the token is not allowed here; the matcher stays as it was.
        """
        ...

    def forced(self) -> bytes:
        """The bytes that must follow from here; b"" if there is a choice or the output may end.

        May end inside a UTF-8 character. Nothing is advanced.
        """
        ...

    def viable(self, data: bytes) -> int:
        """How many leading bytes of `data` may follow the output, whatever tokens spell them.

        All of them if the output and `data` are a prefix of some member of the language. Nothing
        is advanced.
        """
        ...

    def rollback(self, n: int) -> None:
        """Undoes the last `n` tokens.

        Raises:
            ValueError: fewer than `n` tokens were taken, or `n` is negative.
        """
        ...

    def is_accepting(self) -> bool:
        """Whether the output so far is a member of the language."""
        ...

    def is_finished(self) -> bool:
        """Whether the output is a member and nothing can follow, or an EOS id was taken."""
        ...

    def trace(self) -> list[TraceStep]:
        """What was taken so far; costs a mask for each token."""
        ...


class CompiledConstraint(Protocol):
    """A constraint made ready for one vocabulary; shared by requests and threads.

    Attributes:
        nbytes: about how much memory it takes, its masks apart.
    """

    nbytes: int

    def matcher(self) -> Matcher:
        """A new matcher, at the start of an output."""
        ...
