"""A program that calls others as futures: two tips are written at the same time."""

from __future__ import annotations

import asyncio
import time

import radixray as rr


@rr.function
async def expand(s: rr.State, tip: str) -> str:
    s += rr.system("You are a coach. Answer in one sentence.")
    s += rr.user(f"Explain this tip for a healthy life: {tip}")
    s += rr.assistant(rr.gen("detail", max_tokens=40, stop="\n"))
    return (await s["detail"]).text


@rr.function
async def suggest(s: rr.State, topic: str) -> str:
    s += f"Two tips for {topic}: 1. Balanced diet. 2. Regular exercise.\n"
    diet, exercise = s.call(expand, "Balanced diet"), s.call(expand, "Regular exercise")
    # Appending waits for the values by itself, and for both at once.
    s += "Tip 1: " + diet + "\nTip 2: " + exercise + "\nIn summary, a healthy life needs"
    return (await s.gen("summary", max_tokens=24, stop=["\n", "."])).text.strip()


async def main() -> rr.ProgramResult:
    async with rr.init():
        started = time.perf_counter()
        result = await suggest.run("staying healthy", temperature=0)
        seconds = time.perf_counter() - started
    print(result.text() + "\n")
    usage = result.usage
    print(f"{usage.cached} of {usage.prompt} prompt tokens came from the cache; {seconds:.1f} s")
    return result


if __name__ == "__main__":
    asyncio.run(main())
