"""A villager with a memory, as in Generative Agents (Park et al., 2023).

Observations are rated, all at once, and kept. The villager then remembers what is recent, important
and about the question, and says what to do.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass

import radixray as rr

PERSON = "Maria Lopez is a baker in a small village. She is kind and likes music."


@dataclass
class Memory:
    text: str
    importance: float
    age: int


@rr.function
async def rate(s: rr.State, observation: str) -> float:
    """The grade to be expected, which says more than the likeliest one."""
    s += f"{PERSON}\nHow important is each event for her, from 1 (dull) to 9 (life-changing)?\n"
    s += "She brushes her teeth: 1\nShe marries: 9\nShe meets a friend for tea: 4\n"
    s += f"{observation}:"
    grades = await s.score([f" {grade}" for grade in range(1, 10)])
    return sum(grade * p for grade, p in enumerate(grades.probabilities, start=1))


@rr.function
async def act(s: rr.State, memories: list[str], situation: str) -> str:
    s += f"{PERSON}\nShe remembers:\n" + "".join(f"- {memory}\n" for memory in memories)
    s += f"{situation}\nSo Maria decides to"
    return (await s.gen("plan", max_tokens=24, stop=[".", "\n"])).text.strip()


def recall(memories: list[Memory], situation: str, most: int) -> list[str]:
    """What is recent, important and has words in common with the situation."""
    words = {word.strip(".,").lower() for word in situation.split() if len(word) > 3}

    def weight(memory: Memory) -> float:
        shared = words & {word.strip(".,").lower() for word in memory.text.split()}
        return 0.9**memory.age + memory.importance / 9 + len(shared)

    return [memory.text for memory in sorted(memories, key=weight, reverse=True)[:most]]


OBSERVATIONS = [
    "The oven of the bakery is broken",
    "Her neighbour Tom asks for two loaves of bread for his birthday party",
    "It rains in the morning",
    "A bird sits on the roof",
    "Anna invites her to sing at the birthday party",
    "She buys a new pair of shoes",
]
SITUATION = "It is noon, and the birthday party of Tom begins in the evening."


async def main() -> tuple[list[Memory], rr.ProgramResult]:
    async with rr.init():
        started = time.perf_counter()
        rated = await rate.run_batch(OBSERVATIONS, on_error="raise")
        memories = [
            Memory(text, result.value, len(OBSERVATIONS) - 1 - result.index)
            for text, result in zip(OBSERVATIONS, rated, strict=True)
        ]
        remembered = recall(memories, SITUATION, most=3)
        result = await act.run(remembered, SITUATION, temperature=0)
        seconds = time.perf_counter() - started
    for memory in memories:
        mark = "*" if memory.text in remembered else " "
        print(f"{mark} importance {memory.importance:.1f}: {memory.text}")
    print(f"{SITUATION}\nMaria decides to {result.value}.\n")
    usage = sum((each.usage for each in rated), result.usage)
    print(f"{usage.cached} of {usage.prompt} prompt tokens came from the cache; {seconds:.1f} s")
    return memories, result


if __name__ == "__main__":
    asyncio.run(main())
