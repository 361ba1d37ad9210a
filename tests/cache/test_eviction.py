"""Each eviction policy against a brute-force model of what it should choose."""

from __future__ import annotations

import random
from dataclasses import dataclass

import numpy as np
import pytest

from radixray.cache.eviction import POLICIES
from radixray.cache.lease import Lease
from radixray.cache.prefix_cache import PrefixCache
from radixray.errors import InvalidRequestError
from radixray.scheduler.index import token_array

NUM_PAGES = 60

Path = tuple[int, ...]


@dataclass
class Page:
    """What the model knows of one cached page, named by the path that ends with it."""

    created: int
    used: int
    hits: int = 0
    priority: int = 0


MODEL_KEYS = {
    "lru": lambda p: p.used,
    "lfu": lambda p: (p.hits, p.used),
    "fifo": lambda p: p.created,
    "mru": lambda p: -p.used,
    "slru": lambda p: (p.hits >= 2, p.used),
    "priority": lambda p: (p.priority, p.used),
}


class Model:
    """Every page's own statistics; knows nothing of nodes, splits or queues."""

    def __init__(self, policy: str, size: int) -> None:
        self.key = MODEL_KEYS[policy]
        self.size = size
        self.pages: dict[Path, Page] = {}
        self.locked: list[Path] = []
        self.now = 0

    def along(self, path: Path) -> list[Path]:
        return [path[:n] for n in range(self.size, len(path) + 1, self.size)]

    def use(self, path: Path, after: int, priority: int) -> int:
        """A match of the pages past `after` tokens; returns how far it goes."""
        self.now += 1
        end = after
        for prefix in self.along(path):
            if len(prefix) > after and prefix in self.pages:
                page = self.pages[prefix]
                page.hits += 1
                page.used = self.now
                page.priority = max(page.priority, priority)
                end = len(prefix)
        return end

    def add(self, path: Path, after: int, priority: int) -> None:
        self.use(path, after, priority)
        self.now += 1
        for prefix in self.along(path):
            if prefix not in self.pages:
                self.pages[prefix] = Page(self.now, self.now, priority=priority)

    def unlock(self, path: Path) -> None:
        self.locked.remove(path)
        self.now += 1
        for prefix in self.along(path):
            self.pages[prefix].used = self.now

    def candidates(self) -> list[Path]:
        """Unlocked pages with nothing below them: found by looking at all."""
        busy = {prefix for path in self.locked for prefix in self.along(path)}
        parents = {path[: -self.size] for path in self.pages}
        return [path for path in self.pages if path not in busy and path not in parents]


@pytest.mark.parametrize("size", [1, 2])
@pytest.mark.parametrize("policy", list(POLICIES))
def test_policy_evicts_what_the_model_would(policy: str, size: int) -> None:
    rng = random.Random(f"{policy}{size}")
    cache = PrefixCache(NUM_PAGES, size, policy=policy)
    model = Model(policy, size)
    live: list[tuple[Lease, Path, Path]] = []
    evictions = 0

    def follow() -> None:
        """Every eviction must have been of a leaf with the least key of all."""
        nonlocal evictions
        for event in cache.drain_events():
            if event.kind == "evict":
                path = tuple(token_array(event.tokens).tolist())
                candidates = model.candidates()
                assert path in candidates
                least = min(model.key(model.pages[c]) for c in candidates)
                assert model.key(model.pages[path]) == least
                for prefix in model.along(path):
                    if len(prefix) > event.start:
                        del model.pages[prefix]
                evictions += 1

    for _ in range(1500):
        if len(live) < 3 and rng.random() < 0.7:
            tokens: Path = tuple(rng.choices((0, 1, 2), weights=(4, 2, 1), k=rng.randint(1, 14)))
            priority = rng.randint(0, 2)
            lease = cache.acquire("", np.array(tokens, np.int32), priority=priority)
            matched = model.use(tokens, 0, priority)
            assert matched == lease.cached_tokens
            path = tokens[:matched]
            model.locked.append(path)
            lease.extend(len(tokens))
            follow()
            live.append((lease, tokens, path))
        elif live:
            lease, tokens, path = live.pop(rng.randrange(len(live)))
            whole = tokens[: len(tokens) // size * size]
            if rng.random() < 0.8:
                lease.release(np.array(tokens, np.int32))
                if len(whole) > len(path):
                    model.add(whole, len(path), lease.priority)
                    model.locked.append(whole)
                    model.unlock(path)
                    path = whole
            else:
                lease.release()
            model.unlock(path)
            follow()
        if rng.random() < 0.05:
            cache.evict(rng.randint(1, 5))
            follow()
    assert evictions > 100
    assert len(cache.tree._queue) < 64 + 2 * NUM_PAGES


def test_an_unknown_policy_is_refused() -> None:
    with pytest.raises(InvalidRequestError, match=r"'lru', 'lfu', .* not 'random'") as caught:
        PrefixCache(4, policy="random")
    assert caught.value.param == "eviction_policy"
