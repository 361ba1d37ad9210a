"""The batch plan, without a model."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from radixray.scheduler.plan import (
    FOLLOW_TOKENS,
    STARVED_STEPS,
    BatchLimits,
    RequestView,
    plan_batch,
)

LIMITS = BatchLimits(max_num_seqs=8, max_batch_tokens=100)


def waiting(
    name: str, length: int, cached: int = 0, *, arrival: int | None = None, **fields: Any
) -> RequestView:
    order = int(name[1:]) if arrival is None else arrival
    return RequestView(name, order, length, cached, **fields)


def running(
    name: str,
    length: int,
    computed: int,
    *,
    arrival: int = 0,
    pages: int | None = None,
    **fields: Any,
) -> RequestView:
    held = computed if pages is None else pages
    return RequestView(name, arrival, length, computed, pages=held, **fields)


def tokens_of(*values: int) -> np.ndarray:
    return np.array(values, np.int32)


def test_decodes_and_prefill_share_a_step() -> None:
    plan = plan_batch([waiting("w1", 50)], [running("r", 11, 10)], 1000, LIMITS)
    assert plan.extend == [("r", 1), ("w1", 50)]
    assert plan.admit == ["w1"]


def test_a_long_prompt_is_chunked_and_goes_on_next_step() -> None:
    plan = plan_batch([waiting("w1", 250)], [], 1000, LIMITS)
    assert plan.extend == [("w1", 100)]
    plan = plan_batch([], [running("w1", 250, 100), running("d", 6, 5)], 1000, LIMITS)
    assert sorted(plan.extend) == [("d", 1), ("w1", 99)]


def test_requests_start_in_the_order_given() -> None:
    views = [waiting("w3", 50, 20), waiting("w1", 50, 0), waiting("w2", 50, 40)]
    assert plan_batch(views, [], 1000, LIMITS).admit == ["w3", "w1", "w2"]


def test_expected_growth_is_kept_free() -> None:
    run = [running("r", 11, 10, pages=10, remaining=40)]
    view = waiting("w1", 50, remaining=20)
    # 1 token of r's own step, 20 of its 40 to come, 50 and 10 for the newcomer.
    assert plan_batch([view], run, 81, LIMITS, growth=0.5).admit == ["w1"]
    assert plan_batch([view], run, 80, LIMITS, growth=0.5).admit == []
    assert plan_batch([view], run, 80, LIMITS, growth=0.1).admit == ["w1"]


def test_small_requests_pass_a_large_one_but_do_not_starve_it() -> None:
    run = [running("r", 101, 100, pages=100)]
    large, small = waiting("w1", 90), waiting("w2", 10)
    plan = plan_batch([large, small], run, 70, LIMITS)
    assert plan.admit == ["w2"]
    starved = waiting("w1", 90, passed_over=STARVED_STEPS)
    assert plan_batch([starved, small], run, 70, LIMITS).admit == []


def test_what_it_takes_from_the_cache_is_not_evictable_for_it() -> None:
    run = [running("r", 101, 100, pages=100)]
    # 90 of 100 tokens are cached and evictable now; locking them leaves no room for the rest.
    view = waiting("w1", 100, 90, reclaimable=90)
    assert plan_batch([view], run, 100, LIMITS).admit == []
    assert plan_batch([view], run, 130, LIMITS).admit == ["w1"]


def test_followers_wait_for_their_leader() -> None:
    shared = list(range(60))
    views = [
        waiting(f"w{i}", 70, tokens=tokens_of(*shared, *([100 + i] * 10))) for i in range(1, 5)
    ]
    plan = plan_batch(views, [], 1000, LIMITS)
    assert plan.admit == ["w1"]
    assert plan.follow == {"w2": "w1", "w3": "w1", "w4": "w1"}
    # The leader's prefix is in the cache: now they run.
    ready = [waiting(f"w{i}", 70, 60, tokens=tokens_of(*shared, *([100 + i] * 10))) for i in (2, 3)]
    lead = running("w1", 71, 70, tokens=tokens_of(*shared, *([101] * 10)))
    assert plan_batch(ready, [lead], 1000, LIMITS).admit == ["w2", "w3"]


def test_nobody_follows_for_little_or_across_namespaces_or_without_a_cache() -> None:
    few = list(range(FOLLOW_TOKENS - 1))
    views = [waiting(f"w{i}", 40, tokens=tokens_of(*few, *([99 + i] * 9))) for i in (1, 2)]
    assert plan_batch(views, [], 1000, LIMITS).admit == ["w1", "w2"]
    many = tokens_of(*range(50))
    apart = [waiting(f"w{i}", 50, tokens=many, namespace=str(i)) for i in (1, 2)]
    assert plan_batch(apart, [], 1000, LIMITS).admit == ["w1", "w2"]
    off = BatchLimits(8, 100, share_prefixes=False)
    alike = [waiting(f"w{i}", 50, tokens=many) for i in (1, 2)]
    assert plan_batch(alike, [], 1000, off).admit == ["w1", "w2"]


def test_nobody_follows_for_less_than_a_page() -> None:
    """What is shared is whole pages: waiting for a part of one gains nothing."""
    shared = list(range(60))
    views = [waiting(f"w{i}", 70, tokens=tokens_of(*shared, *([99 + i] * 10))) for i in (1, 2)]
    for page_size, admitted in ((16, ["w1"]), (60, ["w1"]), (61, ["w1", "w2"])):
        limits = BatchLimits(8, 1000, page_size)
        assert plan_batch(views, [], 1000, limits).admit == admitted


def test_without_pages_the_youngest_is_retracted_and_nobody_admitted() -> None:
    old = running("old", 11, 10, arrival=1, reclaimable=10)
    young = running("young", 11, 10, arrival=2, reclaimable=10)
    plan = plan_batch([waiting("w3", 5)], [young, old], 0, LIMITS)
    assert plan.retract == ["young"]
    assert plan.extend == [("old", 1)]
    assert plan.admit == []


def test_the_first_of_all_always_starts() -> None:
    assert plan_batch([waiting("w1", 64)], [], 64, LIMITS).admit == ["w1"]


def test_seats_are_limited() -> None:
    views = [waiting(f"w{i}", 3) for i in range(1, 12)]
    assert len(plan_batch(views, [], 1000, LIMITS).admit) == 8


request_views = st.builds(
    lambda arrival, computed, rest, extra: (arrival, computed, rest, extra),
    st.integers(0, 1000),
    st.integers(0, 60),
    st.integers(1, 60),
    st.integers(0, 30),
)


@settings(deadline=None)
@given(
    st.lists(request_views, max_size=10, unique_by=lambda v: v[0]),
    st.lists(request_views, max_size=8, unique_by=lambda v: v[0]),
    st.integers(0, 300),
    st.sampled_from([1, 4, 16]),
)
def test_plans_keep_their_limits(queued, live, available: int, page_size: int) -> None:
    limits = BatchLimits(max_num_seqs=8, max_batch_tokens=40, page_size=page_size)

    def pages(tokens: int) -> int:
        return -(-tokens // page_size)

    waits = [
        waiting(
            f"w{a}",
            c // page_size * page_size + r,
            c // page_size * page_size,
            arrival=a,
            passed_over=e,
        )
        for a, c, r, e in queued
    ]
    runs = [
        running(f"r{a}", c + r, c, arrival=a, pages=pages(c), reclaimable=pages(c))
        for a, c, r, _ in live
    ]
    plan = plan_batch(waits, runs, available, limits)
    assert plan == plan_batch(waits, runs, available, limits)  # pure
    by_id = {v.request_id: v for v in waits + runs}
    ids = [i for i, _ in plan.extend]
    assert len(ids) == len(set(ids)) and not set(ids) & set(plan.retract)
    assert set(plan.admit) <= set(ids) and not (plan.admit and plan.retract)
    assert len(runs) - len(plan.retract) + len(plan.admit) <= max(8, len(runs))
    # Retracted are the youngest.
    kept = [v.arrival for v in runs if v.request_id not in plan.retract]
    gone = [by_id[i].arrival for i in plan.retract]
    assert not kept or not gone or max(kept) <= min(gone)
    freed = sum(by_id[i].reclaimable for i in plan.retract)
    taken = 0
    for request_id, tokens in plan.extend:
        view = by_id[request_id]
        assert 1 <= tokens <= view.uncomputed
        held = view.pages or view.computed // page_size
        taken += pages(view.computed + tokens) - held
    if not (len(plan.admit) == 1 and not runs):  # the very first may count on more than there is
        assert taken <= available + freed
    prefill = sum(t for i, t in plan.extend if by_id[i].uncomputed > 1)
    assert prefill <= limits.max_batch_tokens
