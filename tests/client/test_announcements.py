"""What programs and batches tell of requests to come, and when they take it back."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
from scripted_transport import ScriptedTransport

import radixray as rr
from radixray.tokenizer.tokenizer import Tokenizer

SHOTS = "Question: what is the capital of Japan? Answer: it is Tokyo.\n" * 6


@dataclass
class Told:
    prompt_ids: list[int]
    requests: int
    at_once: int
    own_tokens: int
    cache_salt: str
    sent_before: int
    ended: int = 0


class HearingTransport(ScriptedTransport):
    """Notes what it is told."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        super().__init__(tokenizer)
        self.told: list[Told] = []

    def expect(
        self,
        prompt_ids: list[int],
        requests: int,
        *,
        at_once: int,
        own_tokens: int = 0,
        cache_salt: str = "",
    ) -> Callable[[], None]:
        told = Told(prompt_ids, requests, at_once, own_tokens, cache_salt, len(self.requests))
        self.told.append(told)

        def end() -> None:
            told.ended += 1

        return end


@pytest.fixture
def hearing(tokenizer: Tokenizer) -> HearingTransport:
    return HearingTransport(tokenizer)


@rr.function
async def ask(s: rr.State, question: str, shots: str = SHOTS) -> str:
    s += shots + question
    return (await s.gen("x")).text


async def test_a_fork_tells_of_its_branches_before_its_prefix_is_sent(
    hearing: HearingTransport,
) -> None:
    @rr.function
    async def forking(s: rr.State) -> None:
        s += SHOTS
        async with s.fork(3) as forks:
            forks += "Go" + rr.gen("x")
        assert [told.ended for told in hearing.told] == [0]
        await s.gen("y", n=2)

    await forking.run(transport=hearing, cache_salt="mine")
    fork, samples = hearing.told
    assert fork.prompt_ids == hearing.commits[0].prompt_ids
    assert (fork.requests, fork.at_once, fork.sent_before) == (4, 4, 0)
    assert samples.prompt_ids == hearing.commits[1].prompt_ids and samples.requests == 3
    assert {fork.cache_salt, samples.cache_salt} == {"mine"}
    assert [told.ended for told in hearing.told] == [1, 1]
    for branch in hearing.generations[:3]:
        assert branch.prompt_ids[: len(fork.prompt_ids)] == fork.prompt_ids


async def test_what_is_not_worth_telling(hearing: HearingTransport) -> None:
    @rr.function
    async def program(s: rr.State) -> None:
        s.fork(2)
        s += "Short"
        await s.fork(3).join()
        s += SHOTS
        branch = s.copy()
        branch += rr.gen("x")
        await s.commit()

    await program.run(transport=hearing)
    assert hearing.told == []


@pytest.mark.parametrize("how", ["error", "cancel"])
async def test_it_is_taken_back_however_a_program_ends(hearing: HearingTransport, how: str) -> None:
    @rr.function
    async def program(s: rr.State) -> None:
        s += SHOTS
        s.fork(2)
        await s.sync()
        if how == "error":
            raise ValueError
        await asyncio.sleep(60)

    task = asyncio.create_task(program.run(transport=hearing))
    while not hearing.told:
        await asyncio.sleep(0)
    if how == "cancel":
        task.cancel()
    await asyncio.wait([task])
    assert [told.ended for told in hearing.told] == [1]


@pytest.mark.parametrize("max_requests", [None, 2])
async def test_a_batch_tells_what_its_rows_share(
    hearing: HearingTransport, max_requests: int | None
) -> None:
    rows = [f"Row {i}?" for i in range(50)]
    results = await ask.run_batch(rows, concurrency=8, max_requests=max_requests, transport=hearing)
    assert all(r.value == " ok" for r in results)
    (told,) = hearing.told
    ids = [hearing.tokenizer.encode(SHOTS + row) for row in rows[:8]]
    assert told.prompt_ids == ids[0][: len(told.prompt_ids)]
    longest = len(told.prompt_ids)
    assert all(other[:longest] == told.prompt_ids for other in ids)
    assert len({other[longest] for other in ids}) > 1  # it is all that they share
    assert (told.requests, told.at_once) == (50, 8 if max_requests is None else 2)
    assert told.own_tokens == sum(map(len, ids)) // 8 - longest
    assert told.sent_before == 0 and told.ended == 1


async def test_rows_are_grouped_by_how_they_begin(hearing: HearingTransport) -> None:
    other = "Translate the following words into French, and nothing else but them.\n" * 4
    rows: list[Any] = [
        {"question": f"{i}", "shots": [SHOTS, other, str(i)][i % 3]} for i in range(9)
    ]
    rows.append({"question": "9", "cache_salt": "own"})

    def endless() -> Any:
        yield from rows

    async for _ in ask.map(endless(), transport=hearing):
        pass
    assert sorted(told.requests for told in hearing.told) == [3, 3]
    assert all(told.ended == 1 for told in hearing.told)


async def test_no_row_waits_for_another(hearing: HearingTransport) -> None:
    """Programs that send nothing, or later, hold up nobody; what they send is not held."""
    late = asyncio.Event()

    @rr.function
    async def program(s: rr.State, number: int) -> int:
        if number == 0:
            return 0
        if number == 1:
            await late.wait()
        s += f"{SHOTS}{number}"
        await s.select("x", [" a", " b"])
        late.set()
        return number

    async with asyncio.timeout(20):
        results = await program.run_batch(range(4), concurrency=4, transport=hearing)
    assert [r.value for r in results] == [0, 1, 2, 3]
    assert [(told.requests, told.at_once) for told in hearing.told] == [(4, 2)]


async def test_a_batch_left_early_takes_it_back(hearing: HearingTransport) -> None:
    batch = ask.map([f"{i}" for i in range(9)], concurrency=3, transport=hearing)
    await anext(batch)
    await batch.aclose()
    assert [told.ended for told in hearing.told] == [1]
    assert hearing.live == 0


async def test_a_transport_that_hears_nothing(transport: ScriptedTransport) -> None:
    results = await ask.run_batch(["a", "b"], max_requests=1, transport=transport)
    assert [r.value for r in results] == [" ok", " ok"]
