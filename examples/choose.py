"""Sort reviews by likelihood: no text is generated, the likelier of two answers is taken."""

from __future__ import annotations

import asyncio

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


async def main() -> None:
    async with rr.init():
        async for result in judge.map(REVIEWS, ordered=True):
            choice = result.value
            scores = ", ".join(f"{score:.2f}" for score in choice.scores)
            print(f"{REVIEWS[result.index]:42}{choice.text:6} (log-probabilities: {scores})")


if __name__ == "__main__":
    asyncio.run(main())
