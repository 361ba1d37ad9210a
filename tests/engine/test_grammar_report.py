"""What is told of a constrained output: complete or not, how it came to be, why it failed."""

from __future__ import annotations

import logging
from typing import Any

import pytest
from engine_driver import EngineDriver, join
from hash_engine import hash_engine
from test_jump_forward import TOKENIZER, VOCABULARY

from radixray.constraint import GrammarReport
from radixray.fsm.compiler import compile_constraint
from radixray.protocol import Constraint, Delta, GenerateRequest, SamplingParams


def run(
    constraint: Constraint | None, settings: dict[str, Any] | None = None, **fields: Any
) -> list[Delta]:
    engine, _ = hash_engine(TOKENIZER, pool_tokens=2000, **(settings or {}))
    matcher = None if constraint is None else compile_constraint(constraint, VOCABULARY).matcher()
    fields.setdefault("sampling", SamplingParams(max_tokens=40, temperature=0))
    request = GenerateRequest(
        request_id="it", prompt_ids=[5, 6, 7], constraint=constraint, **fields
    )
    engine.add(request, matcher)
    driver = EngineDriver(engine)
    deltas = driver.drain()["it"]
    # Whatever happened, the engine goes on and nothing is held.
    assert len(driver.one([8, 9], SamplingParams(max_tokens=3, ignore_eos=True)).token_ids) == 3
    assert engine.snapshot_stats().pages_leased == 0
    return deltas


def report(deltas: list[Delta]) -> GrammarReport:
    assert all(delta.grammar is None for delta in deltas[:-1])
    assert deltas[-1].grammar is not None
    return deltas[-1].grammar


def test_only_constrained_outputs_have_a_report() -> None:
    assert run(None)[-1].grammar is None


def test_an_output_that_matches_is_complete() -> None:
    assert report(run(Constraint(regex="ab[cd]"))) == GrammarReport(complete=True)


def test_an_output_that_was_cut_off_is_not() -> None:
    deltas = run(Constraint(regex="[a-z]{50}"), sampling=SamplingParams(max_tokens=4))
    assert deltas[-1].finish_reason == "length"
    assert report(deltas) == GrammarReport(complete=False)


def test_a_trace_tells_how_each_token_came_to_be() -> None:
    deltas = run(Constraint(regex="ab[cd]ef"), fsm_debug=True)
    output, trace = join(deltas), report(deltas).trace
    assert [step.token for step in trace] == output.token_ids
    assert "".join(step.text for step in trace) == output.text
    assert [step.forced for step in trace] == [True, True, False, True, True]
    assert trace[2].first_allowed == (ord("c"), ord("d"))
    assert trace[2].why == "chosen by the model out of 2"
    assert trace[3].why.startswith("forced: only 'ef'")


def test_the_engine_can_be_told_to_log_traces(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "radixray"):
        deltas = run(Constraint(regex="ab[cd]"), {"fsm_debug": True})
    assert report(deltas).trace
    assert "chosen by the model out of 2" in caplog.text


class Breaks:
    """Lets any letters through, and fails after three."""

    def start(self) -> int:
        return 0

    def step(self, state: int, byte: int) -> int | None:
        if state == 3:
            raise RuntimeError("out of ideas")
        return state + 1 if ord("a") <= byte <= ord("z") else None

    def final(self, state: int) -> bool:
        return False


@pytest.mark.parametrize("overlap", [True, False])
def test_a_predicate_that_fails_ends_its_request_only(overlap: bool) -> None:
    deltas = run(Constraint(predicate=Breaks()), {"overlap": overlap})  # type: ignore[arg-type]
    last = deltas[-1]
    assert last.finish_reason == "grammar_error" and last.error is None
    found = report(deltas)
    assert not found.complete and "out of ideas" in found.error
    text = "".join(delta.text for delta in deltas)
    assert 2 <= len(text) <= 3 and text.isalpha()
    assert last.usage is not None and last.usage.completion == len(text)


class BreaksAtOnce(Breaks):
    def forced(self, state: int) -> bytes:
        raise RuntimeError("nothing comes to mind")


def test_a_predicate_that_fails_before_the_first_token_says_so() -> None:
    deltas = run(Constraint(predicate=BreaksAtOnce()))  # type: ignore[arg-type]
    assert deltas[-1].finish_reason == "grammar_error" and len(deltas) == 1
    found = report(deltas)
    assert not found.complete and "nothing comes to mind" in found.error
    assert deltas[-1].usage is not None and deltas[-1].usage.completion == 0


def test_a_dead_end_says_so() -> None:
    # Nothing this predicate allows after "ab" makes it a member.
    def viable(text: str) -> bool:
        return "ab".startswith(text) and text != ""

    class DeadEnd:
        def start(self) -> str:
            return ""

        def step(self, state: str, byte: int) -> str | None:
            return state + chr(byte) if viable(state + chr(byte)) else None

        def final(self, state: str) -> bool:
            return False

    deltas = run(Constraint(predicate=DeadEnd()))  # type: ignore[arg-type]
    assert deltas[-1].finish_reason == "grammar_error"
    assert "".join(delta.text for delta in deltas) == "ab"
    assert report(deltas).error
