"""Which DFA states a vocabulary's tokens can bring to acceptance.

Masks must never lead where no token goes on. With a token for every byte the DFA uses that cannot
happen; otherwise a state may be alive for bytes and dead for tokens.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from radixray.errors import ConstraintError
from radixray.fsm.byte_automaton import DEAD, ByteAutomaton
from radixray.fsm.vocabulary import TokenVocabulary

MAX_DOUBTFUL_STATES = 2_000
"""Most states searched token by token, which takes about a millisecond each."""


def has_every_byte(automaton: ByteAutomaton, vocabulary: TokenVocabulary) -> bool:
    """Whether each byte that occurs in the language is a token by itself."""
    used = (automaton.transitions != DEAD).any(axis=0)[automaton.byte_class]
    return bool(vocabulary.single_bytes[used].all())


def spellable_states(automaton: ByteAutomaton, vocabulary: TokenVocabulary) -> NDArray[np.bool_]:
    """bool [states]: whether some sequence of tokens, maybe none, leads to acceptance.

    Raises:
        ConstraintError: too many states would have to be searched.
    """
    if has_every_byte(automaton, vocabulary):
        live = np.ones(len(automaton), dtype=np.bool_)
        live[DEAD] = False
        return live
    # Most states have a way in single bytes, found on the automaton alone; only what remains is
    # worth walking the whole vocabulary for.
    columns = np.unique(automaton.byte_class[vocabulary.single_bytes])
    steps = automaton.transitions[:, columns]
    sources = np.repeat(np.arange(len(automaton)), len(columns))
    live = _can_reach(automaton.accepting, sources, steps.ravel())

    doubtful = np.flatnonzero(~live)
    doubtful = doubtful[doubtful != DEAD]
    if len(doubtful) > MAX_DOUBTFUL_STATES:
        raise ConstraintError(
            f"regex needs bytes that no token spells alone, in {len(doubtful)} states of its "
            f"automaton; at most {MAX_DOUBTFUL_STATES} are searched",
            param="regex",
        )
    ends = [np.unique(vocabulary.end_states(automaton, int(state))) for state in doubtful]
    sources = np.repeat(doubtful, [len(states) for states in ends])
    return _can_reach(live, sources, np.concatenate([*ends, np.zeros(0, dtype=np.intp)]))


def _can_reach(
    goals: NDArray[np.bool_], sources: NDArray[np.intp], targets: NDArray[np.integer]
) -> NDArray[np.bool_]:
    """bool [states]: the goals, and every state with a path to one over the given moves."""
    moves = np.unique(np.stack([targets, sources]), axis=1)
    moves = moves[:, moves[0] != DEAD]
    first = np.searchsorted(moves[0], np.arange(len(goals) + 1))
    reached = goals.copy()
    pending = np.flatnonzero(goals).tolist()
    while pending:
        target = pending.pop()
        for source in moves[1, first[target] : first[target + 1]].tolist():
            if not reached[source]:
                reached[source] = True
                pending.append(source)
    return reached
