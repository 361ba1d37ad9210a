"""Think in a tree: three plans, three tips for each, one conclusion.

The state forks into three branches, and each branch into three more. What branches have in common
is computed once, and all branches of a level run together.
"""

from __future__ import annotations

import asyncio
import time

import radixray as rr

WIDTH = 3
SENTENCE = r" [A-Z][a-z]+(?: [a-z]+){3,14}\."

PROBLEMS = [
    "How can a small town get more people to ride bicycles?",
    "How can a family save water at home?",
    "How can a student sleep better before an exam?",
    "How can a library bring in more readers?",
]


@rr.function
async def tree_of_thought(s: rr.State, problem: str) -> str:
    s += f"Problem: {problem}\n\n"
    async with s.fork(WIDTH) as plans:
        plans += "A good plan in one sentence:" + rr.gen("plan", regex=SENTENCE)
        # Nothing waits here: each fork begins by itself as soon as its plan is there.
        tips = [plan.fork(WIDTH) for plan in plans]
        for branches in tips:
            branches += "\nA practical tip for this plan:" + rr.gen("tip", regex=SENTENCE)
        for branches in tips:
            await branches.join()
    for number, (plan, tip) in enumerate(zip(s["plan"].value, s["tip"].value, strict=True), 1):
        s += f"Plan {number}:{plan}\n" + "".join(f"-{text}\n" for text in tip)
    s += "\nThe best of these plans is plan"
    choice = await s.select("choice", [f" {number + 1}" for number in range(WIDTH)])
    s += ", because it helps people to"
    reason = await s.gen("reason", regex=r"(?: [a-z]+){3,14}\.", temperature=0)
    return f"plan{choice}, because it helps people to{reason}"


async def main() -> rr.ProgramResult:
    async with rr.init():
        started = time.perf_counter()
        result = await tree_of_thought.run(PROBLEMS[0], temperature=0.6, seed=1)
        seconds = time.perf_counter() - started
    print(result.text())
    usage = result.usage
    print(f"\n{usage.cached} of {usage.prompt} prompt tokens came from the cache; {seconds:.1f} s")
    return result


if __name__ == "__main__":
    asyncio.run(main())
