"""Namespaces: equal for what may share KV, different for all that may not."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from radixray.cache.prefix_cache import PrefixCache
from radixray.namespaces import ImageKey, namespace_of

images = st.lists(
    st.builds(
        ImageKey,
        st.sampled_from(["a" * 64, "a" * 63 + "b"]),
        st.sampled_from([(2, 3, 3), (3, 2, 3)]),
        st.sampled_from(["", "bilinear", "bicubic"]),
    ),
    max_size=3,
)
words = st.sampled_from(["", "a", "b", "a,b", '"', "a\\", "[]"])
properties = st.tuples(words, words, words, images)


@given(properties, properties)
def test_different_properties_never_share(one: tuple, two: tuple) -> None:
    first = namespace_of(one[0], one[1], adapter=one[2], images=one[3])
    second = namespace_of(two[0], two[1], adapter=two[2], images=two[3])
    assert (first == second) == (one == two)


def test_equal_tokens_in_two_namespaces_share_no_page() -> None:
    import numpy as np

    tokens = np.arange(8, dtype=np.int32)
    cache = PrefixCache(64)
    hash_ = "c" * 64
    kinds = [
        namespace_of("m"),
        namespace_of("m", "salt"),
        namespace_of("m", adapter="tuned@1"),
        namespace_of("m", adapter="tuned@2"),
        namespace_of("m", images=[ImageKey(hash_, (8, 4, 3))]),
        namespace_of("m", images=[ImageKey(hash_, (4, 8, 3))]),
        namespace_of("m", images=[ImageKey(hash_, (8, 4, 3), "bicubic")]),
    ]
    for kind in kinds:
        lease = cache.acquire(kind, tokens)
        assert lease.cached_tokens == 0
        lease.extend(8)
        lease.release(tokens)
    assert all(cache.peek(kind, tokens).length == 8 for kind in kinds)
    assert cache.tree.num_pages == 8 * len(kinds)
