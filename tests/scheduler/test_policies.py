"""Load balancing policies: what each promises, whatever the others are doing."""

from __future__ import annotations

import random
from collections import Counter

import msgspec
import numpy as np
import pytest
from asking import ask
from hypothesis import given, settings
from hypothesis import strategies as st

from radixray.config import DeploymentConfig, LoadBalancingPolicy
from radixray.errors import InvalidRequestError
from radixray.reports import CacheEvent, CacheSnapshot, StepReport
from radixray.scheduler import sessions
from radixray.scheduler.policies import policy_of
from radixray.scheduler.router import Router
from radixray.scheduler.routing import ActorLoad

POLICIES = LoadBalancingPolicy.__args__


def array(tokens: list[int]) -> np.ndarray:
    return np.array(tokens, np.int32)


def router(
    policy: LoadBalancingPolicy, actors: int, *, threshold: float = 0.0, sticky: bool = False
) -> Router:
    made = Router(
        [f"m{i}" for i in range(actors)],
        policy_of(policy, threshold=threshold, seed=3),
        policy_name=policy,
        sticky=sticky,
    )
    for i in range(actors):
        made.restore(CacheSnapshot(actor=f"m{i}", incarnation="1", sequence=0, events=[]))
    return made


def hold(made: Router, actor: str, tokens: list[int], sequence: int = 1) -> None:
    event = CacheEvent(kind="insert", tokens=array(tokens).tobytes())
    assert made.report(
        StepReport(actor=actor, incarnation="1", sequence=sequence, events=[event], finished=[])
    )


rows = st.lists(
    st.tuples(st.integers(0, 40), st.integers(0, 3000), st.integers(0, 900), st.integers(0, 3)),
    min_size=1,
    max_size=12,
)


@settings(deadline=None, max_examples=100)
@given(rows, st.integers(0, 900))
def test_prefix_against_the_rule_in_plain_python(
    actors: list[tuple[int, int, int, int]], shared: int
) -> None:
    """By hand: queued prefill, 16 for each request, twice the uncached tokens, but 1.5 times those
    that many share; then the ties."""

    def key(row: int) -> tuple[float, int, int, int, int]:
        requests, prefill, matched, held = actors[row]
        uncached = sum(1.5 if token < shared else 2 for token in range(matched, 900))
        return prefill + 16 * requests + uncached, -matched, requests, held, row

    asked = ask(
        900,
        [matched for _, _, matched, _ in actors],
        [ActorLoad(requests, prefill) for requests, prefill, _, _ in actors],
        held=[held for _, _, _, held in actors],
        shared=shared,
    )
    row, reason = policy_of("prefix").choose(asked)
    assert row == min(range(len(actors)), key=key)
    longest = max(matched for _, _, matched, _ in actors)
    assert (reason == "prefix") == (0 < longest == actors[row][2])


@pytest.mark.parametrize("policy", POLICIES)
@settings(deadline=None, max_examples=25)
@given(rows, st.sets(st.integers(0, 11)), st.integers(1, 5))
def test_those_that_are_down_change_nothing(
    policy: LoadBalancingPolicy, actors: list[tuple[int, int, int, int]], down: set[int], asks: int
) -> None:
    """The same choices as in a router that never knew the others; numbers stay those they were."""
    up = [i for i in range(len(actors)) if i not in down]
    if len(up) < 2:
        return
    with_all = router(policy, len(actors))
    for i in down & set(range(len(actors))):
        hold(with_all, f"m{i}", list(range(900)))
        with_all.unreachable(f"m{i}")
    alone = router(policy, len(actors))
    # Down from the start, and without a past.
    for i in range(len(actors)):
        if i not in up:
            alone.unreachable(f"m{i}")
    for made in (with_all, alone):
        for i in up:
            _, _, matched, _ = actors[i]
            if matched:
                hold(made, f"m{i}", list(range(matched)))
    prompts = [array([*range(900), number]) for number in range(asks)]
    chosen = [
        [made.place(f"r{i}", "", prompt).actor for i, prompt in enumerate(prompts)]
        for made in (with_all, alone)
    ]
    assert chosen[0] == chosen[1]
    assert {int(actor[1:]) for actor in chosen[0]} <= set(up)


def test_one_that_is_down_does_not_end_affinity() -> None:
    """Loads 5 and 5, and a dead one's 0: the longest prefix still decides."""
    made = router("prefix", 3)
    hold(made, "m1", list(range(400)))
    made.unreachable("m2")
    for i in range(10):
        made.place(f"busy{i}", "", array([1000 + i]))
    assert made.place("r", "", array([*range(400), 7])).actor == "m1"
    made.unreachable("m0")
    made.unreachable("m1")
    assert made.place("all down", "", array([1, 2])).actor in ("m0", "m1", "m2")


def test_cold_requests_go_to_the_idlest_and_of_idle_ones_to_the_emptiest() -> None:
    made = router("prefix", 3)
    made.place("long", "", array(list(range(5000, 6000))))
    assert made.place("other", "", array(list(range(7000, 7100)))).actor == "m1"
    hold(made, "m2", list(range(9000, 9010)))
    # Those under way ended: all idle again, and m0 and m1 hold nothing.
    for request_id in ("long", "other"):
        made.finished(request_id)
    hold(made, "m0", list(range(8000, 8100)))
    hold(made, "m1", list(range(8200, 8300)))
    assert made.place("cold", "", array([1, 2, 3])).actor == "m2"


def test_a_hot_prefix_is_replicated_when_its_holder_would_be_overloaded() -> None:
    """A stream of one prefix faster than one actor can serve it spreads, and each copy is used."""
    made = router("prefix", 4)
    prefix = list(range(600))
    hold(made, "m0", prefix)
    live: list[str] = []
    went = Counter[str]()
    computed = Counter[str]()
    for i in range(400):
        placement = made.place(f"r{i}", "", array([*prefix, 10_000 + i]))
        went[placement.actor] += 1
        computed[placement.actor] += len(prefix) - placement.matched
        live.append(f"r{i}")
        if len(live) > 200:
            made.finished(live.pop(0))
    assert len(went) == 4
    assert max(went.values()) < 0.6 * sum(went.values())
    assert computed == {"m0": 0, "m1": 600, "m2": 600, "m3": 600}  # once each
    # Few at a time stay together.
    calm = router("prefix", 4)
    hold(calm, "m0", prefix)
    for i in range(50):
        assert calm.place(f"r{i}", "", array([*prefix, 10_000 + i])).actor == "m0"
        if i > 20:
            calm.finished(f"r{i - 20}")


def test_a_match_below_the_threshold_counts_as_none() -> None:
    for threshold, want in ((0.0, "m1"), (0.4, "m1"), (0.6, "m0")):
        made = router("prefix", 2, threshold=threshold)
        hold(made, "m1", list(range(50)))
        made.unreachable("m0")
        made.place("busy", "", array([7]))
        made.report(StepReport(actor="m0", incarnation="1", sequence=1, events=[], finished=[]))
        placement = made.place("r", "", array(list(range(100))))
        assert placement.actor == want
    assert placement.reason == "load"


def test_round_robin_and_random() -> None:
    made = router("round_robin", 3)
    placed = [made.place(f"r{i}", "", array([i])) for i in range(6)]
    assert [p.actor for p in placed] == ["m0", "m1", "m2"] * 2
    assert {p.reason for p in placed} == {"round_robin"}
    made.unreachable("m1")
    assert [made.place(f"s{i}", "", array([i])).actor for i in range(3)] == ["m0", "m2", "m0"]
    made = router("random", 4)
    went = Counter(made.place(f"r{i}", "", array([i])).actor for i in range(4000))
    assert all(850 < count < 1150 for count in went.values())


def test_power_of_two_is_far_more_even_than_chance() -> None:
    spread = {}
    for policy in ("random", "power_of_two", "least_loaded"):
        made = router(policy, 16)
        for i in range(1600):
            made.place(f"r{i}", "", array([i]))
        requests = [load.requests for load in made.loads.values()]
        spread[policy] = max(requests) - min(requests)
    assert spread["least_loaded"] <= 1 < spread["power_of_two"] < spread["random"] / 3


def test_consistent_hash_keeps_keys_and_moves_few() -> None:
    policy = policy_of("consistent_hash")
    rng = random.Random(1)
    keys = [str(rng.random()) for _ in range(2000)]
    idle = [ActorLoad() for _ in range(16)]

    def chosen(numbers: list[int], key: str) -> int:
        loads = [idle[number] for number in numbers]
        asked = ask(10, [0] * len(numbers), loads, numbers=numbers, session=key)
        return numbers[policy.choose(asked)[0]]

    everybody = list(range(16))
    before = {key: chosen(everybody, key) for key in keys}
    assert before == {key: chosen(everybody, key) for key in keys}
    counts = Counter(before.values())
    assert len(counts) == 16 and max(counts.values()) < 2 * min(counts.values())
    after = {key: chosen([n for n in everybody if n != 5], key) for key in keys}
    assert all(after[key] == before[key] for key in keys if before[key] != 5)
    assert all(after[key] != 5 for key in keys)
    # Without a session, the head of the prompt decides; what follows does not.
    made = router("consistent_hash", 16)
    head = list(range(256))
    assert len({made.place("r", "", array([*head, i])).actor for i in range(20)}) == 1
    # A key that all want is passed on before its actor has far more than the mean.
    made = router("consistent_hash", 4)
    for i in range(100):
        made.place(f"r{i}", "", array(head), "hot")
    assert max(load.requests for load in made.loads.values()) <= 32


def test_sessions_stick_until_their_actor_is_down(monkeypatch: pytest.MonkeyPatch) -> None:
    made = router("round_robin", 3, sticky=True)
    first = made.place("r0", "", array([1]), "talk")
    assert (first.actor, first.reason) == ("m0", "round_robin")
    for i in range(1, 5):
        again = made.place(f"r{i}", "", array([i]), "talk")
        assert (again.actor, again.reason) == ("m0", "session")
    assert made.place("other", "", array([1])).actor == "m1"
    made.unreachable("m0")
    moved = made.place("r9", "", array([1]), "talk")
    assert moved.actor == "m2"
    made.report(StepReport(actor="m0", incarnation="1", sequence=1, events=[], finished=[]))
    assert made.place("r10", "", array([1]), "talk").actor == "m2"  # it lives there now
    assert router("round_robin", 3).place("r", "", array([1]), "talk").reason == "round_robin"
    monkeypatch.setattr(sessions, "MAX_SESSIONS", 3)
    for i in range(10):
        made.place(f"s{i}", "", array([1]), f"s{i}")
    assert made._sessions is not None
    assert len(made._sessions) == 3
    assert made._sessions.actor_of("talk") is None


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"load_balancing_policy": "best"}, "load_balancing_policy must be one of prefix, round"),
        ({"tree_cache_threshold": 1.5}, "tree_cache_threshold must be"),
        ({"sticky_sessions": 1}, "sticky_sessions must be true or false"),
    ],
)
def test_bad_configurations(given: dict, message: str) -> None:
    with pytest.raises(InvalidRequestError, match=message) as refused:
        DeploymentConfig(**given)
    assert refused.value.param in given
    assert msgspec.json.decode(msgspec.json.encode(DeploymentConfig()), type=DeploymentConfig)
