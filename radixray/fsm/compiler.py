"""From a request's `Constraint` to a compiled one, with the recent ones kept."""

from __future__ import annotations

from collections import OrderedDict
from threading import Lock

from radixray.constraint import Constraint
from radixray.fsm.byte_automaton import ByteAutomaton
from radixray.fsm.choices import choices_automaton
from radixray.fsm.gbnf_lowering import read_gbnf
from radixray.fsm.grammar_constraint import GrammarConstraint
from radixray.fsm.matcher import CompiledConstraint
from radixray.fsm.predicate import PredicateConstraint
from radixray.fsm.regex_constraint import RegexConstraint, regex_automaton
from radixray.fsm.schema import schema_grammar
from radixray.fsm.start_after import StartAfter
from radixray.fsm.vocabulary import TokenVocabulary

MAX_CONSTRAINTS = 64
"""Default number of compiled constraints a compiler keeps."""

MAX_BYTES = 512 * 2**20
"""Default bound of what they take; masks have their own, see `mask_cache`."""


def compile_constraint(constraint: Constraint, vocabulary: TokenVocabulary) -> CompiledConstraint:
    """Compiles a constraint; takes up to a few seconds of CPU for the largest allowed.

    Raises:
        ConstraintError: it cannot be compiled, is too big, matches nothing, or the vocabulary
            cannot spell a match; `param` names the field.
    """
    return finish(constraint, prepare(constraint), vocabulary)


def prepare(constraint: Constraint) -> ByteAutomaton | str | None:
    """The part of compiling that no vocabulary is needed for, and that may take long.

    Returns:
        An automaton, an llguidance grammar, or None where there is nothing to prepare.

    Raises:
        ConstraintError: as compile_constraint, but for what depends on the vocabulary.
    """
    constraint.validate()
    if constraint.regex is not None:
        return regex_automaton(constraint.regex)
    if constraint.choices is not None:
        return choices_automaton(constraint.choices)
    if constraint.json_schema is not None:
        return schema_grammar(constraint.json_schema, constraint.whitespace or "spaced")
    if constraint.ebnf is not None:
        return read_gbnf(constraint.ebnf)
    return constraint.lark


def finish(
    constraint: Constraint, prepared: ByteAutomaton | str | None, vocabulary: TokenVocabulary
) -> CompiledConstraint:
    """The compiled constraint, from what `prepare` made of it.

    Raises:
        ConstraintError: as compile_constraint.
    """
    compiled: CompiledConstraint
    if isinstance(prepared, ByteAutomaton):
        compiled = RegexConstraint(prepared, vocabulary, param=constraint.kind)
    elif prepared is not None:
        compiled = GrammarConstraint(prepared, vocabulary, constraint.kind)
    else:
        assert constraint.predicate is not None
        compiled = PredicateConstraint.unpickle(constraint.predicate, vocabulary)
    if constraint.start_after is not None:
        compiled = StartAfter(constraint.start_after, compiled, vocabulary)
    return compiled


class ConstraintCompiler:
    """Compiles constraints for one vocabulary and keeps the last ones used; thread-safe.

    Only what compiled is kept, never an error: a time-out says nothing about the next time.
    """

    def __init__(
        self,
        vocabulary: TokenVocabulary,
        max_constraints: int = MAX_CONSTRAINTS,
        max_bytes: int = MAX_BYTES,
    ) -> None:
        """Args: `max_constraints` and `max_bytes` bound what is kept; the last one always is."""
        self.vocabulary = vocabulary
        self._max_constraints = max_constraints
        self._max_bytes = max_bytes
        self._compiled: OrderedDict[Constraint, CompiledConstraint] = OrderedDict()
        self._bytes = 0
        self._lock = Lock()

    def compile(self, constraint: Constraint) -> CompiledConstraint:
        """The compiled constraint, from the cache if it is there.

        Raises:
            ConstraintError: as compile_constraint.
        """
        known = self.get(constraint)
        if known is not None:
            return known
        # Outside the lock, so that a slow pattern does not hold up the others.
        return self.put(constraint, compile_constraint(constraint, self.vocabulary))

    def get(self, constraint: Constraint) -> CompiledConstraint | None:
        """The compiled constraint, if it is kept."""
        with self._lock:
            known = self._compiled.get(constraint)
            if known is not None:
                self._compiled.move_to_end(constraint)
            return known

    def put(self, constraint: Constraint, compiled: CompiledConstraint) -> CompiledConstraint:
        """Keeps `compiled`, and returns it, or what another thread has put there before."""
        with self._lock:
            # If another thread was faster, all share its result and its masks.
            known = self._compiled.setdefault(constraint, compiled)
            self._compiled.move_to_end(constraint)
            if known is compiled:
                self._bytes += compiled.nbytes
            while len(self._compiled) > 1 and (
                len(self._compiled) > self._max_constraints or self._bytes > self._max_bytes
            ):
                _, dropped = self._compiled.popitem(last=False)
                self._bytes -= dropped.nbytes
            return known
