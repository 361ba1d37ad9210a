"""An agent that thinks, acts and observes (ReAct), with a tool that runs here, in the program.

Each round appends to the same text, so the cache holds all but the newest lines. The actions are
held to those that make sense, so they can always be read and done.
"""

from __future__ import annotations

import asyncio
import time

import radixray as rr

POPULATION = {"Norway": 5.5, "Sweden": 10.5, "Denmark": 5.9, "Finland": 5.6, "Iceland": 0.4}

SHOT = """\
Use the tool to answer. Actions are Search[country] and Finish[answer].

Question: Do more people live in Sweden or in Iceland?
Thought: I need the population of Sweden.
Action: Search[Sweden]
Observation: Sweden has 10.5 million people.
Thought: I need the population of Iceland.
Action: Search[Iceland]
Observation: Iceland has 0.4 million people.
Thought: I know enough to answer.
Action: Finish[Sweden]

"""
MOST_ROUNDS = 5


def actions(seen: list[str]) -> str:
    """What may come next: a search for what is not known yet, or one of two known as the answer."""
    unseen = [country for country in POPULATION if country not in seen]
    search = rf"Search\[(?:{'|'.join(unseen)})\]"
    return search if len(seen) < 2 else rf"{search}|Finish\[(?:{'|'.join(seen)})\]"


async def search(country: str) -> str:
    """The tool. It could ask a database or another service: other programs run meanwhile."""
    await asyncio.sleep(0.01)
    return f"{country} has {POPULATION[country]} million people."


@rr.function
async def agent(s: rr.State, question: str) -> str | None:
    s += SHOT
    s += f"Question: {question}\n"
    seen: list[str] = []
    for _ in range(MOST_ROUNDS):
        s += "Thought:" + rr.gen("thoughts", max_tokens=24, stop="\n", list_append=True)
        s += "\nAction: "
        action = await s.gen("action", regex=actions(seen))
        name, _, argument = action.text.rstrip("]").partition("[")
        if name == "Finish":
            return argument
        seen.append(argument)
        s += f"\nObservation: {await search(argument)}\n"
    return None


QUESTIONS = [
    "Do more people live in Norway or in Denmark?",
    "Do more people live in Finland or in Iceland?",
]


async def main() -> list[rr.ProgramResult]:
    async with rr.init():
        started = time.perf_counter()
        results = await agent.run_batch(QUESTIONS, temperature=0, on_error="raise")
        seconds = time.perf_counter() - started
    for question, result in zip(QUESTIONS, results, strict=True):
        print(f"Question: {question}{result.text().partition(question)[2]}")
        print(f"=> {result.value or 'no answer'}\n")
    usage = sum((result.usage for result in results), rr.Usage())
    print(f"{usage.cached} of {usage.prompt} prompt tokens came from the cache; {seconds:.1f} s")
    return results


if __name__ == "__main__":
    asyncio.run(main())
