"""A skeleton first, then all its points at once (Ning et al., 2023).

A long answer takes as long as its longest point, not as their sum.
"""

from __future__ import annotations

import asyncio
import time

import radixray as rr

SHOT = """\
Question: How do I make tea?
1. Boil water
2. Steep the leaves
3. Pour and serve

"""


@rr.function
async def skeleton_of_thought(s: rr.State, question: str, points: int = 3) -> str:
    s += SHOT
    s += f"Question: {question}\n"
    for number in range(1, points + 1):
        s += f"{number}." + rr.gen("points", max_tokens=10, stop="\n", list_append=True) + "\n"
    skeleton = [point.text for point in await s["points"]]
    async with s.fork(points) as branches:
        for number, (branch, point) in enumerate(zip(branches, skeleton, strict=True), start=1):
            branch += f"\nPoint {number} in one sentence:{point}"
            branch += rr.gen("detail", max_tokens=32, stop=["\n", "."])
    details = s["detail"].value
    return "\n".join(f"-{point}{rest}." for point, rest in zip(skeleton, details, strict=True))


QUESTION = "How do I keep a garden healthy?"


async def main() -> rr.ProgramResult:
    async with rr.init():
        started = time.perf_counter()
        result = await skeleton_of_thought.run(QUESTION, temperature=0)
        seconds = time.perf_counter() - started
    print(f"{QUESTION}\n{result.value}\n")
    usage = result.usage
    print(f"{usage.cached} of {usage.prompt} prompt tokens came from the cache; {seconds:.1f} s")
    return result


if __name__ == "__main__":
    asyncio.run(main())
