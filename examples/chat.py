"""A chat of two turns. The second turn reuses the KV cache of the first."""

from __future__ import annotations

import asyncio
import time

import radixray as rr


@rr.function
async def chat(s: rr.State, first: str, second: str) -> None:
    s += rr.system("You are a friendly guide. Answer in two short sentences.")
    s += rr.user(first)
    s += rr.assistant(rr.gen("first", max_tokens=64))
    s += rr.user(second)
    s += rr.assistant(rr.gen("second", max_tokens=64))


async def main() -> rr.ProgramResult:
    async with rr.init():
        started = time.perf_counter()
        result = await chat.run(
            "Why do leaves fall in autumn?",
            "And what happens to them on the ground?",
            temperature=0,
        )
        seconds = time.perf_counter() - started
    for message in result.messages():
        print(f"{message['role']}: {message['content']}")
    for turn in ("first", "second"):
        usage = result[turn].usage
        print(f"{turn} turn: {usage.prompt} prompt tokens, {usage.cached} from the cache")
    print(f"{seconds:.1f} s")
    return result


if __name__ == "__main__":
    asyncio.run(main())
