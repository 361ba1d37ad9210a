"""Sort reviews by likelihood: no text is generated, the likelier of two answers is taken."""

from __future__ import annotations

import asyncio
import time

import radixray as rr

SHOTS = """\
Review: The room was clean and the staff were kind. Verdict: good
Review: Cold food, and we waited for an hour. Verdict: bad
Review: The best bread in town. Verdict: good
Review: It broke on the first day. Verdict: bad
"""

REVIEWS = [
    "A wonderful evening, we will come again.",
    "The battery died after ten minutes.",
    "Great music and a lovely garden.",
    "Rude waiters and a dirty table.",
]


@rr.function
async def judge(s: rr.State, review: str) -> rr.Choice:
    s += SHOTS
    s += f"Review: {review} Verdict:"
    return await s.select("verdict", [" good", " bad"])


async def main() -> list[rr.ProgramResult]:
    async with rr.init():
        started = time.perf_counter()
        results = await judge.run_batch(REVIEWS, on_error="raise")
        seconds = time.perf_counter() - started
    for review, result in zip(REVIEWS, results, strict=True):
        choice = result.value
        scores = ", ".join(f"{score:.2f}" for score in choice.scores)
        print(f"{review:42}{choice.text:6} (log-probabilities: {scores})")
    usage = sum((result.usage for result in results), rr.Usage())
    print(f"\n{usage.cached} of {usage.prompt} prompt tokens came from the cache; {seconds:.1f} s")
    return results


if __name__ == "__main__":
    asyncio.run(main())
