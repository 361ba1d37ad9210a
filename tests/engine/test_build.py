"""From a configuration to an engine: what sizes the KV pool, and what is refused."""

from __future__ import annotations

import pytest

from radixray.config import EngineConfig
from radixray.engine.build import _free_memory, build_engine
from radixray.errors import InvalidRequestError

BYTES_PER_TOKEN = 2 * 30 * 3 * 64 * 2  # keys and values, layers, KV heads, head size, bfloat16


def test_a_fraction_of_the_memory_holds_weights_and_pool() -> None:
    free = _free_memory()
    engine = build_engine(EngineConfig(mem_fraction_static=0.1))
    pool = engine.info.pool_tokens * BYTES_PER_TOKEN
    assert 0.02 * free < pool < 0.11 * free


def test_a_pool_is_whole_pages() -> None:
    engine = build_engine(EngineConfig(max_total_tokens=1000, page_size=64))
    assert engine.info.pool_tokens == 960
    assert engine.cache.pool.num_pages == 15


@pytest.mark.parametrize(
    ("settings", "param"),
    [
        ({"mem_fraction_static": 0.0}, "mem_fraction_static"),
        ({"mem_fraction_static": 1.5}, "mem_fraction_static"),
        ({"mem_fraction_static": 0.5, "max_total_tokens": 100}, "mem_fraction_static"),
        ({"page_size": 64, "max_total_tokens": 10}, "max_total_tokens"),
        ({"context_length": 1_000_000}, "context_length"),
        ({"schedule_policy": "fastest"}, "schedule_policy"),
        ({"eviction_policy": "newest"}, "eviction_policy"),
        ({"dtype": "float8"}, "dtype"),
        ({"page_size": 0}, "page_size"),
        ({"pin_budget": -1}, "pin_budget"),
    ],
)
def test_settings_out_of_range_are_named(settings: dict, param: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        build_engine(EngineConfig(**settings))
    assert caught.value.param == param and param in str(caught.value)
