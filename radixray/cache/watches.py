"""Standing matches: how much of a waiting request is cached, kept current by changes alone.

A scheduler that orders its queue by cached prefix (arXiv 2312.07104, section 3) would match every
waiting request again after each change of the tree. A watch is told instead. It rests on the
deepest node its tokens reach, filed under its next page of tokens:

    - a leaf is attached       only watches filed under the leaf's first page can follow it
    - an edge is split         only watches filed under that edge's first page can be within it
    - a leaf is removed        its watches, and those within it, end at the parent

so a change that concerns no watch costs one dictionary look-up, however many there are.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from radixray.cache.radix_node import RadixNode, TokenArray, follow, page_key

if TYPE_CHECKING:
    from radixray.cache.radix_tree import RadixTree


class Watch:
    """The longest cached prefix of one token sequence, at any time. See `RadixTree.watch`.

    Attributes:
        tokens: what is watched; must not change while it is.
        length: tokens that a match would find now.
    """

    __slots__ = ("_depth", "_node", "_tree", "length", "tokens")

    def __init__(self, tree: RadixTree, root: RadixNode, tokens: TokenArray) -> None:
        self.tokens = tokens
        self.length = 0
        self._tree = tree
        self._node: RadixNode | None = root
        self._depth = 0  # tokens down to the end of _node
        self._descend()

    def unlocked_pages(self) -> int:
        """Matched pages that could be evicted now, and no longer once a lease locks them."""
        node = self._node
        if node is None:
            return 0
        size = self._tree.page_size
        pages = 0
        if self.length > self._depth:
            within = node.children[page_key(self.tokens, self._depth, size)]
            if within.locks == 0:
                pages += (self.length - self._depth) // size
        # Locks only grow towards the root.
        walk: RadixNode | None = node
        while walk is not None and walk.locks == 0:
            pages += len(walk.pages)
            walk = walk.parent
        return pages

    def path(self) -> list[int]:
        """Ids of the nodes wholly matched, from the root down; equal paths mean equal prefixes."""
        ids: list[int] = []
        walk = self._node
        while walk is not None:
            ids.append(id(walk))
            walk = walk.parent
        return ids[::-1]

    def close(self) -> None:
        """Ends the watch; `length` stays as it was. Closing it again does nothing."""
        node, self._node = self._node, None
        if node is not None:
            _unfile(node, self._key(), self)
            self._tree.drop_if_empty(node)

    def _key(self) -> bytes:
        return page_key(self.tokens, self._depth, self._tree.page_size)

    def _descend(self) -> None:
        """From its node down as far as its tokens go, and files it there."""
        node = self._node
        assert node is not None
        while True:
            child, common = follow(node, self.tokens, self._depth, self._tree.page_size)
            if child is None or common < len(child.tokens):
                break
            node = child
            self._depth += common
        self.length = self._depth + common
        self._file(node)

    def _file(self, node: RadixNode) -> None:
        self._node = node
        if node.watches is None:
            node.watches = {}
        node.watches.setdefault(self._key(), set()).add(self)


def leaf_attached(leaf: RadixNode, page_size: int) -> None:
    """Watches that waited at the leaf's parent for its first page follow it."""
    parent = leaf.parent
    assert parent is not None
    if parent.watches:
        for watch in parent.watches.pop(page_key(leaf.tokens, 0, page_size), ()):
            watch._descend()


def node_split(upper: RadixNode, page_size: int) -> None:
    """Watches that ended within an edge and reach the end of its new upper part rest there."""
    parent = upper.parent
    assert parent is not None
    if not parent.watches:
        return
    key = page_key(upper.tokens, 0, page_size)
    size = len(upper.tokens)
    for watch in list(parent.watches.get(key, ())):
        if watch.length - watch._depth >= size:
            _unfile(parent, key, watch)
            watch._depth += size
            watch._file(upper)


def leaf_removed(leaf: RadixNode, parent: RadixNode, page_size: int) -> None:
    """Watches at or within a leaf that is no more end at its former parent."""
    for group in (leaf.watches or {}).values():
        for watch in group:
            watch._depth -= len(leaf.tokens)
            watch._file(parent)
    leaf.watches = None
    if parent.watches:
        for watch in parent.watches.get(page_key(leaf.tokens, 0, page_size), ()):
            watch.length = watch._depth


def _unfile(node: RadixNode, key: bytes, watch: Watch) -> None:
    assert node.watches is not None
    group = node.watches[key]
    group.discard(watch)
    if not group:
        del node.watches[key]
