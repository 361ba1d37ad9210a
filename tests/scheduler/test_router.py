"""Prefix index and router against brute force."""

from __future__ import annotations

import numpy as np
import pytest
from asking import ask
from hypothesis import given, settings
from hypothesis import strategies as st

from radixray.cache.prefix_cache import PrefixCache
from radixray.reports import CacheEvent, CacheSnapshot, StepReport
from radixray.scheduler.index import PrefixIndex
from radixray.scheduler.policies import Prefix
from radixray.scheduler.router import Router
from radixray.scheduler.routing import ActorLoad

sequences = st.lists(st.integers(0, 2), min_size=1, max_size=10)
holders = st.integers(0, 2)


def array(tokens: list[int]) -> np.ndarray:
    return np.array(tokens, np.int32)


@settings(deadline=None)
@given(
    st.lists(
        st.tuples(st.sampled_from(["add", "remove", "clear"]), holders, sequences), max_size=25
    ),
    st.lists(sequences, min_size=1, max_size=6),
)
def test_index_equals_counting_prefixes(steps: list, probes: list[list[int]]) -> None:
    """Whole paths added and removed in any order; the truth is a count for every prefix."""
    index = PrefixIndex()
    added: dict[int, list[list[int]]] = {0: [], 1: [], 2: []}
    for kind, holder, tokens in steps:
        if kind == "add":
            index.add(holder, "", array(tokens))
            added[holder].append(tokens)
        elif kind == "remove" and added[holder]:
            victim = added[holder].pop(len(tokens) % len(added[holder]))
            index.remove(holder, "", array(victim))
        elif kind == "clear":
            index.clear(holder)
            added[holder] = []
        for probe in probes:
            want = {}
            for name, paths in added.items():
                longest = max((common(probe, path) for path in paths), default=0)
                if longest:
                    want[name] = longest
            assert index.match("", array(probe)) == want
            assert index.match("other", array(probe)) == {}
            found = index.find("", array(probe))
            assert found.lengths(3).tolist() == [want.get(name, 0) for name in range(3)]
            paths = [path for each in added.values() for path in each]
            held = {tuple(p[: n + 1]) for p in paths for n in range(len(p))}
            deepest = max(want.values(), default=0)
            goes_on = any(len(h) > deepest and list(h[:deepest]) == probe[:deepest] for h in held)
            if deepest < len(probe) and goes_on:
                assert found.parting is not None and found.parting.position == deepest
                cached = found.parting.cached.tolist()
                assert cached[0] != probe[deepest]
                assert (*probe[:deepest], *cached) in held
            else:
                assert found.parting is None
        for name, paths in added.items():
            assert index.held(name) == len(
                {tuple(p[:n]) for p in paths for n in range(1, len(p) + 1)}
            )
    for holder in added:
        index.clear(holder)
    assert index._roots == {}


def common(a: list[int], b: list[int]) -> int:
    length = 0
    for x, y in zip(a, b, strict=False):
        if x != y:
            break
        length += 1
    return length


@settings(deadline=None)
@given(st.lists(st.tuples(st.booleans(), sequences), max_size=30), st.integers(0, 30))
def test_router_follows_a_real_cache(steps: list, lost_at: int) -> None:
    """Events of a real prefix cache keep the router's view equal to it, even past a lost report."""
    cache = PrefixCache(24)
    router = Router(["actor"])
    sequence = 0

    def snapshot() -> CacheSnapshot:
        return CacheSnapshot(
            actor="actor", incarnation="i", sequence=sequence, events=cache.snapshot()
        )

    for number, (insert, tokens) in enumerate(steps):
        if insert:
            lease = cache.acquire("", array(tokens))
            lease.extend(len(tokens))
            lease.release(array(tokens))
        else:
            cache.evict(len(tokens))
        sequence += 1
        report = StepReport(
            actor="actor",
            incarnation="i",
            sequence=sequence,
            events=cache.drain_events(),
            finished=[],
        )
        if number == lost_at:
            continue
        if not router.report(report):
            assert router.restore(snapshot())
        for _, probe in steps:
            want = cache.peek("", array(probe)).length
            assert router.matches("", array(probe)).get("actor", 0) == want


def report(actor: str, sequence: int, incarnation: str = "1", **kwargs: list) -> StepReport:
    return StepReport(
        actor=actor,
        incarnation=incarnation,
        sequence=sequence,
        events=kwargs.get("events", []),
        finished=kwargs.get("finished", []),
    )


def insert(tokens: list[int]) -> CacheEvent:
    return CacheEvent(kind="insert", tokens=array(tokens).tobytes())


def test_a_burst_of_one_prefix_goes_to_one_actor() -> None:
    router = Router(["a", "b"])
    prefix = list(range(500))
    placed = [router.place(f"r{i}", "", array([*prefix, 1000 + i])) for i in range(6)]
    assert {p.actor for p in placed} == {"a"}
    assert [p.matched for p in placed] == [0] + [500] * 5
    assert [p.reason for p in placed] == ["load"] + ["prefix"] * 5


def test_different_prompts_are_spread() -> None:
    router = Router(["a", "b"])
    actors = [router.place(f"r{i}", "", array([i] * 100)).actor for i in range(4)]
    assert actors == ["a", "b", "a", "b"]


def test_an_overloaded_holder_loses_to_an_idle_actor() -> None:
    policy = Prefix(0.0)
    busy = ask(600, [500, 0], [ActorLoad(requests=40, prefill_tokens=4000), ActorLoad()])
    assert policy.choose(busy) == (1, "load")
    assert policy.choose(ask(600, [500, 0], [ActorLoad(2, 50), ActorLoad()])) == (0, "prefix")


def test_finished_requests_are_load_no_more_and_only_events_remain() -> None:
    router = Router(["a", "b"])
    router.restore(CacheSnapshot(actor="a", incarnation="1", sequence=0, events=[]))
    router.place("r1", "", array([1, 2, 3, 4]))
    assert router.loads["a"] == ActorLoad(1, 4)
    assert router.report(report("a", 1, finished=["r1"], events=[insert([1, 2])]))
    assert router.loads["a"] == ActorLoad(0, 0)
    assert router.matches("", array([1, 2, 3, 4])) == {"a": 2}
    router.finished("r1")  # again: ignored
    assert router.loads["a"] == ActorLoad(0, 0)


def test_a_computed_prompt_is_no_work_ahead_any_more() -> None:
    router = Router(["a", "b"])
    router.restore(CacheSnapshot(actor="a", incarnation="1", sequence=0, events=[]))
    router.place("r1", "", array([1, 2, 3, 4]))
    news = StepReport(
        actor="a", incarnation="1", sequence=1, events=[], finished=[], prefilled=["r1", "unknown"]
    )
    assert router.report(news)
    assert router.loads["a"] == ActorLoad(1, 0)
    router.report(report("a", 2, finished=["r1"]))
    assert router.loads["a"] == ActorLoad(0, 0)


def test_a_restarted_actor_is_credited_nothing() -> None:
    router = Router(["a", "b"])
    router.restore(
        CacheSnapshot(actor="a", incarnation="1", sequence=0, events=[insert([1, 2, 3])])
    )
    router.place("lost", "", array([1, 2, 3, 4]))
    assert not router.report(report("a", 1, incarnation="2"))
    router.restore(CacheSnapshot(actor="a", incarnation="2", sequence=1, events=[]))
    assert router.matches("", array([1, 2, 3])) == {}
    assert router.loads["a"] == ActorLoad(0, 0)


def test_a_snapshot_older_than_the_news_is_not_enough() -> None:
    router = Router(["a"])
    assert not router.report(report("a", 7))
    assert not router.restore(CacheSnapshot(actor="a", incarnation="1", sequence=6, events=[]))
    assert router.restore(CacheSnapshot(actor="a", incarnation="1", sequence=7, events=[]))
    assert router.report(report("a", 7))  # late: no news
    assert router.report(report("a", 8))


def test_leaves_of_a_snapshot_count_their_shared_part_once() -> None:
    router = Router(["a"])
    router.restore(
        CacheSnapshot(
            actor="a", incarnation="1", sequence=0, events=[insert([1, 2, 3]), insert([1, 2, 4])]
        )
    )
    evict = CacheEvent(kind="evict", tokens=array([1, 2, 3]).tobytes(), start=2)
    assert router.report(report("a", 1, events=[evict]))
    assert router.matches("", array([1, 2, 3])) == {"a": 2}
    evict = CacheEvent(kind="evict", tokens=array([1, 2, 4]).tobytes(), start=0)
    assert router.report(report("a", 2, events=[evict]))
    assert router.matches("", array([1, 2, 3])) == {}


def test_lost_placements_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    router = Router(["a", "b"])
    router.place("lost", "", array([1] * 50))
    later = __import__("time").monotonic() + 10_000
    monkeypatch.setattr("radixray.scheduler.router.time.monotonic", lambda: later)
    router.place("new", "", array([2] * 10))
    assert sum(load.requests for load in router.loads.values()) == 1
