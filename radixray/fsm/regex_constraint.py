"""Regular constraints: a byte DFA run over a vocabulary.

A state's mask is computed when it is first asked for: most states of a pattern are never visited.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from radixray.errors import ConstraintError
from radixray.fsm.base_matcher import BaseMatcher
from radixray.fsm.byte_automaton import DEAD, START, ByteAutomaton, determinise
from radixray.fsm.mask_cache import MaskCache
from radixray.fsm.nfa import build_nfa
from radixray.fsm.regex_parser import parse_regex
from radixray.fsm.spelling import has_every_byte, spellable_states
from radixray.fsm.vocabulary import TokenVocabulary

MASK_CACHE_BYTES = 16 * 2**20
"""Default bound of one constraint's mask cache."""


def regex_automaton(pattern: str) -> ByteAutomaton:
    """The automaton of the strings that `re.fullmatch(pattern, ...)` matches.

    Raises:
        ConstraintError: see parse_regex, build_nfa and determinise.
    """
    return determinise(build_nfa(parse_regex(pattern)))


class RegexConstraint:
    """A compiled regular constraint.

    Attributes:
        automaton: the DFA over bytes.
        vocabulary: whose ids the masks are over.
        nbytes: of the automaton.
    """

    def __init__(
        self,
        automaton: ByteAutomaton,
        vocabulary: TokenVocabulary,
        mask_cache_bytes: int = MASK_CACHE_BYTES,
        param: str = "regex",
    ) -> None:
        """Prepares the vocabulary for the automaton.

        Args:
            automaton: the language.
            vocabulary: see the class.
            mask_cache_bytes: bounds the masks kept; the last one asked for is always kept.
            param: the field of `constraint.Constraint` that errors are about.

        Raises:
            ConstraintError: no sequence of the vocabulary's tokens spells a member.
        """
        self.automaton = automaton
        self.nbytes = automaton.transitions.nbytes
        self.vocabulary = vocabulary
        self._live = spellable_states(automaton, vocabulary)
        if not self._live[START]:
            raise ConstraintError(
                f"{param} cannot be met: the model's vocabulary has no tokens that spell a match",
                param=param,
            )
        self._has_every_byte = has_every_byte(automaton, vocabulary)
        self._masks = MaskCache(mask_cache_bytes, vocabulary.vocab_size)

    @classmethod
    def compile(
        cls,
        pattern: str,
        vocabulary: TokenVocabulary,
        mask_cache_bytes: int = MASK_CACHE_BYTES,
    ) -> RegexConstraint:
        """The constraint that `re.fullmatch(pattern, output)` holds.

        Raises:
            ConstraintError: see parse_regex, build_nfa, determinise and the class.
        """
        return cls(regex_automaton(pattern), vocabulary, mask_cache_bytes)

    def matcher(self) -> RegexMatcher:
        """A new matcher, at the start of an output."""
        return RegexMatcher(self)

    def mask(self, state: int) -> NDArray[np.bool_]:
        """bool [vocab_size], read-only: the ids allowed in a state."""
        mask = self._masks.get(state)
        if mask is None:  # at worst two threads compute the same one
            mask = self._live[self.vocabulary.end_states(self.automaton, state)]
            mask[self.vocabulary.eos_index] = self.automaton.accepting[state]
            self._masks.put(state, mask)
        return mask

    def after(self, state: int, token_id: int) -> int:
        """The state after a token that is not EOS; DEAD if it is not allowed."""
        spelling = self.vocabulary.bytes_of(token_id)
        end = self.automaton.walk(state, spelling) if spelling else DEAD
        return end if self._live[end] else DEAD

    def continues(self, state: int) -> bool:
        """Whether any token other than EOS is allowed in a state."""
        if not self.automaton.fan_out[state]:
            return False
        if self._has_every_byte or not self.automaton.accepting[state]:
            return True
        return int(self.mask(state).sum()) > len(self.vocabulary.eos_token_ids)


class RegexMatcher(BaseMatcher):
    """A position in a RegexConstraint."""

    def __init__(self, constraint: RegexConstraint) -> None:
        super().__init__(constraint.vocabulary)
        self._constraint = constraint
        self._automaton = constraint.automaton
        self._states = [START]  # before each token, and now

    def _mask(self) -> NDArray[np.bool_]:
        return self._constraint.mask(self._states[-1])

    def _take(self, token_id: int, spelling: bytes) -> bool:
        state = self._constraint.after(self._states[-1], token_id)
        if state == DEAD:
            return False
        self._states.append(state)
        return True

    def _undo(self, n: int) -> None:
        del self._states[-n:]

    def _forced(self) -> bytes:
        return self._automaton.forced(self._states[-1])

    def _viable(self, data: bytes) -> int:
        automaton, state = self._automaton, self._states[-1]
        for count, byte in enumerate(data):
            state = int(automaton.transitions[state, automaton.byte_class[byte]])
            if state == DEAD:
                return count
        return len(data)

    def is_accepting(self) -> bool:
        """See `Matcher.is_accepting`."""
        return bool(self._automaton.accepting[self._states[-1]])

    def _continues(self) -> bool:
        return self._constraint.continues(self._states[-1])

    def _state(self) -> int:
        return self._states[-1]
