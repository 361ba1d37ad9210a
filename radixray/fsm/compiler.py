"""From a request's `Constraint` to a compiled one, with the recent ones kept."""

from __future__ import annotations

from collections import OrderedDict
from threading import Lock

from radixray.errors import ConstraintError
from radixray.fsm.matcher import CompiledConstraint
from radixray.fsm.regex_constraint import RegexConstraint
from radixray.fsm.vocabulary import TokenVocabulary
from radixray.protocol import Constraint

MAX_CONSTRAINTS = 64
"""Default number of compiled constraints a compiler keeps."""


def compile_constraint(constraint: Constraint, vocabulary: TokenVocabulary) -> CompiledConstraint:
    """Compiles a constraint; takes up to a few seconds of CPU for the largest allowed.

    Raises:
        ConstraintError: it cannot be compiled, is too big, matches nothing, or the vocabulary
            cannot spell a match; `param` names the field.
    """
    if constraint.regex is None:
        raise ConstraintError("the constraint is empty: set regex", param="constraint")
    return RegexConstraint.compile(constraint.regex, vocabulary)


class ConstraintCompiler:
    """Compiles constraints for one vocabulary and keeps the last ones used; thread-safe."""

    def __init__(self, vocabulary: TokenVocabulary, max_constraints: int = MAX_CONSTRAINTS) -> None:
        """Args: `max_constraints` bounds the compiled constraints kept."""
        self.vocabulary = vocabulary
        self._max_constraints = max_constraints
        self._compiled: OrderedDict[Constraint, CompiledConstraint] = OrderedDict()
        self._lock = Lock()

    def compile(self, constraint: Constraint) -> CompiledConstraint:
        """The compiled constraint, from the cache if it is there.

        Raises:
            ConstraintError: as compile_constraint.
        """
        with self._lock:
            if constraint in self._compiled:
                self._compiled.move_to_end(constraint)
                return self._compiled[constraint]
        # Outside the lock, so that a slow pattern does not hold up the others.
        compiled = compile_constraint(constraint, self.vocabulary)
        with self._lock:
            # If another thread was faster, all share its result and its masks.
            compiled = self._compiled.setdefault(constraint, compiled)
            self._compiled.move_to_end(constraint)
            while len(self._compiled) > self._max_constraints:
                self._compiled.popitem(last=False)
        return compiled
