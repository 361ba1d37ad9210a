"""A hypothesis state machine over everything the prefix cache does, against brute-force models.

The models never look into the tree. They know which page-aligned prefixes were committed and not
reported evicted, what "KV" (namespace, whole prefix) each slot holds, and who holds what.
"""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from radixray.cache.eviction import POLICIES
from radixray.cache.lease import Lease
from radixray.cache.page_pool import OutOfPagesError
from radixray.cache.pins import Pin
from radixray.cache.prefix_cache import PrefixCache
from radixray.cache.watches import Watch
from radixray.errors import InvalidRequestError
from radixray.scheduler.index import PrefixIndex, token_array

NUM_PAGES = 48
PIN_BUDGET = 10

Prefix = tuple[str, tuple[int, ...]]

namespaces = st.sampled_from(["", "", "salt"])
priorities = st.integers(0, 2)
seeds = st.lists(st.integers(0, 1), min_size=3, max_size=12)
picks = st.integers(0, 15)
"""Which of the live leases, pins, or watches: counted round."""

holds_leases = precondition(lambda machine: machine.live)
holds_pins = precondition(lambda machine: machine.live_pins)
holds_watches = precondition(lambda machine: machine.live_watches)
is_cached = precondition(lambda machine: len(machine.cached) > 3)


def array(tokens: list[int]) -> np.ndarray:
    return np.array(tokens, np.int32)


class CacheMachine(RuleBasedStateMachine):
    """Random leases, pins, watches, evictions, flushes and repairs. Subclasses set `size`."""

    size = 1

    @initialize(
        policy=st.sampled_from(list(POLICIES)), first=st.lists(seeds, min_size=2, max_size=4)
    )
    def start(self, policy: str, first: list[list[int]]) -> None:
        self.cache = PrefixCache(NUM_PAGES, self.size, policy=policy, pin_budget=PIN_BUDGET)
        self.slots: dict[int, Prefix] = {}
        self.cached: set[Prefix] = set()
        self.index = PrefixIndex()
        self.live: dict[int, tuple[Lease, str, list[int]]] = {}
        self.live_pins: dict[int, tuple[Pin, str, list[int]]] = {}
        self.live_watches: dict[int, tuple[Watch, str, list[int]]] = {}
        self.now = 0.0
        for number, seed in enumerate(first):
            self.request("", seed, 0, hold=number == 0)
            self.watch("", seed[::-1])

    # The models

    def spell(self, seed: list[int]) -> list[int]:
        """Tokens of several pages: pages alike in most tokens, so that edges part within them."""
        tokens = [t for t in seed for _ in range(self.size)]
        return tokens[: len(tokens) - (seed[0] + len(seed)) % self.size]

    def prefixes(self, namespace: str, path: list[int], start: int = 0) -> set[Prefix]:
        ends = range(start + self.size, len(path) + 1, self.size)
        return {(namespace, tuple(path[:n])) for n in ends}

    def longest(self, namespace: str, tokens: list[int]) -> int:
        best = 0
        for n in range(self.size, len(tokens) + 1, self.size):
            if (namespace, tuple(tokens[:n])) not in self.cached:
                break
            best = n
        return best

    def pinned(self) -> set[Prefix]:
        held: set[Prefix] = set()
        for pin, namespace, tokens in self.live_pins.values():
            held |= self.prefixes(namespace, tokens[: pin.tokens])
        return held

    def leased(self) -> set[Prefix]:
        held: set[Prefix] = set()
        for lease, namespace, tokens in self.live.values():
            held |= self.prefixes(namespace, tokens[: lease.num_shared * self.size])
        return held

    def follow_events(self) -> None:
        for event in self.cache.drain_events():
            path = token_array(event.tokens)
            prefixes = self.prefixes(event.namespace, path.tolist(), event.start)
            if event.kind == "insert":
                assert not prefixes & self.cached
                self.cached |= prefixes
                self.index.add(0, event.namespace, path, event.start)
            elif event.kind == "evict":
                assert prefixes <= self.cached
                self.cached -= prefixes
                self.index.remove(0, event.namespace, path, event.start)
            else:
                self.cached.clear()
                self.index.clear(0)

    def write(self, lease: Lease, namespace: str, tokens: list[int], start: int) -> None:
        slots = lease.slots(len(tokens)).tolist()
        for position in range(start, len(tokens)):
            self.slots[slots[position]] = (namespace, tuple(tokens[: position + 1]))

    # Leases

    @rule(namespace=namespaces, seed=seeds, priority=priorities, hold=st.booleans())
    def request(self, namespace: str, seed: list[int], priority: int, hold: bool) -> None:
        """Computes a prompt, shares it, and holds its lease or ends."""
        tokens = self.spell(seed)
        expected = self.longest(namespace, tokens)
        assert self.cache.peek(namespace, array(tokens)).length == expected
        lease = self.cache.acquire(namespace, array(tokens), priority=priority)
        assert lease.cached_tokens == expected
        try:
            lease.extend(len(tokens))
        except OutOfPagesError:
            lease.release()
            self.follow_events()
            return
        self.write(lease, namespace, tokens, expected)
        self.live[lease.id] = (lease, namespace, tokens)
        self.follow_events()
        if not hold:
            self.end(lease, keep=True)

    @holds_leases
    @rule(pick=picks, more=st.lists(st.integers(0, 1), min_size=1, max_size=20))
    def grow(self, pick: int, more: list[int]) -> None:
        lease, namespace, tokens = self.pick_lease(pick)
        old = len(tokens)
        try:
            lease.extend(old + len(more))
        except OutOfPagesError:
            assert self.cache.available_pages * self.size < len(more)
            return
        tokens.extend(more)
        self.write(lease, namespace, tokens, old)
        self.follow_events()

    @holds_leases
    @rule(pick=picks, part=st.floats(0.3, 1))
    def commit(self, pick: int, part: float) -> None:
        lease, _, tokens = self.pick_lease(pick)
        lease.commit(array(tokens[: int(part * len(tokens))]))
        self.follow_events()

    @holds_leases
    @rule(pick=picks, keep=st.booleans())
    def release(self, pick: int, keep: bool) -> None:
        self.end(self.pick_lease(pick)[0], keep)

    def pick_lease(self, pick: int) -> tuple[Lease, str, list[int]]:
        return list(self.live.values())[pick % len(self.live)]

    def end(self, lease: Lease, keep: bool) -> None:
        _, namespace, tokens = self.live.pop(lease.id)
        expected = self.cache.available_pages + lease.reclaimable_pages()
        lease.release(array(tokens) if keep else None)
        self.follow_events()
        assert self.cache.available_pages == expected
        if keep:
            assert self.longest(namespace, tokens) == len(tokens) // self.size * self.size

    # Eviction and flush

    @is_cached
    @rule(count=st.integers(1, 10))
    def evict(self, count: int) -> None:
        possible = self.cache.tree.num_evictable
        assert self.cache.evict(count) >= min(count, possible)
        self.follow_events()

    @precondition(lambda machine: len(machine.cached) > NUM_PAGES // 2)
    @rule()
    def flush(self) -> None:
        stays = self.pinned() | self.leased()
        self.cache.flush()
        self.follow_events()
        assert stays <= self.cached
        assert self.cache.tree.num_evictable == 0

    # Pins

    @is_cached
    @rule(
        pick=st.integers(0, NUM_PAGES),
        more=st.lists(st.integers(0, 1), max_size=3),
        ttl=st.floats(0, 5),
        owner=st.sampled_from(["ann", "bob"]),
    )
    def pin(self, pick: int, more: list[int], ttl: float, owner: str) -> None:
        prefixes = sorted(self.cached)
        namespace, path = prefixes[pick % len(prefixes)]
        tokens = [*path, *more]
        length = self.longest(namespace, tokens)
        wanted = self.pinned() | self.prefixes(namespace, tokens[:length])
        try:
            pin = self.cache.pin(namespace, array(tokens), ttl, owner, now=self.now)
        except InvalidRequestError as error:
            assert error.param == "pin" and len(wanted) > PIN_BUDGET
        else:
            assert pin.tokens == length and len(wanted) <= PIN_BUDGET
            self.live_pins[pin.id] = (pin, namespace, tokens)

    @rule(seed=seeds)
    def pin_nothing(self, seed: list[int]) -> None:
        tokens = array(self.spell(seed))
        assert self.cache.pin("nobody's", tokens, 1, "ann", now=self.now).tokens == 0

    @holds_pins
    @rule(pick=picks)
    def unpin(self, pick: int) -> None:
        pin_id = list(self.live_pins)[pick % len(self.live_pins)]
        del self.live_pins[pin_id]
        assert self.cache.unpin(pin_id)
        assert not self.cache.unpin(pin_id)

    @holds_pins
    @rule(owner=st.sampled_from(["ann", "bob"]))
    def unpin_owner(self, owner: str) -> None:
        mine = [i for i, (pin, _, _) in self.live_pins.items() if pin.owner == owner]
        assert self.cache.unpin_owner(owner) == len(mine)
        for pin_id in mine:
            del self.live_pins[pin_id]

    @holds_pins
    @rule(seconds=st.floats(0, 3))
    def expire(self, seconds: float) -> None:
        self.now += seconds
        due = [i for i, (pin, _, _) in self.live_pins.items() if pin.expires <= self.now]
        assert self.cache.expire(self.now) == len(due)
        for pin_id in due:
            del self.live_pins[pin_id]

    # Watches

    @rule(namespace=namespaces, seed=seeds)
    def watch(self, namespace: str, seed: list[int]) -> None:
        tokens = self.spell(seed)
        watch = self.cache.watch(namespace, array(tokens))
        self.live_watches[id(watch)] = (watch, namespace, tokens)

    @holds_watches
    @rule(pick=picks)
    def close(self, pick: int) -> None:
        watch_id = list(self.live_watches)[pick % len(self.live_watches)]
        watch = self.live_watches.pop(watch_id)[0]
        watch.close()
        watch.close()

    # Faults of the ledger

    @is_cached
    @rule(
        kind=st.sampled_from(["owner", "free", "lost", "counter", "locks", "node"]),
        page=st.integers(0, NUM_PAGES - 1),
        owner=st.integers(-1, 4),
    )
    def corrupt_and_repair(self, kind: str, page: int, owner: int) -> None:
        cache, pool = self.cache, self.cache.pool
        if kind == "owner":
            pool.owner[page] = owner
        elif kind == "free" and pool.num_free < NUM_PAGES:
            pool._free[pool.num_free] = page
            pool.num_free += 1
        elif kind == "lost" and pool.num_free > 0:
            pool.num_free -= 1
        elif kind == "counter":
            cache.tree.num_evictable += 1
        elif kind == "locks":
            next(cache.tree.nodes()).locks += 1
        elif kind == "node":
            nodes = list(cache.tree.nodes())
            nodes[page % len(nodes)].pages[0] = page
        before = cache.check()
        repair = cache.repair()
        assert repair.violations == before
        self.follow_events()
        for lease in repair.damaged:
            del self.live[lease.id]
            lease.release()
        held = {id(pin) for pin in cache.pins.pins()}
        gone = [i for i, (pin, _, _) in self.live_pins.items() if id(pin) not in held]
        assert len(gone) == repair.dropped_pins
        for pin_id in gone:
            del self.live_pins[pin_id]

    # What always holds

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
    def what_is_held_is_cached(self) -> None:
        pinned = self.pinned()
        assert self.cache.pins.pages == len(pinned) <= PIN_BUDGET
        assert pinned | self.leased() <= self.cached
        evictable = len(self.cached - self.locked())
        assert self.cache.tree.num_evictable == evictable

    def locked(self) -> set[Prefix]:
        return self.pinned() | self.leased()

    @invariant()
    def watches_equal_peeks(self) -> None:
        locked = self.locked()
        for watch, namespace, tokens in self.live_watches.values():
            length = self.longest(namespace, tokens)
            assert watch.length == length
            prefixes = self.prefixes(namespace, tokens[:length])
            assert watch.unlocked_pages() == len(prefixes - locked)
            peek = self.cache.peek(namespace, array(tokens))
            assert (peek.length, peek.unlocked_pages) == (length, watch.unlocked_pages())
            # Another structure, fed by the events alone, knows the same.
            expected = {0: length} if length else {}
            held = self.index.match(namespace, array(tokens))
            assert {k: n - n % self.size for k, n in held.items() if n >= self.size} == expected

    @invariant()
    def snapshot_is_the_cached_set(self) -> None:
        prefixes: set[Prefix] = set()
        for event in self.cache.snapshot():
            prefixes |= self.prefixes(event.namespace, token_array(event.tokens).tolist())
        assert prefixes == self.cached

    def teardown(self) -> None:
        if not hasattr(self, "cache"):
            return
        for lease, _, _ in self.live.values():
            lease.release()
        self.cache.expire(float("inf"))
        for watch, _, _ in self.live_watches.values():
            watch.close()
        assert self.cache.available_pages == NUM_PAGES
        self.cache.flush()
        assert [event.kind for event in self.cache.drain_events()] == ["clear"]
        assert self.cache.pool.num_free == NUM_PAGES
        assert list(self.cache.tree.nodes()) == []
        assert self.cache.tree.roots() == []
