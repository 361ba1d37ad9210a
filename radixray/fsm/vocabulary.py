"""A tokenizer's vocabulary, laid out so that one numpy pass finds every token an automaton allows.

The tokens form a byte trie that is stored a level at a time: level j holds the distinct prefixes
of j + 1 bytes, each with its last byte and the place of its parent one level up. Walking an
automaton over all tokens is then one vector step a level, and a prefix that thousands of tokens
share is walked once.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from radixray.fsm.byte_automaton import DEAD, ByteAutomaton

_UTF8_BYTES = [byte for byte in range(256) if byte not in (0xC0, 0xC1) and byte < 0xF5]


class TokenVocabulary:
    """What each token id spells.

    Attributes:
        vocab_size: number of ids the model scores; the length of every mask.
        eos_token_ids: ids that end a generation, ascending. They spell nothing, whatever
            `token_bytes` says.
        single_bytes: bool [256], the bytes that are a token by themselves.
    """

    def __init__(
        self,
        token_bytes: Sequence[bytes],
        eos_token_ids: Collection[int],
        vocab_size: int | None = None,
    ) -> None:
        """Lays the trie out.

        Args:
            token_bytes: by id, the exact bytes a token adds to the output; b"" marks a token that
                no constraint may allow (special, unused).
            eos_token_ids: see the class.
            vocab_size: at least len(token_bytes), its default; ids from there on are unusable.

        Raises:
            ValueError: an EOS id lies outside the vocabulary, or vocab_size is too small.
        """
        self.vocab_size = len(token_bytes) if vocab_size is None else vocab_size
        if self.vocab_size < len(token_bytes):
            raise ValueError(f"vocab_size is {vocab_size}, but there are {len(token_bytes)} tokens")
        self.eos_token_ids = tuple(sorted(set(eos_token_ids)))
        for eos in self.eos_token_ids:
            if not 0 <= eos < self.vocab_size:
                raise ValueError(f"EOS id {eos} is outside 0 to {self.vocab_size - 1}")
        self._bytes = list(token_bytes)
        for eos in self.eos_token_ids:
            if eos < len(self._bytes):
                self._bytes[eos] = b""
        self.single_bytes = np.zeros(256, dtype=np.bool_)
        self.single_bytes[[token[0] for token in self._bytes if len(token) == 1]] = True
        self._build_trie()

    def bytes_of(self, token_id: int) -> bytes:
        """What `token_id` spells; b"" for EOS, unusable and unknown ids."""
        return self._bytes[token_id] if 0 <= token_id < len(self._bytes) else b""

    @cached_property
    def eos_index(self) -> NDArray[np.intp]:
        """intp [EOS ids]: `eos_token_ids`, for indexing masks."""
        return np.array(self.eos_token_ids, dtype=np.intp)

    @cached_property
    def has_every_byte(self) -> bool:
        """Whether each byte that UTF-8 uses is a token by itself."""
        return bool(self.single_bytes[_UTF8_BYTES].all())

    @cached_property
    def no_ids(self) -> NDArray[np.bool_]:
        """bool [vocab_size], read-only: a mask that allows nothing."""
        mask = np.zeros(self.vocab_size, dtype=np.bool_)
        mask.flags.writeable = False
        return mask

    @cached_property
    def spellings(self) -> list[bytes]:
        """What the tokens spell: ascending, each once."""
        return sorted(set(filter(None, self._bytes)))

    @cached_property
    def longest(self) -> int:
        """Bytes of the longest token."""
        return max(map(len, self._bytes), default=0)

    def end_states(self, automaton: ByteAutomaton, state: int) -> NDArray[np.intp]:
        """intp [vocab_size]: the automaton's state after each token, from `state`.

        DEAD for tokens that lead nowhere or spell nothing.
        """
        table = automaton.transitions.ravel()
        width = automaton.transitions.shape[1]
        states = np.full(len(self._parents), DEAD, dtype=np.intp)
        states[0] = state
        for begin, end in self._levels:
            before = states[self._parents[begin:end]]
            if not before.any():  # DEAD is 0: no prefix of this length is left
                break
            columns = automaton.byte_class[self._last_bytes[begin:end]]
            states[begin:end] = table[before * width + columns]
        states[0] = DEAD  # the root is where tokens that spell nothing sit
        return states[self._nodes]

    def allowed(
        self,
        step: Callable[[Any, int], Any],
        state: Any,
        may_pause: Callable[[Any], bool] | None = None,
    ) -> NDArray[np.bool_]:
        """bool [vocab_size]: the tokens along which a step function finds a way from `state`.

        Args:
            step: (state, byte) -> the next state, or None where there is no way; called once for
                each prefix of a token that has one.
            state: where to begin.
            may_pause: whether a token may end in a state; any may, by default.
        """
        states: dict[int, Any] = {0: state}
        alive = np.zeros(len(self._parents), dtype=np.bool_)
        alive[0] = True
        no_pause: list[int] = []
        for begin, end in self._levels:
            nodes = begin + np.flatnonzero(alive[self._parents[begin:end]])
            if not len(nodes):
                break
            reached: dict[int, Any] = {}
            for node, parent, byte in zip(
                nodes.tolist(),
                self._parents[nodes].tolist(),
                self._last_bytes[nodes].tolist(),
                strict=True,
            ):
                following = step(states[parent], byte)
                if following is not None:
                    reached[node] = following
            alive[list(reached)] = True
            states = reached
            if may_pause is not None:
                no_pause += [node for node, end in reached.items() if not may_pause(end)]
        alive[0] = False  # the root is where tokens that spell nothing sit
        alive[no_pause] = False
        return alive[self._nodes]

    def _build_trie(self) -> None:
        """Sets, over trie nodes with the root first:

        _parents: intp, the node one byte shorter.
        _last_bytes: uint8, the last byte of the node's prefix.
        _levels: (first, last + 1) node of each depth.
        _nodes: intp [vocab_size], the node that spells each token; 0 for none.
        """
        usable = [token_id for token_id, token in enumerate(self._bytes) if token]
        # In sorted order equal prefixes are neighbours, so a level's nodes are where neighbours
        # differ.
        usable.sort(key=self._bytes.__getitem__)
        ids = np.array(usable, dtype=np.intp)
        text = np.frombuffer(b"".join(self._bytes[i] for i in usable), dtype=np.uint8)
        lengths = np.array([len(self._bytes[i]) for i in usable], dtype=np.intp)
        offsets = np.cumsum(lengths) - lengths

        self._nodes = np.zeros(self.vocab_size, dtype=np.intp)
        parents = [np.zeros(1, dtype=np.intp)]
        last_bytes = [np.zeros(1, dtype=np.uint8)]
        self._levels: list[tuple[int, int]] = []
        size = 1
        node = np.zeros(len(ids), dtype=np.intp)  # of each remaining token, one level up
        depth = 0
        while len(ids):
            byte = text[offsets + depth]
            new = np.ones(len(ids), dtype=np.bool_)
            new[1:] = (node[1:] != node[:-1]) | (byte[1:] != byte[:-1])
            parents.append(node[new])
            last_bytes.append(byte[new])
            node = size + np.cumsum(new) - 1
            self._levels.append((size, size + int(new.sum())))
            size += int(new.sum())
            depth += 1
            self._nodes[ids[lengths == depth]] = node[lengths == depth]
            longer = lengths > depth
            ids, offsets, lengths, node = (a[longer] for a in (ids, offsets, lengths, node))
        self._parents = np.concatenate(parents)
        self._last_bytes = np.concatenate(last_bytes)
