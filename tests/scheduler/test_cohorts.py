"""Requests told of before they come: where they go, what that saves, and that nothing stays."""

from __future__ import annotations

import random
import time
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from router_simulation import DECODE, Simulation

from radixray.reports import CacheSnapshot, StepReport
from radixray.scheduler import cohorts
from radixray.scheduler.router import Router
from radixray.scheduler.routing import ActorLoad, CohortWork, homes_of, share_out

PREFIX = list(range(500))


def array(tokens: list[int]) -> np.ndarray:
    return np.array(tokens, np.int32)


def expect(router: Router, cohort_id: str, requests: int, prefix: list[int] = PREFIX) -> None:
    router.expect(cohort_id, "", array(prefix), requests, at_once=requests)


def own(number: int, length: int = 1) -> list[int]:
    return [10**6 + 1000 * number + i for i in range(length)]


# Where they go


@pytest.mark.parametrize(("requests", "homes"), [(8, 1), (30, 1), (33, 2), (60, 2), (1000, 4)])
def test_together_until_waiting_costs_more_than_the_prefix(requests: int, homes: int) -> None:
    router = Router(["a", "b", "c", "d"])
    expect(router, "c", requests)
    placed = [router.place(f"r{i}", "", array([*PREFIX, *own(i)])) for i in range(requests)]
    counts = [sum(p.actor == actor for p in placed) for actor in "abcd"]
    assert sum(count > 0 for count in counts) == homes
    assert max(counts) - min(c for c in counts if c) <= 1
    # The first on each home is known to compute the prefix, the others to find it.
    assert sorted(p.matched for p in placed)[: homes + 1] == [0] * homes + [500]


def test_a_cohort_goes_where_its_prefix_is_unless_that_is_busy() -> None:
    work = CohortWork(500, 0, {"b": 500})
    assert homes_of(work, 4, {"a": ActorLoad(), "b": ActorLoad()}) == ["b"]
    assert homes_of(work, 4, {"a": ActorLoad(), "b": ActorLoad(70, 0)}) == ["a"]
    assert homes_of(work, 64, {"a": ActorLoad(), "b": ActorLoad(20, 0)}) == ["b", "a"]
    shares = share_out(work, 64, ["b", "a"], {"a": ActorLoad(), "b": ActorLoad(20, 0)})
    # a computes the prefix meanwhile, b what it has to do: 500 against 20 x 16.
    assert shares == {"b": 38, "a": 26}


@settings(deadline=None)
@given(
    prefix=st.integers(1, 3000),
    own_tokens=st.integers(0, 200),
    requests=st.integers(1, 300),
    loads=st.lists(
        st.tuples(st.integers(0, 60), st.integers(0, 3000), st.integers(0, 3000)),
        min_size=1,
        max_size=5,
    ),
)
def test_no_actor_is_left_out_that_place_would_choose(
    prefix: int, own_tokens: int, requests: int, loads: list[tuple[int, int, int]]
) -> None:
    """Against the rule for single requests: the last of the cohort is not better off elsewhere."""
    by_name = {f"m{i}": ActorLoad(r, p) for i, (r, p, _) in enumerate(loads)}
    matches = {f"m{i}": min(m, prefix) for i, (_, _, m) in enumerate(loads)}
    work = CohortWork(prefix, own_tokens, matches)
    homes = homes_of(work, requests, by_name)
    shares = share_out(work, requests, homes, by_name)
    assert sum(shares.values()) == requests and set(shares) == set(homes)
    ends = {a: work.ready(a, by_name) + work.each * shares[a] for a in homes if shares[a]}
    for other in set(by_name) - set(homes):
        cost = by_name[other].cost + 2 * (prefix - matches[other])
        assert cost + work.each >= max(ends.values()) - work.each * 2


def test_room_is_kept_from_others() -> None:
    router = Router(["a", "b"])
    expect(router, "c", 20)
    placed = [router.place(f"other{i}", "", array(own(i, 100))).actor for i in range(5)]
    assert placed == ["b"] * 5
    actors = {router.place(f"r{i}", "", array([*PREFIX, *own(i)])).actor for i in range(20)}
    assert actors == {"a"}


def test_the_longest_of_nested_prefixes_counts() -> None:
    router = Router(["a", "b"])
    expect(router, "outer", 3)
    expect(router, "inner", 2, [*PREFIX, 7, 8])
    router.place("r1", "", array([*PREFIX, 7, 8, 9]))
    router.place("r2", "", array([*PREFIX, 7, 8, 9, 10]))
    assert len(router._cohorts) == 1  # the inner one has come
    router.place("r3", "other", array([*PREFIX, 1]))  # of another namespace
    for i in range(3):
        assert len(router._cohorts) == 1
        router.place(f"o{i}", "", array([*PREFIX, *own(i)]))
    assert len(router._cohorts) == 0


# What it saves, in simulated time, with real caches


def run_batch(hint: bool, rows: int, at_once: int, prefix: int, tail: int) -> Simulation:
    simulation = Simulation(2)
    start = list(range(prefix))
    left = iter(range(rows))

    def begin_next() -> None:
        if (row := next(left, None)) is not None:
            simulation.request([*start, *own(row, tail)], begin_next)

    if hint:
        simulation.router.expect("batch", "", array(start), rows, at_once=at_once, own_tokens=tail)
    for _ in range(at_once):
        begin_next()
    simulation.run()
    return simulation


def test_a_batch_uses_all_actors_though_few_rows_run_at_once() -> None:
    without, told = run_batch(False, 200, 8, 500, 20), run_batch(True, 200, 8, 500, 20)
    assert sorted(a.served for a in without.actors.values()) == [0, 200]
    assert [a.served for a in told.actors.values()] == [100, 100]
    assert told.computed == 2 * 500 + 200 * 20  # the prefix once on each
    assert without.computed == 500 + 200 * 20
    assert told.now < 0.6 * without.now


def test_a_batch_that_is_soon_done_stays_together() -> None:
    told = run_batch(True, 10, 10, 500, 20)
    assert told.computed == 500 + 10 * 20
    assert told.now == run_batch(False, 10, 10, 500, 20).now


def run_forks(hint: bool, seed: int) -> tuple[int, int]:
    """20 programs that begin at random times and fork; tokens computed, time."""
    rng, simulation = random.Random(seed), Simulation(2)

    def program(number: int, branches: int, length: int) -> None:
        prefix = [10**6 * number + i for i in range(length)]

        def fork() -> None:
            for index in range(branches):
                tail = [10**6 * number + 10**5 * 5 + 100 * index + i for i in range(30)]
                simulation.request([*prefix, *tail])

        if hint:
            expect(simulation.router, f"p{number}", branches + 1, prefix)
        simulation.request(prefix, fork)

    for number in range(20):
        branches, length = rng.choice([2, 2, 3, 4, 40]), rng.randint(100, 1200)
        simulation.at(rng.randint(0, 2000), lambda n=number, b=branches, p=length: program(n, b, p))
    end = simulation.run()
    assert all(load.cost == 0 for load in simulation.router.loads.values())
    assert len(simulation.router._cohorts) == 0
    return simulation.computed, end


def test_forks_of_many_programs_compute_less_and_end_sooner() -> None:
    without = np.array([run_forks(False, seed) for seed in range(20)]).sum(axis=0)
    told = np.array([run_forks(True, seed) for seed in range(20)]).sum(axis=0)
    assert (told < without).all(), (told, without)


# Nothing of it stays


def idle(router: Router) -> bool:
    return all(load == ActorLoad() for load in router.loads.values())


steps = st.lists(
    st.tuples(
        st.sampled_from(["expect", "place", "finish", "unexpect", "down", "restart", "clear"]),
        st.integers(0, 5),
        st.integers(1, 40),
    ),
    max_size=40,
)


@settings(deadline=None)
@given(steps)
def test_all_that_was_kept_is_given_back(steps: list[tuple[str, int, int]]) -> None:
    router = Router(["a", "b", "c"])
    prefixes = [PREFIX[: 40 * (i + 1)] for i in range(4)] + [own(i, 60) for i in range(2)]
    incarnations = dict.fromkeys("abc", 0)
    sequences = dict.fromkeys("abc", 0)
    placed: list[str] = []
    for number, (kind, which, size) in enumerate(steps):
        actor = "abc"[which % 3]
        if kind == "expect":
            expect(router, f"c{which}", size, prefixes[which])
        elif kind == "place":
            placed.append(f"r{number}")
            router.place(placed[-1], "", array([*prefixes[which], *own(number, size)]))
        elif kind == "finish" and placed:
            router.finished(placed.pop(size % len(placed)))
        elif kind == "unexpect":
            router.unexpect(f"c{which}")
        elif kind == "down":
            router.unreachable(actor)
        elif kind in ("restart", "clear"):
            incarnations[actor] += kind == "restart"
            sequences[actor] += 1
            router.restore(
                CacheSnapshot(
                    actor=actor,
                    incarnation=str(incarnations[actor]),
                    sequence=sequences[actor],
                    events=[],
                )
            )
        assert all(x.requests >= 0 and x.prefill_tokens >= 0 for x in router.loads.values())
    for cohort_id in [f"c{i}" for i in range(6)]:
        router.unexpect(cohort_id)
    for request_id in placed:
        router.finished(request_id)
    assert idle(router)
    assert router._index._roots == {} and router._cohorts._index._roots == {}


def test_what_never_comes_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    router = Router(["a", "b"])
    expect(router, "never", 1000)
    assert not idle(router)
    later = time.monotonic() + cohorts.REST_S + 1
    monkeypatch.setattr("radixray.scheduler.cohorts.time.monotonic", lambda: later)
    placement = router.place("r", "", array([*PREFIX, 1]))
    assert placement.matched == 0
    router.finished("r")
    assert idle(router) and router._index._roots == {}


def test_a_cohort_that_is_asked_for_lives_on(monkeypatch: pytest.MonkeyPatch) -> None:
    router = Router(["a", "b"])
    expect(router, "slow", 5)
    now = time.monotonic()
    for i in range(4):
        later = now + (i + 1) * cohorts.REST_S * 0.9
        monkeypatch.setattr("radixray.scheduler.cohorts.time.monotonic", lambda x=later: x)
        router.place(f"r{i}", "", array([*PREFIX, *own(i)]))
    assert len(router._cohorts) == 1


def test_they_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cohorts, "MAX_COHORTS", 5)
    router = Router(["a", "b"])
    for i in range(20):
        expect(router, f"c{i}", 4, own(i, 50))
    assert len(router._cohorts) == 5
    for i in range(20):
        router.unexpect(f"c{i}")
    assert idle(router)


def test_a_home_that_dies_is_none() -> None:
    router = Router(["a", "b"])
    expect(router, "c", 10)
    assert router.place("r0", "", array([*PREFIX, 1])).actor == "a"
    router.unreachable("a")
    assert router.loads["a"] == ActorLoad()
    placed = [router.place(f"r{i}", "", array([*PREFIX, *own(i)])) for i in range(1, 10)]
    assert {p.actor for p in placed} == {"b"}
    assert [p.matched for p in placed] == [0] + [500] * 8
    back = StepReport(actor="a", incarnation="2", sequence=1, events=[], finished=[])
    router.report(back)
    router.restore(CacheSnapshot(actor="a", incarnation="2", sequence=1, events=[]))
    assert router.matches("", array(PREFIX)) == {"b": 500}


def test_a_lone_actor_that_comes_back_owes_nothing() -> None:
    router = Router(["a"])
    expect(router, "c", 10)
    router.unreachable("a")
    assert router.place("r", "", array([*PREFIX, 1])).matched == 0
    assert router.loads["a"] == ActorLoad(1, 501)


def test_a_snapshot_takes_nothing_from_a_cohort() -> None:
    router = Router(["a", "b"])
    router.restore(CacheSnapshot(actor="a", incarnation="1", sequence=1, events=[]))
    expect(router, "c", 10)
    router.restore(CacheSnapshot(actor="a", incarnation="1", sequence=2, events=[]))
    assert router.matches("", array(PREFIX)) == {"a": 500}
    router.unexpect("c")
    assert router.matches("", array(PREFIX)) == {}


def test_the_simulation_itself() -> None:
    simulation = Simulation(1)
    order: list[Any] = []
    simulation.request([1, 2, 3], lambda: order.append(simulation.now))
    simulation.request([1, 2, 4], lambda: order.append(simulation.now))
    simulation.run()
    assert order == [3 + DECODE, 4 + DECODE]
    assert simulation.computed == 4
