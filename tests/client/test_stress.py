"""Very many programs at once, with and without faults."""

from __future__ import annotations

import asyncio
import gc
import os
import random
import threading
from collections import Counter
from typing import Any

import pytest
from faulty_engine import FAULTS, FaultyTransport
from scripted_transport import ScriptedTransport

import radixray as rr
from radixray.tokenizer.tokenizer import Tokenizer

SEED = int(os.environ.get("RADIXRAY_STRESS_SEED", "7"))


@rr.function
async def three_branches(s: rr.State, number: int) -> list[str]:
    s += f"Program {number} says"
    async with s.fork(3) as forks:
        for index, branch in enumerate(forks):
            branch += f" {index}:" + rr.gen("x", max_tokens=4)
    return s["x"].value


async def test_500_programs_of_three_branches_need_no_thread(transport: ScriptedTransport) -> None:
    async def reply(request: Any) -> str:
        await asyncio.sleep(0.01)
        return " and so on"

    transport.reply = reply
    threads: set[int] = set()

    async def watch() -> None:
        while True:
            threads.add(threading.active_count())
            await asyncio.sleep(0)

    before = threading.active_count()
    watcher = asyncio.create_task(watch())
    async with asyncio.timeout(60):
        results = await asyncio.gather(
            *(three_branches.run(number, transport=transport) for number in range(500))
        )
    watcher.cancel()
    assert all(result.value == [" and so on"] * 3 for result in results)
    assert threads == {before}
    assert transport.live == 0


@rr.function
async def helper(s: rr.State, rng: random.Random) -> str:
    s += "Help:"
    return (await s.gen("x", max_tokens=rng.randint(1, 5))).text


@rr.function
async def anything(s: rr.State, rng: random.Random, depth: int = 0) -> Any:
    """Does what programs do, in random order; handles some failures, and not others."""
    s += "Begin"
    for number in range(rng.randint(1, 4)):
        name = f"v{number}"
        match rng.randrange(9):
            case 0:
                await s.gen(name, max_tokens=rng.randint(1, 9))
            case 1:
                s += f" {number}" + rr.gen(name, max_tokens=3) + rr.gen(max_tokens=2)
            case 2:
                await s.select(
                    name,
                    [" a", " b"],
                    method=rng.choice(["greedy_token_selection", "token_length_normalized"]),
                )
            case 3:
                async with s.fork(rng.randint(1, 4)) as forks:
                    for branch in forks:
                        branch += rr.gen(name, max_tokens=rng.randint(1, 6))
            case 4:
                forks = s.fork(3)
                forks += " go" + rr.gen(name, max_tokens=4)
                await forks.join(rng.choice(["gather", "concat"]), return_exceptions=True)
            case 5:
                forks = s.fork(3)
                forks += rr.gen(name, max_tokens=4)
                await forks.join("first")
            case 6:
                s[name] = s.call(helper, rng)
                s += s[name]
            case 7:
                pending = s.gen(name, max_tokens=9)
                async for _ in s.text_iter(name):
                    await asyncio.sleep(0)
                await pending
            case _:
                try:
                    await s.copy().gen(name, max_tokens=3)
                except rr.ProgramError:
                    s += " anyway"
    if rng.random() < 0.5:
        await s.sync()
    return s.usage.completion


async def one(number: int, transport: FaultyTransport) -> str:
    """Runs one program in one of the ways there are; how it ended."""
    rng = random.Random(f"{SEED} {number}")
    way = rng.choice(["deadline", "timeout", "cancel", "stream", "map"])
    # Each has something that ends it where the engine hangs.
    patient: dict[str, Any] = {"transport": transport, "timeout_s": 0.4}
    try:
        if way == "deadline":
            await anything.run(rng, **patient)
        elif way == "timeout":
            async with asyncio.timeout(rng.uniform(0.001, 0.3)):
                await anything.run(rng, transport=transport)
        elif way == "cancel":
            task = asyncio.create_task(anything.run(rng, transport=transport))
            await asyncio.wait([task], timeout=rng.uniform(0, 0.3))
            task.cancel()
            await task
        elif way == "stream":
            async for _ in anything.stream(rng, **patient):
                if rng.random() < 0.05:
                    return f"{way}: left"
        else:
            rows = [(rng,)] * 2
            retry = rr.Retry(2, delay_s=0)
            for result in await anything.run_batch(rows, retry=retry, **patient):
                if result.error is not None:
                    raise result.error
    except asyncio.CancelledError:
        assert way == "cancel"
        return "cancelled"
    except TimeoutError:
        assert way == "timeout"
        return "timeout"
    except Exception as error:
        return f"failed by {check(error)}"
    return "value"


def check(error: BaseException) -> str:
    """That a failure names its cause; the cause."""
    if isinstance(error, BaseExceptionGroup):
        return {check(inner) for inner in error.exceptions}.pop()
    assert isinstance(error, rr.ProgramError), repr(error)
    cause = error.__cause__
    assert isinstance(cause, rr.RadixRayError) and not isinstance(cause, rr.ProgramError)
    assert error.op and error.op in str(error) and str(cause) in str(error), str(error)
    return type(cause).__name__


async def test_1000_programs_on_a_faulty_engine(
    tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    print(f"RADIXRAY_STRESS_SEED={SEED}")
    monkeypatch.setattr("radixray.actors.channel.GRACE_S", 0.1)
    transport = FaultyTransport(tokenizer, SEED, fault_rate=0.1)
    tasks = asyncio.all_tasks()
    complaints: list[Any] = []
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _, context: complaints.append(context))
    turns = asyncio.Semaphore(100)

    async def in_turn(number: int) -> str:
        async with turns:
            return await one(number, transport)

    async with asyncio.timeout(100):
        ends = Counter(await asyncio.gather(*map(in_turn, range(1000))))
    for _ in range(100):
        if not transport.live:
            break
        await asyncio.sleep(0.01)
    assert transport.live == []
    await transport.close()
    await asyncio.sleep(0.01)
    gc.collect()
    await asyncio.sleep(0)
    loop.set_exception_handler(None)
    assert complaints == []  # no exception that nobody has seen, no task left pending
    assert asyncio.all_tasks() == tasks
    assert all(transport.met[fault] for fault in FAULTS), transport.met
    print(dict(ends), transport.met)
    for end in ("value", "cancelled", "timeout", "stream: left"):
        assert ends[end] > 10, ends
    for cause in ("EngineError", "EngineDiedError", "DeadlineExceededError", "OverloadedError"):
        assert ends[f"failed by {cause}"] > 0, ends


async def test_an_engine_that_hangs_past_the_timeout_is_given_up(
    tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("radixray.actors.channel.GRACE_S", 0.02)
    monkeypatch.setattr("faulty_engine.FAULTS", ("hang before",))
    transport = FaultyTransport(tokenizer, 0, fault_rate=1)

    @rr.function
    async def program(s: rr.State, what: str) -> None:
        s += "Begin here, please."
        if what == "fork":
            s.fork(2)
        elif what == "select":
            await s.select("x", [" a", " b"])
        else:
            await s.gen("x", max_tokens=2)

    for what in ("gen", "select", "fork"):
        with pytest.raises(rr.ProgramError, match="does not answer") as caught:
            async with asyncio.timeout(5):
                await program.run(what, timeout_s=0.02, transport=transport)
        assert isinstance(caught.value.__cause__, rr.DeadlineExceededError)
        assert caught.value.__cause__.param == "timeout_s"
    await asyncio.sleep(0.01)
    assert transport.live == []
    await transport.close()
