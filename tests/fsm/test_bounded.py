"""Specifications of strangers are compiled within limits, and what hits one is no verdict."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator

import pytest
from fsm_vocabularies import byte_vocabulary

from radixray.errors import AbortedError, ConstraintError, GrammarTooComplexError
from radixray.fsm.bounded import BoundedCompiler, CompileLimits, is_cheap
from radixray.fsm.matcher import CompiledConstraint
from radixray.protocol import Constraint

SLOW = Constraint(regex=r"(\w+\s*){30}")  # a second or so, then refused


@pytest.fixture(scope="module")
def compiler() -> Iterator[BoundedCompiler]:
    compiler = BoundedCompiler(byte_vocabulary())
    compiler.warm_up()
    yield compiler
    compiler.close()


def accepts(compiled: CompiledConstraint, text: bytes) -> bool:
    matcher = compiled.matcher()
    if matcher.viable(text) < len(text):
        return False
    for byte in text:
        matcher.advance(byte)
    return matcher.is_accepting()


def test_what_comes_back_is_what_was_asked_for(compiler: BoundedCompiler) -> None:
    regex = Constraint(regex="(?:ab|é)+c?")
    assert not is_cheap(regex)
    compiled = compiler.compile(regex)
    assert accepts(compiled, "abéc".encode()) and not accepts(compiled, b"a")
    assert compiler.compile(regex) is compiled
    grammar = compiler.compile(Constraint(ebnf='root ::= "a" root "b" | ""'))
    assert accepts(grammar, b"aabb") and not accepts(grammar, b"aab")
    schema = compiler.compile(Constraint(json_schema={"type": "string", "pattern": "^a+$"}))
    assert accepts(schema, b'"aa"') and not accepts(schema, b'"ab"')


def test_refusals_are_those_of_the_compiler(compiler: BoundedCompiler) -> None:
    with pytest.raises(ConstraintError, match="look-ahead") as caught:
        compiler.compile(Constraint(regex="a*(?=b)"))
    assert caught.value.param == "regex"
    with pytest.raises(GrammarTooComplexError, match="too big"):
        compiler.compile(Constraint(regex="(a{1000}){1000}"))
    with pytest.raises(ConstraintError, match="give one constraint"):
        compiler.compile(Constraint(regex="a", ebnf="b"))


def test_a_warm_child_costs_little(compiler: BoundedCompiler) -> None:
    times = []
    for count in range(20):
        began = time.perf_counter()
        compiler.compile(Constraint(regex=f"(?:ab|c)*{count}"))
        times.append(time.perf_counter() - began)
    assert sorted(times)[10] < 0.05  # about 2 ms on an idle core


def test_cheap_ones_need_no_child() -> None:
    compiler = BoundedCompiler(byte_vocabulary())
    for cheap in (
        Constraint(choices=("a", "b")),
        Constraint(regex="abc[0-9]"),
        Constraint(json_schema={"type": "object", "properties": {"a": {"type": "integer"}}}),
        Constraint(predicate=lambda text: len(text) < 3),
    ):
        assert is_cheap(cheap)
        compiler.compile(cheap)
    assert compiler._child is None
    for costly in (
        Constraint(regex="a{30}"),
        Constraint(json_schema={"type": "string", "maxLength": 100_000}),
        Constraint(json_schema={"type": "string", "pattern": "a"}),
        Constraint(ebnf='root ::= "a"'),
        Constraint(lark='start: "a"'),
    ):
        assert not is_cheap(costly)


@pytest.mark.parametrize(
    "limits",
    [
        CompileLimits(wall_s=0.15),
        CompileLimits(cpu_s=0.01),  # rounded up to whole seconds of the process
        CompileLimits(memory_bytes=8 * 2**20),
    ],
    ids=["wall", "cpu", "memory"],
)
def test_limits(limits: CompileLimits) -> None:
    compiler = BoundedCompiler(byte_vocabulary(), limits)
    slow = Constraint(regex=r"(?:\w{1,9}\s*){9}\w{0,50}\d{0,50}\W{0,50}")
    try:
        for _ in range(2 if limits.wall_s < 1 else 1):  # asked again, it is tried again
            with pytest.raises(GrammarTooComplexError) as caught:
                compiler.compile(slow)
            assert caught.value.param == "regex"
        assert accepts(compiler.compile(Constraint(regex="(?:a|b)*c")), b"abc")
    finally:
        compiler.close()


def test_cancelling_kills_the_child(compiler: BoundedCompiler) -> None:
    cancelled = threading.Event()
    timer = threading.Timer(0.2, cancelled.set)
    timer.start()
    with pytest.raises((AbortedError, GrammarTooComplexError)):
        compiler.compile(SLOW, cancelled)
    timer.cancel()
    assert accepts(compiler.compile(Constraint(regex="x+")), b"xx")


async def test_cancelling_the_task_kills_the_child() -> None:
    compiler = BoundedCompiler(byte_vocabulary())
    compiler.warm_up()
    assert accepts(await compiler.compile_async(Constraint(regex="x+y")), b"xxy")
    child = compiler._child
    assert child is not None
    task = asyncio.create_task(compiler.compile_async(SLOW))
    await asyncio.sleep(0.1)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    for _ in range(100):
        if not child.is_alive:
            break
        await asyncio.sleep(0.05)
    assert not child.is_alive
    compiler.close()


async def test_those_that_wait_for_the_child_hold_up_no_others() -> None:
    compiler = BoundedCompiler(byte_vocabulary())
    compiler.warm_up()
    # More than the event loop has threads of its own.
    slow = [
        asyncio.create_task(compiler.compile_async(Constraint(regex=rf"(\w+\s*){{30}}{n}")))
        for n in range(40)
    ]
    await asyncio.sleep(0.05)
    began = time.perf_counter()
    await compiler.compile_async(Constraint(choices=("a", "b")))
    assert time.perf_counter() - began < 0.4
    for task in slow:
        task.cancel()
    await asyncio.gather(*slow, return_exceptions=True)
    began = time.perf_counter()
    assert accepts(await compiler.compile_async(Constraint(regex="x+")), b"xx")
    compiler.close()
