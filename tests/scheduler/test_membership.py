"""Model actors that come, drain and leave, as the router sees them."""

from __future__ import annotations

import numpy as np

from radixray.reports import CacheEvent, CacheSnapshot, StepReport
from radixray.scheduler.router import Router

TOKENS = np.arange(50, dtype=np.int32)


def report(actor: str, sequence: int, *, draining: bool = False, life: str = "1") -> StepReport:
    return StepReport(
        actor=actor,
        incarnation=f"{actor}-{life}",
        sequence=sequence,
        events=[],
        finished=[],
        draining=draining,
    )


def where(router: Router, count: int = 6) -> set[str]:
    placed = [router.place(f"r{n}", "", TOKENS + 100 * n).actor for n in range(count)]
    for number in range(count):
        router.finished(f"r{number}")
    return set(placed)


def spread(router: Router, count: int = 6) -> set[str]:
    return {router.place(f"s{n}", "", TOKENS + 1000 * (n + 1)).actor for n in range(count)}


def test_who_reports_takes_requests() -> None:
    router = Router(["m-0"])
    assert where(router) == {"m-0"}
    assert not router.report(report("m-1", 1))  # a snapshot is wanted
    assert spread(router) == {"m-0", "m-1"}


def test_who_drains_gets_nothing_until_it_says_otherwise() -> None:
    router = Router(["m-0", "m-1"])
    router.place("first", "", TOKENS)  # its prefix is on m-0
    router.report(report("m-0", 1, draining=True))
    assert spread(router) == {"m-1"}
    assert router.place("same", "", TOKENS).actor == "m-1"
    router.report(report("m-0", 2, draining=True))
    assert router.place("same-2", "", TOKENS).actor == "m-1"
    router.report(report("m-0", 3))
    assert router.place("again", "", TOKENS + 7).actor == "m-0"
    # All of them: somebody must have it.
    router.report(report("m-0", 4, draining=True))
    router.report(report("m-1", 1, draining=True))
    assert router.place("last", "", TOKENS).actor in {"m-0", "m-1"}


def test_who_left_is_forgotten_and_does_not_come_back_by_its_last_words() -> None:
    router = Router(["m-0", "m-1"])
    for actor in ("m-0", "m-1"):
        router.report(report(actor, 1))
    event = CacheEvent(kind="insert", tokens=TOKENS.tobytes())
    router.restore(CacheSnapshot(actor="m-1", incarnation="m-1-1", sequence=1, events=[event]))
    assert router.place("a", "", TOKENS).actor == "m-1"
    router.expect("cohort", "", TOKENS, 5, at_once=5)
    router.leave("m-1")
    router.leave("never-known")
    assert list(router.loads) == ["m-0"]
    assert router.matches("", TOKENS).get("m-1", 0) == 0
    router.finished("a")
    router.unexpect("cohort")
    assert router.report(report("m-1", 2))
    assert router.restore(CacheSnapshot(actor="m-1", incarnation="m-1-1", sequence=2, events=[]))
    assert list(router.loads) == ["m-0"]
    router.report(report("m-1", 1, life="2"))
    assert list(router.loads) == ["m-0", "m-1"]
    assert router.loads["m-1"].requests == router.loads["m-1"].prefill_tokens == 0
