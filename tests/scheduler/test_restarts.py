"""When an actor that died may start again, on a clock of the test's own."""

from __future__ import annotations

from radixray.scheduler.restarts import LONGEST_PAUSE_S, STEADY_S, Restarts


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def test_pauses_grow_to_a_limit_and_a_steady_life_ends_that() -> None:
    clock = Clock()
    restarts = Restarts(clock)
    assert restarts.starting("a", again=False) == 0
    restarts.ready("a")
    clock.now += STEADY_S - 1
    pauses = []
    for _ in range(12):
        pauses.append(restarts.starting("a", again=True))
        clock.now += pauses[-1] + 1
        restarts.ready("a")
        clock.now += 1
    assert pauses == [0, 0.5, 1, 2, 4, 8, 16, 32, 60, 60, 60, 60]
    assert restarts.counts == {"a": 12}

    clock.now += STEADY_S
    assert [restarts.starting("a", again=True) for _ in range(3)] == [0, 0.5, 1]
    # A start that takes long is no life.
    clock.now += 100 * STEADY_S
    assert restarts.starting("a", again=True) == 2
    assert restarts.counts == {"a": 16}
    assert max(restarts.starting("a", again=True) for _ in range(5000)) == LONGEST_PAUSE_S


def test_each_actor_has_its_own_and_a_new_one_begins_anew() -> None:
    clock = Clock()
    restarts = Restarts(clock)
    for _ in range(4):
        restarts.starting("a", again=True)
    assert restarts.starting("b", again=True) == 0
    assert restarts.starting("a", again=False) == 0  # another one of that name
    assert restarts.starting("a", again=True) == 0
    assert restarts.counts == {"a": 5, "b": 1}
    restarts.leave("a")
    assert restarts.counts == {"b": 1}
    # Known to no one: the scheduler actor was started anew.
    assert restarts.starting("c", again=True) == 0
