"""Namespaces: equal for what may share KV, different for all that may not."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from radixray.cache.prefix_cache import PrefixCache
from radixray.errors import InvalidRequestError
from radixray.namespaces import ImageKey, namespace_of
from radixray.scheduler.index import PrefixIndex, token_array

images = st.lists(
    st.builds(
        ImageKey,
        st.sampled_from(["a" * 64, "a" * 63 + "b"]),
        st.sampled_from([(2, 3, 3), (3, 2, 3)]),
        st.sampled_from(["", "bilinear", "bicubic"]),
    ),
    max_size=3,
)
words = st.sampled_from(["", "a", "b", "a,b", '"', "a\\", "[]", '","', "é"])
properties = st.tuples(words, words, words, images)

HASH = hashlib.sha256(b"pixels").hexdigest()
IMAGE = ImageKey(HASH, (8, 4, 3), "bicubic")
OTHER_IMAGES = {
    "other bytes": ImageKey(hashlib.sha256(b"pixelz").hexdigest(), (8, 4, 3), "bicubic"),
    "first half of the hash alike": ImageKey(HASH[:32] + HASH[:32], (8, 4, 3), "bicubic"),
    "last half of the hash alike": ImageKey(HASH[32:] + HASH[32:], (8, 4, 3), "bicubic"),
    "height and width swapped": ImageKey(HASH, (4, 8, 3), "bicubic"),
    "other channels": ImageKey(HASH, (8, 4, 1), "bicubic"),
    "other decoding": ImageKey(HASH, (8, 4, 3), "bilinear"),
}
PLACEHOLDER = 7
TEXT_BEFORE, TEXT_AFTER = list(range(100, 140)), list(range(200, 240))
PROMPT = np.array([*TEXT_BEFORE, *[PLACEHOLDER] * 16, *TEXT_AFTER], np.int32)


@given(properties, properties)
def test_different_properties_never_share(one: tuple, two: tuple) -> None:
    first = namespace_of(one[0], one[1], adapter=one[2], images=one[3])
    second = namespace_of(two[0], two[1], adapter=two[2], images=two[3])
    assert (first == second) == (one == two)


@given(properties, st.integers(0, 3), properties)
def test_each_property_alone_makes_a_difference(one: tuple, index: int, two: tuple) -> None:
    """All equal but one; also where its text could be read as a neighbour's."""
    other = (*one[:index], two[index], *one[index + 1 :])
    first = namespace_of(one[0], one[1], adapter=one[2], images=one[3])
    second = namespace_of(other[0], other[1], adapter=other[2], images=other[3])
    assert (first == second) == (one == other)


@pytest.mark.parametrize("text", ["ab", 'a","b', "a\\b", "[[]"])
def test_the_same_text_in_another_place_is_another_namespace(text: str) -> None:
    """However it is spread over model, salt and adapter, or looks like the separators."""
    cuts = itertools.combinations_with_replacement(range(len(text) + 1), 2)
    spread = [(text[:i], text[i:j], text[j:]) for i, j in cuts]
    found = {namespace_of(model, salt, adapter=adapter) for model, salt, adapter in spread}
    assert len(found) == len(set(spread))


def cached_of(cache: PrefixCache, namespace: str) -> int:
    """Runs PROMPT: what it found in the cache; then all of it is cached."""
    lease = cache.acquire(namespace, PROMPT)
    found = lease.cached_tokens
    lease.extend(len(PROMPT))
    lease.release(PROMPT)
    return found


def whole_pages(page_size: int) -> int:
    return len(PROMPT) // page_size * page_size


@pytest.mark.parametrize("page_size", [1, 16])
@pytest.mark.parametrize("difference", OTHER_IMAGES)
def test_another_image_behind_the_same_tokens_shares_nothing(
    difference: str, page_size: int
) -> None:
    """Not one token, at or before or after the image; the same image shares them all."""
    cache = PrefixCache(512, page_size)
    other = namespace_of("m", images=[OTHER_IMAGES[difference]])
    assert cached_of(cache, namespace_of("m", images=[IMAGE])) == 0
    assert cached_of(cache, other) == 0
    assert cached_of(cache, namespace_of("m")) == 0
    # And both are there, each for itself.
    again = ImageKey(hashlib.sha256(b"pixels").hexdigest(), (8, 4, 3), "bicubic")
    assert cached_of(cache, namespace_of("m", images=[again])) == whole_pages(page_size)
    assert cached_of(cache, other) == whole_pages(page_size)


def test_the_order_and_number_of_images_count() -> None:
    """The same placeholders stand for other pixels when images change places."""
    second = OTHER_IMAGES["other bytes"]
    cache = PrefixCache(1024)
    for found in ([IMAGE], [IMAGE, second], [second, IMAGE], [IMAGE, IMAGE], [second]):
        assert cached_of(cache, namespace_of("m", images=found)) == 0
        assert cached_of(cache, namespace_of("m", images=found)) == len(PROMPT)


@pytest.mark.parametrize(
    "hash_",
    [HASH[:4], HASH[:63], HASH + "0", HASH[:63] + "g", HASH.upper(), "", "sha256:" + HASH[:57]],
)
def test_a_shortened_hash_is_no_image_key(hash_: str) -> None:
    """Only the whole hash, in one spelling, is one."""
    with pytest.raises(InvalidRequestError) as caught:
        ImageKey(hash_, (8, 4, 3))
    assert caught.value.param == "sha256" and "64" in caught.value.message


@pytest.mark.parametrize("page_size", [1, 16])
def test_adapters_share_nothing_with_each_other_or_the_model(page_size: int) -> None:
    """Also where a newly loaded adapter has an old one's name: its version differs."""
    cache = PrefixCache(512, page_size)
    kinds = [
        namespace_of("m"),
        namespace_of("m", adapter="tuned@1"),
        namespace_of("m", adapter="tuned@2"),
        namespace_of("m", adapter="other@1"),
    ]
    assert [cached_of(cache, kind) for kind in kinds] == [0] * 4
    assert [cached_of(cache, kind) for kind in kinds] == [whole_pages(page_size)] * 4


@pytest.mark.parametrize(
    "kind",
    [
        lambda i: namespace_of(f"m{i}"),
        lambda i: namespace_of("m", f"salt{i}"),
        lambda i: namespace_of("m", adapter=f"a@{i}"),
        lambda i: namespace_of("m", images=[list(OTHER_IMAGES.values())[i]]),
    ],
    ids=["model", "salt", "adapter", "image"],
)
def test_no_way_into_the_cache_crosses_namespaces(kind: Callable[[int], str]) -> None:
    """Peeks, watches, pins, eviction, events, and the router's index keep them apart."""
    one, two = kind(0), kind(1)
    cache = PrefixCache(256)
    watch = cache.watch(two, PROMPT)
    cached_of(cache, one)
    assert cache.peek(one, PROMPT).length == len(PROMPT)
    assert cache.peek(two, PROMPT).length == watch.length == 0
    assert cache.pin(two, PROMPT, 60, "ann").tokens == 0
    index = PrefixIndex()
    for event in cache.drain_events():
        index.add(0, event.namespace, token_array(event.tokens), event.start)
    assert index.match(one, PROMPT) == {0: len(PROMPT)}
    assert not index.match(two, PROMPT)
    cached_of(cache, two)
    assert watch.length == len(PROMPT)
    watch.close()
    pages = {name: set(found_pages(cache, name)) for name in (one, two)}
    assert len(pages[one]) == len(PROMPT) == len(pages[two]) and not pages[one] & pages[two]


def found_pages(cache: PrefixCache, namespace: str) -> Any:
    lease = cache.acquire(namespace, PROMPT)
    pages = lease.shared_pages().tolist()
    lease.release()
    return pages


def test_each_separate_tree_is_separate_from_the_root_down() -> None:
    """With any two kinds of requests in one cache, the first token already is another's."""
    kinds = [
        namespace_of("m"),
        namespace_of("n"),
        namespace_of("m", "salt"),
        namespace_of("m", adapter="tuned@1"),
        namespace_of("m", images=[IMAGE]),
        *(namespace_of("m", images=[image]) for image in OTHER_IMAGES.values()),
    ]
    cache = PrefixCache(2048)
    for kind in kinds:
        assert cached_of(cache, kind) == 0
    assert cache.tree.num_pages == len(PROMPT) * len(kinds)
    assert len(cache.tree.roots()) == len(kinds)
    pages = [set(found_pages(cache, kind)) for kind in kinds]
    assert all(not a & b for a, b in itertools.combinations(pages, 2))
