"""Which prefixes are given to a new model actor."""

from __future__ import annotations

import numpy as np

from radixray.actors.warming import hottest, with_salts
from radixray.actors.wire import HotPrefix
from radixray.cache.prefix_cache import PrefixCache
from radixray.namespaces import ImageKey, namespace_of, salt_of


def used(cache: PrefixCache, namespace: str, tokens: list[int], times: int) -> None:
    for _ in range(times):
        lease = cache.acquire(namespace, np.array(tokens, np.int32))
        lease.extend(len(tokens))
        lease.release(np.array(tokens, np.int32))


def found(cache: PrefixCache, max_tokens: int) -> list[tuple[str, list[int]]]:
    prefixes = cache.hot_prefixes(max_tokens)
    return [(name, np.frombuffer(tokens, np.int32).tolist()) for name, tokens, _ in prefixes]


def test_the_most_used_come_first_and_what_they_share_counts_once() -> None:
    cache = PrefixCache(200, 1)
    system = list(range(20))
    often, seldom, once = [*system, 90, 91], [*system, 80, 81], [70, 71, 72]
    used(cache, "n", often, 6)
    used(cache, "n", seldom, 3)
    used(cache, "n", once, 1)
    used(cache, "other", [1, 2], 9)
    both = [("other", [1, 2]), ("n", often), ("n", seldom)]
    assert found(cache, 1000) == both
    assert found(cache, 26) == both
    assert found(cache, 25) == both[:2]
    assert found(cache, 22) == [both[0], ("n", system)]
    # What does not fit leaves room for what does.
    assert found(cache, 5) == [both[0]]
    assert found(cache, 1) == []
    assert found(PrefixCache(10, 1), 10) == []


def test_several_caches_in_one_list() -> None:
    a, b = b"\1\0\0\0", b"\2\0\0\0"
    held = [[HotPrefix("", a, 3), HotPrefix("s", a, 1)], [], [HotPrefix("", b, 4)]]
    assert hottest([*held, [HotPrefix("s", a, 5)]]) == [
        HotPrefix("s", a, 6),
        HotPrefix("", b, 4),
        HotPrefix("", a, 3),
    ]


def test_only_what_tokens_make() -> None:
    image = ImageKey(sha256="0" * 64, shape=(1, 1, 3))
    names = [
        namespace_of("m", 'a "salt"'),
        namespace_of("m", images=[image]),
        namespace_of("m", adapter="lora"),
        namespace_of("m"),
    ]
    assert [salt_of(name) for name in names] == ['a "salt"', None, None, ""]
    assert [p.cache_salt for p in with_salts((n, b"", 1) for n in names)] == ['a "salt"', ""]
