"""A judge that looks at an essay from several sides (branch, solve, merge; Saha et al., 2023).

Each branch judges one dimension, in words and with a grade; the merge reads them all.
"""

from __future__ import annotations

import asyncio
import time

import radixray as rr

DIMENSIONS = ("clarity", "originality", "evidence")

ESSAY = """\
Cities should plant more trees. A street with trees is up to five degrees cooler in summer, as
measurements in Vienna have shown. Trees also slow the rain down, so that drains overflow less
often. They cost money and water in their first years, but a grown tree asks for little. A city
that plants now gives shade to people who are not born yet."""


@rr.function
async def judge(s: rr.State, essay: str) -> dict[str, int]:
    s += rr.system("You judge essays. You are strict but fair.")
    s += rr.user(f"Read this essay.\n\n{essay}")
    s += rr.assistant("I have read it.")
    async with s.fork(len(DIMENSIONS)) as branches:
        for branch, dimension in zip(branches, DIMENSIONS, strict=True):
            branch += rr.user(f"Judge its {dimension} in one sentence, then grade it from 1 to 5.")
            with branch.assistant():
                branch += f"The {dimension} of the essay is"
                branch += rr.gen("judgement", max_tokens=32, stop=[".", "\n"])
                branch += ". Grade: " + rr.gen("grade", regex="[1-5]")
    grades = [int(grade) for grade in s["grade"].value]
    report = "".join(
        f"- {dimension}:{judgement} (grade {grade})\n"
        for dimension, judgement, grade in zip(
            DIMENSIONS, s["judgement"].value, grades, strict=True
        )
    )
    s += rr.user(f"These are your judgements:\n{report}Sum them up in one sentence.")
    s += rr.assistant(rr.gen("summary", max_tokens=48, stop="\n"))
    return dict(zip(DIMENSIONS, grades, strict=True))


async def main() -> rr.ProgramResult:
    async with rr.init():
        started = time.perf_counter()
        result = await judge.run(ESSAY, temperature=0)
        seconds = time.perf_counter() - started
    judgements = result["judgement"]
    for (dimension, grade), judgement in zip(result.value.items(), judgements, strict=True):
        print(f"{dimension} ({grade}):{judgement}")
    print(f"summary: {result['summary']}\n")
    usage = result.usage
    print(f"{usage.cached} of {usage.prompt} prompt tokens came from the cache; {seconds:.1f} s")
    return result


if __name__ == "__main__":
    asyncio.run(main())
