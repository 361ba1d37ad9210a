"""Which ending is the likeliest, as in HellaSwag: choices that are whole sentences.

Long endings are less likely as a whole than short ones. The methods of `select` differ in how they
make up for that.
"""

from __future__ import annotations

import asyncio
import time

import radixray as rr

METHODS = (
    "token_length_normalized",
    "greedy_token_selection",
    "unconditional_likelihood_normalized",
)

STORIES = [
    (
        "She cracked two eggs into the hot pan. After a few minutes,",
        (
            " she slid the fried eggs onto a plate.",
            " the eggs drove her to the station.",
            " she painted the wall with a new pan of snow.",
        ),
    ),
    (
        "He put on his raincoat and opened the door. Outside,",
        (
            " the piano was boiling in the kettle.",
            " it was raining.",
            " his raincoat read the newspaper to the stars.",
        ),
    ),
    (
        "The children built a tower of wooden blocks. When the dog ran past,",
        (
            " the tower fell over.",
            " the blocks ordered a cup of coffee.",
            " the sea was solved by an old number.",
        ),
    ),
]


@rr.function
async def ending(s: rr.State, story: str, endings: tuple[str, ...], method: str) -> rr.Choice:
    s += story
    return await s.select("ending", endings, method=method)


async def main() -> dict[str, list[rr.ProgramResult]]:
    async with rr.init():
        started = time.perf_counter()
        by_method = {
            method: await ending.run_batch(STORIES, method=method, on_error="raise")
            for method in METHODS
        }
        seconds = time.perf_counter() - started
    for index, (story, _) in enumerate(STORIES):
        print(story)
        for method, results in by_method.items():
            scores = ", ".join(f"{score:.2f}" for score in results[index].value.scores)
            print(f"   {method:36}{results[index].value} ({scores})")
    usages = [result.usage for results in by_method.values() for result in results]
    usage = sum(usages, rr.Usage())
    print(f"\n{usage.cached} of {usage.prompt} prompt tokens came from the cache; {seconds:.1f} s")
    return by_method


if __name__ == "__main__":
    asyncio.run(main())
