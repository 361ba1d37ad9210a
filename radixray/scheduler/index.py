"""Which actor holds which prefix: one radix tree for all actors.

Fed by the cache events of every model actor, and by placements under way, so that requests that
share a prefix meet even before the first of them is computed.
"""

from __future__ import annotations

import numpy as np

from radixray.cache.radix_tree import NO_TOKENS, TokenArray


class _Node:
    """An edge of tokens; `holders` counts, per actor, reasons to believe it holds the edge."""

    __slots__ = ("children", "holders", "tokens")

    def __init__(self, tokens: TokenArray, holders: dict[str, int]) -> None:
        self.tokens = tokens
        self.holders = holders
        self.children: dict[int, _Node] = {}


class PrefixIndex:
    """A radix tree over token ids whose edges know their holders.

    A holder of an edge holds every edge above it. One lookup finds the match of every actor: its
    cost grows with the prompt, not with the number of actors that do not match.
    """

    def __init__(self) -> None:
        self._roots: dict[str, _Node] = {}

    def add(self, holder: str, namespace: str, tokens: TokenArray, start: int = 0) -> None:
        """`holder` has one more reason to hold positions `start` and up of `tokens`."""
        root = self._roots.get(namespace)
        if root is None:
            root = self._roots[namespace] = _Node(NO_TOKENS, {})
        node, at = root, 0
        while at < len(tokens):
            child = self._child(node, tokens, at, cut=start)
            if child is None:
                end = start if at < start else len(tokens)
                child = _Node(tokens[at:end].copy(), {})
                node.children[int(tokens[at])] = child
            if at >= start:
                child.holders[holder] = child.holders.get(holder, 0) + 1
            at += len(child.tokens)
            node = child

    def remove(self, holder: str, namespace: str, tokens: TokenArray, start: int = 0) -> None:
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
                    del child.holders[holder]
            at += len(child.tokens)
            path.append(child)
        for parent, node in zip(path[-2::-1], path[:0:-1], strict=True):
            if node.holders or node.children:
                break
            del parent.children[int(node.tokens[0])]
        if not root.children:
            del self._roots[namespace]

    def clear(self, holder: str) -> None:
        """Forgets all of `holder`."""
        for namespace, root in list(self._roots.items()):
            self._clear_below(root, holder)
            if not root.children:
                del self._roots[namespace]

    def match(self, namespace: str, tokens: TokenArray) -> dict[str, int]:
        """Tokens of the longest prefix each actor holds; actors without a match are left out."""
        found: dict[str, int] = {}
        node, at = self._roots.get(namespace), 0
        while node is not None and at < len(tokens):
            child = node.children.get(int(tokens[at]))
            if child is None:
                break
            common = _common_prefix(child.tokens, tokens[at:])
            for holder in child.holders:
                # A holder of an edge holds all above it, so this is its longest so far.
                found[holder] = at + common
            if common < len(child.tokens):
                break
            at += common
            node = child
        return found

    def _child(self, node: _Node, tokens: TokenArray, at: int, cut: int) -> _Node | None:
        """The child along `tokens[at:]`, split so that it ends where they part, or at `cut`."""
        child = node.children.get(int(tokens[at]))
        if child is None:
            return None
        common = _common_prefix(child.tokens, tokens[at:])
        if at < cut < at + common:
            common = cut - at
        return child if common == len(child.tokens) else _split(node, child, common)

    def _clear_below(self, node: _Node, holder: str) -> None:
        # Iterative: a chain of edges may be as long as a context.
        order = [node]
        for parent in order:
            order.extend(c for c in parent.children.values() if holder in c.holders)
        for parent in reversed(order):
            for key, child in list(parent.children.items()):
                child.holders.pop(holder, None)
                if not child.holders and not child.children:
                    del parent.children[key]


def _split(parent: _Node, node: _Node, at: int) -> _Node:
    upper = _Node(node.tokens[:at], dict(node.holders))
    parent.children[int(node.tokens[0])] = upper
    node.tokens = node.tokens[at:]
    upper.children[int(node.tokens[0])] = node
    return upper


def _common_prefix(a: TokenArray, b: TokenArray) -> int:
    size = min(len(a), len(b))
    differ = a[:size] != b[:size]
    return int(differ.argmax()) if differ.any() else size


def token_array(raw: bytes) -> TokenArray:
    """int32 token ids from their bytes on the wire."""
    return np.frombuffer(raw, np.int32)
