"""A program stops in one process and goes on in another, on the real model."""

from __future__ import annotations

import asyncio
import os
from typing import Any

import ray

import radixray as rr


@rr.function
async def story(s: rr.State, kept: list[bytes]) -> int:
    s += rr.system("You tell stories.") + rr.user("Begin with a harbour.")
    with s.assistant():
        await s.gen("first", max_tokens=11, ignore_eos=True)
        kept.append(s.snapshot().to_bytes())
        await s.gen("second", max_tokens=24, ignore_eos=True)
    return os.getpid()


async def test_the_same_tokens_in_another_process(runtime: Any, settled: Any) -> None:
    @rr.function
    async def rest(s: rr.State) -> int:
        assert s["first"].result.finish_reason == "length"
        await s.gen("second", max_tokens=24, ignore_eos=True)
        s += rr.assistant_end()
        return os.getpid()

    def go_on(raw: bytes) -> rr.ProgramResult:
        runtime = rr.attach("default")

        async def run() -> rr.ProgramResult:
            try:
                return await rest.resume(rr.Snapshot.from_bytes(raw), temperature=0)
            finally:
                await runtime.aclose()

        return asyncio.run(run())

    kept: list[bytes] = []
    here = await story.run(kept, temperature=0)
    task = ray.remote(go_on).options(num_cpus=0.1)
    there = await task.remote(kept[0])
    assert there.value != here.value
    assert there["second"].token_ids == here["second"].token_ids
    assert len(there["second"].token_ids) == 24
    assert there["first"] == here["first"]
    assert (there.text(), there.tokens()) == (here.text(), here.tokens())
    assert there.messages() == here.messages()
    assert there.usage.prompt == here.usage.prompt
    assert there.usage.completion == here.usage.completion
    await settled()
