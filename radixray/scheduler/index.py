"""Which actor holds which prefix: one radix tree for all actors.

Fed by the cache events of every model actor, and by placements under way, so that requests that
share a prefix meet even before the first of them is computed.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from radixray.cache.radix_tree import NO_TOKENS, TokenArray


class _Node:
    """An edge of tokens.

    `holders` counts, per actor, reasons to believe it holds the edge; bit `n` of `mask` is set
    where actor `n` has any.
    """

    __slots__ = ("children", "holders", "mask", "tokens")

    def __init__(self, tokens: TokenArray, holders: dict[int, int], mask: int) -> None:
        self.tokens = tokens
        self.holders = holders
        self.mask = mask
        self.children: dict[int, _Node] = {}


SHARED_BY = 32
"""A prefix that goes on in so many ways is one that many requests share."""


class Parting(NamedTuple):
    """Where a prompt leaves what anybody holds.

    Attributes:
        position: the first token that differs.
        cached: what is held from there on, of one of those that hold anything.
    """

    position: int
    cached: TokenArray


class Found(NamedTuple):
    """The edges that a prompt follows.

    Attributes:
        ends: how many tokens match up to the end of each edge, growing.
        masks: who holds each edge, a bit an actor.
        shared: whether the prefix up to the end of each edge goes on in many ways.
        parting: None where the prompt ends, or goes on where nothing is held any more.
    """

    ends: list[int]
    masks: list[int]
    shared: list[bool]
    parting: Parting | None

    def shared_end(self) -> int:
        """Tokens of the longest prefix that many requests share; 0 where there is none."""
        return max(
            (end for end, many in zip(self.ends, self.shared, strict=True) if many), default=0
        )

    def lengths(self, actors: int) -> NDArray[np.int64]:
        """[actors]: tokens of the longest prefix each actor holds."""
        lengths = np.zeros(actors, np.int64)
        seen = 0
        # A holder of an edge holds all above it, so the last edge it holds is its longest.
        for end, mask in zip(reversed(self.ends), reversed(self.masks), strict=True):
            new = mask & ~seen
            if new == 0:
                continue
            seen |= new
            if new & (new - 1) == 0:
                lengths[new.bit_length() - 1] = end
            else:
                lengths[_set_bits(new, actors)] = end
        return lengths


class PrefixIndex:
    """A radix tree over token ids whose edges know their holders, which are small numbers.

    A holder of an edge holds every edge above it. A lookup follows one path; what that costs
    grows with the prompt, not with the number of holders.
    """

    def __init__(self) -> None:
        self._roots: dict[str, _Node] = {}
        self._held: dict[int, int] = {}

    def held(self, holder: int) -> int:
        """Tokens that `holder` holds, each shared prefix once."""
        return self._held.get(holder, 0)

    def add(self, holder: int, namespace: str, tokens: TokenArray, start: int = 0) -> None:
        """`holder` has one more reason to hold positions `start` and up of `tokens`."""
        root = self._roots.get(namespace)
        if root is None:
            root = self._roots[namespace] = _Node(NO_TOKENS, {}, 0)
        node, at = root, 0
        while at < len(tokens):
            child = self._child(node, tokens, at, cut=start)
            if child is None:
                end = start if at < start else len(tokens)
                child = _Node(tokens[at:end].copy(), {}, 0)
                node.children[int(tokens[at])] = child
            if at >= start:
                reasons = child.holders.get(holder, 0)
                child.holders[holder] = reasons + 1
                if not reasons:
                    child.mask |= 1 << holder
                    self._count(holder, len(child.tokens))
            at += len(child.tokens)
            node = child

    def remove(self, holder: int, namespace: str, tokens: TokenArray, start: int = 0) -> None:
        """Undoes one `add` of the same positions. Positions it does not hold are ignored."""
        root = self._roots.get(namespace)
        if root is None:
            return
        path = [root]
        at = 0
        while at < len(tokens):
            child = self._child(path[-1], tokens, at, cut=start)
            if child is None:
                break
            if at >= start and holder in child.holders:
                child.holders[holder] -= 1
                if child.holders[holder] == 0:
                    self._drop(child, holder)
            at += len(child.tokens)
            path.append(child)
        for parent, node in zip(path[-2::-1], path[:0:-1], strict=True):
            if node.holders or node.children:
                break
            del parent.children[int(node.tokens[0])]
        if not root.children:
            del self._roots[namespace]

    def clear(self, holder: int) -> None:
        """Forgets all of `holder`."""
        for namespace, root in list(self._roots.items()):
            self._clear_below(root, holder)
            if not root.children:
                del self._roots[namespace]

    def find(self, namespace: str, tokens: TokenArray) -> Found:
        """Who holds how much of `tokens`."""
        ends: list[int] = []
        masks: list[int] = []
        shared: list[bool] = []
        node, at = self._roots.get(namespace), 0
        parting: Parting | None = None
        while node is not None and at < len(tokens):
            child = node.children.get(int(tokens[at]))
            if child is None:
                if node.children:
                    held = next(iter(node.children.values())).tokens
                    parting = Parting(at, held)
                break
            common = _common_prefix(child.tokens, tokens[at:])
            at += common
            if child.mask:
                ends.append(at)
                masks.append(child.mask)
                shared.append(len(child.children) >= SHARED_BY)
            if common < len(child.tokens):
                if at < len(tokens):
                    parting = Parting(at, child.tokens[common:])
                break
            node = child
        return Found(ends, masks, shared, parting)

    def match(self, namespace: str, tokens: TokenArray) -> dict[int, int]:
        """Tokens of the longest prefix each holder has; those without a match are left out."""
        found = self.find(namespace, tokens)
        longest: dict[int, int] = {}
        for end, mask in zip(found.ends, found.masks, strict=True):
            for holder in np.flatnonzero(_set_bits(mask, mask.bit_length())):
                longest[int(holder)] = end
        return longest

    def _count(self, holder: int, tokens: int) -> None:
        held = self._held.get(holder, 0) + tokens
        if held:
            self._held[holder] = held
        else:
            self._held.pop(holder, None)

    def _drop(self, node: _Node, holder: int) -> None:
        del node.holders[holder]
        node.mask &= ~(1 << holder)
        self._count(holder, -len(node.tokens))

    def _child(self, node: _Node, tokens: TokenArray, at: int, cut: int) -> _Node | None:
        """The child along `tokens[at:]`, split so that it ends where they part, or at `cut`."""
        child = node.children.get(int(tokens[at]))
        if child is None:
            return None
        common = _common_prefix(child.tokens, tokens[at:])
        if at < cut < at + common:
            common = cut - at
        return child if common == len(child.tokens) else _split(node, child, common)

    def _clear_below(self, node: _Node, holder: int) -> None:
        # Iterative: a chain of edges may be as long as a context.
        order = [node]
        for parent in order:
            order.extend(c for c in parent.children.values() if holder in c.holders)
        for parent in reversed(order):
            for key, child in list(parent.children.items()):
                if holder in child.holders:
                    self._drop(child, holder)
                if not child.holders and not child.children:
                    del parent.children[key]


def _split(parent: _Node, node: _Node, at: int) -> _Node:
    # Copies: a view would keep the whole alive when one part is long gone.
    upper = _Node(node.tokens[:at].copy(), dict(node.holders), node.mask)
    parent.children[int(node.tokens[0])] = upper
    node.tokens = node.tokens[at:].copy()
    upper.children[int(node.tokens[0])] = node
    return upper


def _common_prefix(a: TokenArray, b: TokenArray) -> int:
    size = min(len(a), len(b))
    differ = a[:size] != b[:size]
    first = int(differ.argmax())
    return first if differ[first] else size


def _set_bits(mask: int, size: int) -> NDArray[np.bool_]:
    raw = np.frombuffer(mask.to_bytes((size + 7) // 8, "little"), np.uint8)
    return np.unpackbits(raw, count=size, bitorder="little").view(np.bool_)


def token_array(raw: bytes) -> TokenArray:
    """int32 token ids from their bytes on the wire."""
    return np.frombuffer(raw, np.int32)
