"""The ledger's faults: found, named, repaired, and nobody reads another's KV."""

from __future__ import annotations

import numpy as np
import pytest

from radixray.cache.lease import Lease
from radixray.cache.page_pool import TREE, PagePool
from radixray.cache.prefix_cache import PrefixCache

SHARED, TAIL, OTHER = [1, 2, 3], [4, 5], [7, 8, 9]


def array(tokens: list[int]) -> np.ndarray:
    return np.array(tokens, np.int32)


@pytest.fixture
def cache() -> PrefixCache:
    """SHARED + TAIL and OTHER are cached, unlocked, in 16 pages."""
    cache = PrefixCache(16)
    for tokens in (SHARED + TAIL, OTHER):
        lease = cache.acquire("", array(tokens))
        lease.extend(len(tokens))
        lease.release(array(tokens))
    cache.drain_events()
    return cache


@pytest.fixture
def lease(cache: PrefixCache) -> Lease:
    """Reads SHARED, and owns two pages."""
    lease = cache.acquire("", array(SHARED), owner="request-1")
    lease.extend(5)
    return lease


def cached(cache: PrefixCache) -> list[int]:
    return [cache.peek("", array(t)).length for t in (SHARED + TAIL, OTHER)]


def assert_sound(cache: PrefixCache) -> None:
    assert cache.check() == []
    pool = cache.pool
    assert pool.num_free + cache.tree.num_pages + cache.leased_pages == pool.num_pages
    cache.flush()
    assert cache.check() == []


def test_nothing_to_repair(cache: PrefixCache, lease: Lease) -> None:
    repair = cache.repair()
    assert (repair.violations, repair.damaged, repair.dropped_tokens) == ([], [], 0)
    assert cached(cache) == [5, 3]


def test_a_wrong_owner_is_named_and_put_right(cache: PrefixCache, lease: Lease) -> None:
    page = int(lease.private_pages()[0])
    cache.pool.owner[page] = 99
    (violation,) = cache.check()
    who = f"lease {lease.id} of request-1"
    assert violation == (
        f"page {page}: the ledger says lease 99, which is no more; claimed by {who}; "
        f"its owners were [{who!r}]"
    )
    assert cache.repair().damaged == []
    assert cached(cache) == [5, 3] and not lease.damaged
    lease.release(array([*SHARED, 6, 6]))
    assert_sound(cache)


def test_history_remembers_the_last_owners() -> None:
    pool = PagePool(1)
    for owner in (1, 2):
        page = pool.allocate(1, owner)
        pool.transfer(page, owner, TREE)
        pool.release(page, TREE)
    assert pool.history(0) == [0, 2, -1, 0]


def test_a_lost_page_is_found_again(cache: PrefixCache) -> None:
    lost = cache.pool.allocate(3, owner=42)
    assert all("claimed by nobody" in v for v in cache.check())
    cache.repair()
    assert cache.pool.num_free == 8 and set(lost) <= set(cache.pool.free_pages())
    assert cached(cache) == [5, 3]
    assert_sound(cache)


def test_a_page_in_the_free_list_and_a_lease_stays_the_leases(
    cache: PrefixCache, lease: Lease
) -> None:
    page = lease.private_pages()[0]
    cache.pool._free[cache.pool.num_free] = page
    cache.pool.num_free += 1
    (violation,) = cache.check()
    assert "claimed by the free list and lease" in violation
    assert cache.repair().damaged == []
    other = cache.acquire("", array([6] * 6))
    other.extend(6)
    assert page not in other.private_pages()
    assert cache.check() == []


def test_a_page_freed_under_its_lease_damages_it(cache: PrefixCache, lease: Lease) -> None:
    cache.pool.release(lease.private_pages()[:1], lease.id)  # and the lease goes on using it
    assert cache.repair().damaged == [lease]
    assert lease.damaged and lease.num_pages == 0
    lease.release(array([*SHARED, 6, 6]))  # gives nothing to the tree
    assert cached(cache) == [5, 3]
    assert cache.peek("", array([*SHARED, 6, 6])).length == 3
    assert_sound(cache)


def test_a_page_of_lease_and_tree_stays_the_leases_and_the_nodes_go(
    cache: PrefixCache, lease: Lease
) -> None:
    # The tree's OTHER was freed by mistake; the lease got one of its pages and wrote to it.
    (node,) = [n for n in cache.tree.nodes() if n.tokens[0] == OTHER[0]]
    pages = node.pages.copy()
    cache.pool.release(pages, TREE)
    lease.extend(6)
    assert np.isin(lease.private_pages(), pages).any()
    watch = cache.watch("", array(OTHER))
    repair = cache.repair()
    assert repair.damaged == [] and repair.dropped_tokens == 3
    assert cached(cache) == [5, 0] and watch.length == 0
    assert [e.kind for e in cache.drain_events()] == ["evict"]
    lease.release(array([*SHARED, 6, 6, 6]))
    assert_sound(cache)


def test_readers_of_a_damaged_prefix_start_over(cache: PrefixCache, lease: Lease) -> None:
    # SHARED's pages were freed by mistake, and another request wrote to one.
    cache.pool.release(lease.shared_pages().copy(), TREE)
    other = cache.acquire("", array([6]), owner="request-2")
    other.extend(1)
    pin = cache.pin("", array(SHARED), 60, "ann")
    repair = cache.repair()
    assert repair.damaged == [lease] and not other.damaged
    assert repair.dropped_pins == 1 and not cache.unpin(pin.id)
    assert cached(cache) == [0, 3]  # TAIL went with what is above it
    assert cache.check() == []
    lease.release(array(SHARED))
    other.release(array([6]))
    assert cache.peek("", array([6])).length == 1
    assert_sound(cache)


def test_two_leases_with_one_page_both_start_over(cache: PrefixCache, lease: Lease) -> None:
    cache.pool.release(lease.private_pages()[1:], lease.id)
    other = cache.acquire("", array([6]))
    other.extend(1)
    assert lease.private_pages()[1] in other.private_pages()
    assert sorted(d.id for d in cache.repair().damaged) == sorted([lease.id, other.id])
    lease.release()
    other.release()
    assert_sound(cache)


def test_a_page_that_does_not_exist(cache: PrefixCache, lease: Lease) -> None:
    (node,) = [n for n in cache.tree.nodes() if n.tokens[0] == OTHER[0]]
    node.pages[1] = 4000
    assert any("do not exist" in violation for violation in cache.check())
    cache.repair()
    assert cached(cache) == [5, 0]
    assert_sound(cache)


@pytest.mark.parametrize("counter", ["num_pages", "num_evictable", "num_nodes"])
def test_wrong_counters_are_recounted(cache: PrefixCache, lease: Lease, counter: str) -> None:
    setattr(cache.tree, counter, getattr(cache.tree, counter) + 3)
    assert len(cache.check()) == 1
    cache.repair()
    assert cached(cache) == [5, 3]
    assert_sound(cache)


def test_wrong_locks_are_recounted(cache: PrefixCache, lease: Lease) -> None:
    lease.node.locks = 0
    assert any("0 locks" in violation for violation in cache.check())
    cache.repair()
    assert lease.node.locks == 1 and cache.evict(16) == 5
    lease.release()
    assert_sound(cache)


def test_a_commit_that_fails_halfway_is_repaired(cache: PrefixCache, lease: Lease) -> None:
    cache.pool.owner[lease.private_pages()[1]] = 99
    with pytest.raises(Exception, match="given by owner"):
        lease.commit(array([*SHARED, 6, 6]))
    cache.repair()
    assert cache.check() == []
    lease.release(array([*SHARED, 6, 6]) if not lease.damaged else None)
    assert_sound(cache)
