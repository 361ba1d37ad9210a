"""The order in which waiting requests start, by each policy."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from radixray.scheduler.admission import LEAST, MOST, START, GrowthEstimate
from radixray.scheduler.order import AGE_TOKENS, POLICIES, in_order


@dataclass
class Item:
    arrival: int
    matched: int = 0
    since_step: int = 0
    priority: int = 0
    max_new: int = 0
    draw: float = 0.0
    path: list[int] = field(default_factory=list)

    def cached_path(self) -> list[int]:
        return self.path


def arrivals(policy: str, items: list[Item]) -> list[int]:
    return [item.arrival for item in in_order(policy, items)]  # type: ignore[arg-type]


def test_each_policy() -> None:
    items = [
        Item(1, matched=10, priority=0, max_new=5, draw=0.9, path=[1, 2]),
        Item(2, matched=30, priority=2, max_new=50, draw=0.1, path=[1, 3]),
        Item(3, matched=20, priority=1, max_new=7, draw=0.5, path=[4]),
        Item(4, matched=30, priority=2, max_new=7, draw=0.2, path=[1, 3]),
    ]
    assert arrivals("lpm", items) == [2, 4, 3, 1]
    assert arrivals("fcfs", items) == [1, 2, 3, 4]
    assert arrivals("lof", items) == [2, 3, 4, 1]
    assert arrivals("random", items) == [2, 4, 3, 1]
    assert arrivals("priority", items) == [2, 4, 3, 1]
    # Subtree 1 holds three requests, and in it node 3 two.
    assert arrivals("dfs-weight", items) == [2, 4, 1, 3]


def test_depth_first_keeps_subtrees_together() -> None:
    paths = [[1], [2, 5], [1, 7], [2, 6], [1, 8, 9], [2, 5], [1, 7]]
    order = arrivals("dfs-weight", [Item(i, path=p) for i, p in enumerate(paths)])
    first_nodes = [paths[i][0] for i in order]
    assert first_nodes == sorted(first_nodes)  # all of 1 (four requests), then all of 2 (three)


@given(
    st.lists(st.tuples(st.integers(0, 500), st.integers(0, 4000)), min_size=1, max_size=30),
    st.integers(0, 500),
)
def test_a_cold_request_is_passed_for_a_bounded_time(hot: list, came: int) -> None:
    cold = Item(1000, matched=0, since_step=came)
    items = [Item(i, matched=m, since_step=s) for i, (s, m) in enumerate(hot)]
    order = in_order("lpm", [*items, cold])
    for item in order[: order.index(cold)]:
        assert item.since_step - came <= item.matched / AGE_TOKENS


@pytest.mark.parametrize("policy", POLICIES)
def test_every_request_is_in_the_order_once(policy: str) -> None:
    items = [Item(i, path=[i % 3]) for i in range(20)]
    assert sorted(arrivals(policy, items)) == list(range(20))


def test_the_growth_estimate_adapts_within_its_bounds() -> None:
    estimate = GrowthEstimate()
    assert estimate.value == START
    for _ in range(20):
        estimate.after_step(retracted=1)
    assert estimate.value == MOST
    for _ in range(1000):
        estimate.after_step(retracted=0)
    assert estimate.value == LEAST
    estimate.reset()
    assert estimate.value == START
