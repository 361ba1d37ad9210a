"""Radix tree, page pool and leases against a brute-force dictionary of sequences."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    initialize,
    invariant,
    multiple,
    rule,
)

from radixray.cache.page_pool import TREE, LedgerError, OutOfPagesError, PagePool
from radixray.cache.prefix_cache import Lease, PrefixCache
from radixray.cache.radix_tree import RadixTree

NUM_PAGES = 48
tokens_strategy = st.lists(st.integers(0, 2), min_size=1, max_size=24)
namespace_strategy = st.sampled_from(["", "salt"])


def array(tokens: list[int]) -> np.ndarray:
    return np.array(tokens, np.int32)


class CacheMachine(RuleBasedStateMachine):
    """Random leases against a model that remembers, for each page, what was written to it.

    The model never looks into the tree. It knows which page-aligned prefixes were committed and
    not reported evicted, and what "KV" (namespace, whole prefix) each slot holds.
    """

    leases = Bundle("leases")

    @initialize(page_size=st.sampled_from([1, 2, 4]))
    def start(self, page_size: int) -> None:
        self.size = page_size
        self.cache = PrefixCache(NUM_PAGES, page_size)
        self.slots: dict[int, tuple[str, tuple[int, ...]]] = {}
        self.cached: set[tuple[str, tuple[int, ...]]] = set()
        self.live: dict[int, tuple[Lease, str, list[int]]] = {}

    def follow_events(self) -> None:
        for event in self.cache.drain_events():
            path = tuple(np.frombuffer(event.tokens, np.int32).tolist())
            prefixes = {
                (event.namespace, path[:n])
                for n in range(event.start + self.size, len(path) + 1, self.size)
            }
            if event.kind == "insert":
                assert not prefixes & self.cached
                self.cached |= prefixes
            else:
                assert prefixes <= self.cached
                self.cached -= prefixes

    def longest(self, namespace: str, tokens: list[int]) -> int:
        best = 0
        for n in range(self.size, len(tokens) + 1, self.size):
            if (namespace, tuple(tokens[:n])) in self.cached:
                best = n
        return best

    @rule(target=leases, namespace=namespace_strategy, tokens=tokens_strategy)
    def acquire(self, namespace: str, tokens: list[int]):
        expected = self.longest(namespace, tokens)
        assert self.cache.peek(namespace, array(tokens)).length == expected
        lease = self.cache.acquire(namespace, array(tokens))
        assert lease.cached_tokens == expected
        for position, slot in enumerate(lease.slots(expected).tolist()):
            assert self.slots[slot] == (namespace, tuple(tokens[: position + 1]))
        try:
            lease.extend(len(tokens))
        except OutOfPagesError:
            lease.release()
            self.follow_events()
            return multiple()
        for position, slot in list(enumerate(lease.slots(len(tokens)).tolist()))[expected:]:
            self.slots[slot] = (namespace, tuple(tokens[: position + 1]))
        self.live[lease.id] = (lease, namespace, list(tokens))
        self.follow_events()
        return lease.id

    @rule(lease_id=leases, more=tokens_strategy)
    def grow(self, lease_id: int, more: list[int]) -> None:
        if lease_id not in self.live:
            return
        lease, namespace, tokens = self.live[lease_id]
        old = len(tokens)
        try:
            lease.extend(old + len(more))
        except OutOfPagesError:
            assert self.cache.available_pages < len(more)
            return
        tokens.extend(more)
        for position in range(old, len(tokens)):
            slot = int(lease.slots(len(tokens))[position])
            self.slots[slot] = (namespace, tuple(tokens[: position + 1]))
        self.follow_events()

    @rule(lease_id=leases, part=st.floats(0, 1))
    def commit(self, lease_id: int, part: float) -> None:
        if lease_id in self.live:
            lease, _, tokens = self.live[lease_id]
            lease.commit(array(tokens[: int(part * len(tokens))]))
            self.follow_events()

    @rule(lease_id=consumes(leases), keep=st.booleans())
    def release(self, lease_id: int, keep: bool) -> None:
        if lease_id in self.live:
            lease, namespace, tokens = self.live.pop(lease_id)
            expected = self.cache.available_pages + lease.reclaimable_pages()
            lease.release(array(tokens) if keep else None)
            self.follow_events()
            assert self.cache.available_pages == expected
            if keep:
                assert self.longest(namespace, tokens) == len(tokens) // self.size * self.size

    @rule(count=st.integers(1, NUM_PAGES))
    def evict(self, count: int) -> None:
        possible = self.cache.tree.num_evictable
        gone = self.cache.evict(count)
        assert gone >= min(count, possible)
        self.follow_events()

    @invariant()
    def ledger_holds(self) -> None:
        assert self.cache.check() == []
        pool = self.cache.pool
        assert pool.num_free + self.cache.tree.num_pages + self.cache.leased_pages == NUM_PAGES

    @invariant()
    def leases_read_what_they_wrote(self) -> None:
        for lease, namespace, tokens in self.live.values():
            for position, slot in enumerate(lease.slots(len(tokens)).tolist()):
                assert self.slots[slot] == (namespace, tuple(tokens[: position + 1]))

    @invariant()
    def snapshot_is_the_cached_set(self) -> None:
        prefixes = set()
        for event in self.cache.snapshot():
            path = tuple(np.frombuffer(event.tokens, np.int32).tolist())
            prefixes |= {
                (event.namespace, path[:n]) for n in range(self.size, len(path) + 1, self.size)
            }
        assert prefixes == self.cached

    def teardown(self) -> None:
        for lease, _, _ in self.live.values():
            lease.release()
        assert self.cache.available_pages == NUM_PAGES
        self.cache.evict(NUM_PAGES)
        assert self.cache.pool.num_free == NUM_PAGES
        assert list(self.cache.tree.nodes()) == []
        assert self.cache.tree._roots == {}


CacheMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
TestCacheMachine = CacheMachine.TestCase


def test_least_recently_used_leaf_goes_first() -> None:
    cache = PrefixCache(12)
    for first in (1, 2, 3):
        lease = cache.acquire("", array([first] * 4))
        lease.extend(4)
        lease.release(array([first] * 4))
    cache.acquire("", array([1] * 4)).release()  # 1 is used again: 2 is now the oldest
    cache.evict(1)
    assert [cache.peek("", array([t] * 4)).length for t in (1, 2, 3)] == [4, 0, 4]


def test_a_locked_prefix_is_never_evicted() -> None:
    cache = PrefixCache(8)
    first = cache.acquire("", array([1, 2, 3, 4]))
    first.extend(4)
    first.commit(array([1, 2, 3, 4]))
    assert cache.evict(8) == 0
    second = cache.acquire("", array([9] * 8))
    with pytest.raises(OutOfPagesError):
        second.extend(8)
    first.release()
    second.extend(8)
    assert cache.peek("", array([1, 2, 3, 4])).length == 0


def test_duplicates_are_freed_on_commit() -> None:
    cache = PrefixCache(8)
    one, two = (cache.acquire("", array([5, 6, 7])) for _ in range(2))
    one.extend(3)
    two.extend(3)
    one.commit(array([5, 6, 7]))
    two.commit(array([5, 6, 7]))
    assert cache.pool.num_free == 5
    assert two.slots(3).tolist() == one.slots(3).tolist()


def test_disabled_cache_keeps_nothing() -> None:
    cache = PrefixCache(8, enabled=False)
    lease = cache.acquire("", array([1, 2]))
    lease.extend(2)
    lease.release(array([1, 2]))
    assert cache.acquire("", array([1, 2])).cached_tokens == 0
    assert cache.pool.num_free == 8


def test_ledger_refuses_a_double_free() -> None:
    pool = PagePool(4)
    pages = pool.allocate(2, owner=1)
    pool.release(pages, 1)
    with pytest.raises(LedgerError):
        pool.release(pages, 1)
    with pytest.raises(LedgerError):
        pool.transfer(pages, 1, TREE)


def test_check_reports_a_lost_page() -> None:
    cache = PrefixCache(4)
    cache.pool.allocate(1, owner=7)  # no lease 7 exists
    assert len(cache.check()) == 1


def test_stale_eviction_entries_do_not_pile_up() -> None:
    tree = RadixTree()
    tree.insert(tree.root(""), array([1, 2, 3]), array([0, 1, 2]))
    for _ in range(5000):
        tree.match(tree.root(""), array([1, 2, 3]))
    assert len(tree._queue) < 100
    assert [e.pages.tolist() for e in tree.evict(3)] == [[0, 1, 2]]
