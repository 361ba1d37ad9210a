"""Leases, pins, watches and flush: one promise a test. The state machine has the rest."""

from __future__ import annotations

import numpy as np
import pytest

from radixray.cache.page_pool import TREE, LedgerError, OutOfPagesError, PagePool
from radixray.cache.prefix_cache import PrefixCache
from radixray.cache.radix_tree import RadixTree
from radixray.errors import InvalidRequestError


def array(tokens: list[int]) -> np.ndarray:
    return np.array(tokens, np.int32)


def keep(cache: PrefixCache, tokens: list[int], namespace: str = "", priority: int = 0) -> None:
    """Computes `tokens` and leaves them in the cache."""
    lease = cache.acquire(namespace, array(tokens), priority=priority)
    lease.extend(len(tokens))
    lease.release(array(tokens))


def test_least_recently_used_leaf_goes_first() -> None:
    cache = PrefixCache(12)
    for first in (1, 2, 3):
        keep(cache, [first] * 4)
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


def test_a_prefix_was_in_use_until_its_lease_ended() -> None:
    cache = PrefixCache(8)
    keep(cache, [1] * 4)
    long = cache.acquire("", array([1] * 4))
    keep(cache, [2] * 4)
    long.release()
    cache.evict(1)
    assert [cache.peek("", array([t] * 4)).length for t in (1, 2)] == [4, 0]


def test_a_pin_outlasts_eviction_and_flush() -> None:
    cache = PrefixCache(8, pin_budget=4)
    keep(cache, [1, 2, 3, 4])
    pin = cache.pin("", array([1, 2, 9]), 10, "ann", now=0)
    assert pin.tokens == 2
    cache.evict(8)
    cache.flush()
    assert cache.peek("", array([1, 2, 3, 4])).length == 2
    assert cache.expire(9.9) == 0 and cache.expire(10) == 1
    cache.evict(8)
    assert cache.peek("", array([1, 2, 3, 4])).length == 0
    assert not cache.unpin(pin.id)


def test_the_pin_budget_counts_pages_once_and_names_itself() -> None:
    cache = PrefixCache(16, pin_budget=4)
    keep(cache, [1, 2, 3, 4])
    keep(cache, [5])
    pins = [cache.pin("", array([1, 2, 3, 4]), 10, "ann", now=0) for _ in range(2)]
    with pytest.raises(InvalidRequestError, match="pin budget is 4 pages") as caught:
        cache.pin("", array([5]), 10, "bob", now=0)
    assert caught.value.param == "pin"
    cache.unpin(pins[0].id)
    assert cache.pins.pages == 4
    assert cache.unpin_owner("ann") == 1
    assert cache.pin("", array([5]), 10, "bob", now=0).tokens == 1


def test_the_default_pin_budget_is_a_quarter_of_the_pool() -> None:
    assert PrefixCache(1000).pins.budget == 250


@pytest.mark.parametrize("ttl_s", [-1, float("nan"), 1e9, "soon"])
def test_a_bad_ttl_is_refused(ttl_s: float) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        PrefixCache(4).pin("", array([1]), ttl_s, "ann")
    assert caught.value.param == "ttl_s"


def test_flush_tells_what_stays() -> None:
    cache = PrefixCache(32, 2)
    for tail in ([3, 4], [5, 6]):
        keep(cache, [1, 2, *tail, 7, 7])
    keep(cache, [9, 9], "salt")
    lease = cache.acquire("", array([1, 2, 3, 4]))
    freed = cache.flush()
    assert freed == 1 + 1 + 2
    events = cache.drain_events()
    assert [(e.kind, len(e.tokens) // 4, e.start) for e in events] == [
        ("clear", 0, 0),
        ("insert", 2, 0),
        ("insert", 4, 2),
    ]
    lease.release()
    assert cache.flush() == 2
    assert [e.kind for e in cache.drain_events()] == ["clear"]
    assert cache.pool.num_free == 32


def test_ten_thousand_watches_sleep_through_unrelated_inserts() -> None:
    tree = RadixTree()
    watches = [tree.watch("", array([1, i, i, i])) for i in range(10_000)]
    woken = []
    descend = type(watches[0])._descend
    try:
        type(watches[0])._descend = lambda self: (woken.append(self), descend(self))
        for i in range(100):
            tree.insert(tree.root(""), array([2, i]), array([0, 0]))
        assert woken == []
        tree.insert(tree.root(""), array([1, 7, 7, 8]), array([0, 0, 0, 0]))
        assert len(woken) == 10_000  # all begin with 1
        woken.clear()
        tree.insert(tree.root(""), array([1, 9, 9, 9]), array([0, 0, 0, 0]))
        assert woken == [watches[9]]
    finally:
        type(watches[0])._descend = descend
    assert (watches[7].length, watches[9].length, watches[8].length) == (3, 4, 1)
    for watch in watches:
        watch.close()


def test_the_view_shows_who_holds_what() -> None:
    cache = PrefixCache(64)
    for tail in range(5):
        keep(cache, [1, 2, 3, 10 + tail, 11])
    lease = cache.acquire("", array([1, 2, 3, 10]), owner="request-1")
    cache.pin("", array([1, 2, 3]), 10, "ann")
    view = cache.view()
    assert (view.total_nodes, view.pages_tree, view.pages_pinned) == (7, 13, 3)
    top = view.nodes[0]
    assert (top.parent, top.start, top.length, top.pages_below) == (None, 0, 3, 10)
    assert (top.holders, top.locks, top.pins, top.head) == (["pin of ann"], 2, 1, [1, 2, 3])
    assert top.hits == 6 and 0 <= top.idle_s <= top.age_s < 60
    (held,) = [node for node in view.nodes if node.holders == ["request-1"]]
    assert (held.parent, held.start, held.length) == (top.id, 3, 1)
    few = cache.view(3)
    assert len(few.nodes) == 3 and few.total_nodes == 7
    assert all(node.parent is None or node.parent < node.id for node in few.nodes)
    lease.release()
