"""Failures that only other operations have met: the program has not seen them, and must."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from scripted_transport import ScriptedTransport

import radixray as rr
from radixray.protocol import GenerateRequest


@rr.function
async def fork_only(s: rr.State) -> None:
    s += "A bad beginning. "
    s.fork(2)


@rr.function
async def appended(s: rr.State) -> None:
    s += "Begin. "
    branch = s.copy()
    branch += "A bad branch. " + rr.gen("x")
    s += branch["x"]


@rr.function
async def adopted(s: rr.State) -> None:
    s += "Begin. "
    branch = s.copy()
    branch += "A bad branch. " + rr.gen("x")
    s.adopt(branch)


@rr.function
async def helper(s: rr.State) -> None:
    s += "A bad helper. "
    await s.gen("x")


@rr.function
async def called(s: rr.State) -> None:
    s += s.call(helper)


@pytest.mark.parametrize(
    "program", [fork_only, appended, adopted, called], ids=lambda p: p.__name__
)
async def test_the_end_of_the_program_raises_them(
    transport: ScriptedTransport, program: Any
) -> None:
    def reply(request: GenerateRequest) -> Any:
        return rr.EngineError("broken") if "bad" in transport.prompt(request) else " ok"

    transport.reply = reply
    with pytest.raises(rr.ProgramError, match="broken"):
        async with asyncio.timeout(10):
            await program.run(transport=transport)
    assert transport.live == 0


@pytest.mark.parametrize(
    "program", [fork_only, appended, adopted, called], ids=lambda p: p.__name__
)
async def test_those_seen_are_not_raised_again(transport: ScriptedTransport, program: Any) -> None:
    def reply(request: GenerateRequest) -> Any:
        return rr.EngineError("broken") if "bad" in transport.prompt(request) else " ok"

    @rr.function
    async def careful(s: rr.State) -> str:
        try:
            await program(s)
            await s.sync()
        except rr.ProgramError:
            return "seen"
        return "not"

    transport.reply = reply
    assert (await careful.run(transport=transport)).value == "seen"
