"""Every placement can be told; and what was predicted is compared with what was found."""

from __future__ import annotations

import numpy as np
import pytest

from radixray.errors import InvalidRequestError
from radixray.explanation import HitNote, explanation_of, without_content
from radixray.reports import CacheEvent, CacheSnapshot, Placement, Predictions, StepReport
from radixray.scheduler import journal
from radixray.scheduler.router import Router


def array(tokens: list[int]) -> np.ndarray:
    return np.array(tokens, np.int32)


def report(actor: str, sequence: int, held: list[int] | None = None, **found: int) -> StepReport:
    events = [] if held is None else [CacheEvent(kind="insert", tokens=array(held).tobytes())]
    return StepReport(
        actor=actor,
        incarnation="1",
        sequence=sequence,
        events=events,
        finished=list(found),
        found=list(found.values()),
    )


@pytest.fixture
def router() -> Router:
    made = Router(["a", "b", "c"], page_size=4)
    for actor in "abc":
        made.restore(CacheSnapshot(actor=actor, incarnation="1", sequence=0, events=[]))
    return made


def why(router: Router, request_id: str, hit: HitNote | None = None) -> str:
    found = explanation_of(
        request_id,
        "?",
        router.explain(request_id),
        hit,
        lambda ids: " ".join(f"w{i}" for i in ids),
    )
    return " ".join(found.why)


def test_a_placement_as_it_was_seen(router: Router) -> None:
    router.report(report("b", 1, list(range(100))))
    router.report(report("c", 1, list(range(40))))
    router.place("busy", "", array([7] * 50))
    router.unreachable("c")
    router.place("r", "", array([*range(60), 999, 998]), "talk")
    router.place("later", "", array([5] * 500))  # changes nothing of what is told
    note = router.explain("r")
    assert note is not None
    assert (note.policy, note.actor, note.reason, note.session) == ("prefix", "b", "prefix", "talk")
    assert (note.prompt_tokens, note.predicted, note.found) == (62, 60, None)
    seen = {c.actor: (c.matched, c.requests, c.prefill_tokens, c.up) for c in note.candidates}
    assert seen == {"a": (0, 1, 50, True), "b": (60, 0, 0, True), "c": (0, 0, 0, False)}
    assert note.candidates[0].actor == "b"
    assert note.divergence is not None
    assert note.divergence.position == 60
    assert note.divergence.before == list(range(52, 60))
    assert note.divergence.prompt == [999, 998]
    assert note.divergence.cached == list(range(60, 76))
    text = why(router, "r")
    assert "It went to b because it held the longest prefix (60 of 62 tokens)" in text
    assert "at token 60: 'w999 w998' instead of 'w60 w61" in text
    assert router.explain("never") is None


def test_reasons_in_words(router: Router) -> None:
    router.place("cold", "", array(list(range(300))))
    assert "nothing that begins like it was cached, and it had the least to do" in why(
        router, "cold"
    )
    router.report(report("a", 1, list(range(300)), cold=0))
    for i in range(60):
        router.place(f"r{i}", "", array([*range(300), 400 + i]))
    moved = next(i for i in range(60) if why(router, f"r{i}").find("holder of 300 tokens") >= 0)
    note = router.explain(f"r{moved}")
    assert note is not None and note.actor == "b" and note.predicted == 0
    router.unreachable("b")
    router.unreachable("c")
    router.place("only", "", array([1]))
    assert "it was the only one that could be reached" in why(router, "only")


def test_predicted_and_found(router: Router) -> None:
    router.report(report("a", 1, list(range(80))))
    placed = [router.place(f"r{i}", "", array([*range(80), 500 + i])) for i in range(4)]
    assert placed == [Placement(actor="a", matched=80, reason="prefix")] * 4
    router.report(report("a", 2, r0=80, r1=77, r2=40, r3=-1))
    router.place("more", "", array([600, 601, 602, 603, 604]))
    note = router.explain("more")
    assert note is not None
    router.report(report(note.actor, 3 if note.actor == "a" else 1, more=4))
    # The last token of a prompt is never found: no misprediction.
    router.place("all", "", array(list(range(80))))
    router.report(report("a", 3, all=79))
    assert router.predictions["a"] == Predictions(
        requests=4, predicted_tokens=320, found_tokens=276, too_many=1
    )
    assert router.predictions[note.actor] == Predictions(
        requests=1, predicted_tokens=0, found_tokens=4, too_few=1
    )
    assert "40 tokens in the cache there. 80 were expected" in why(router, "r2")
    assert "Only 0 were expected" in why(router, "more")
    router.report(report("a", 4, r0=10))  # again: it counts once
    assert router.predictions["a"].requests == 4


def test_what_is_kept_is_bounded(router: Router, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal, "MAX_RECORDS", 100)
    monkeypatch.setattr(journal, "FEWEST_RECORDS", 10)
    for i in range(250):
        router.place(f"r{i}", "", array([i]))
        router.finished(f"r{i}")
    assert len(router._journal) == 100
    assert router.explain("r149") is None
    assert router.explain("r150") is not None
    monkeypatch.setattr(journal, "MAX_BYTES", 20 * 1024)
    router.place("last", "", array([1]))
    assert len(router._journal) < 20
    router.place("last", "", array([2, 3]))  # a second attempt takes the first one's place
    note = router.explain("last")
    assert note is not None and note.prompt_tokens == 2


def test_many_candidates_are_told_in_part() -> None:
    router = Router([f"m{i}" for i in range(100)])
    router.place("r", "", array([1]))
    note = router.explain("r")
    assert note is not None
    assert (len(note.candidates), note.left_out) == (32, 68)
    assert note.candidates[0].actor == note.actor


def test_without_content_no_token_is_told(router: Router) -> None:
    router.report(report("b", 1, list(range(777_000, 777_100))))
    router.place("r", "", array([*range(777_000, 777_050), 888_001]), "secret")
    found = explanation_of("r", "b", router.explain("r"), None, str)
    assert "777050" in repr(found) and "secret" in repr(found)
    told = repr(without_content(found))
    assert "7770" not in told and "888001" not in told and "secret" not in told
    assert "at token 50." in told
    with pytest.raises(InvalidRequestError, match="nothing is known of request 'x'"):
        explanation_of("x", "b", None, None)
