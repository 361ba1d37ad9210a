"""Retrieval and answering as a pipeline of programs, in the manner of DSPy.

Each step is a program of its own with named inputs and a typed output. The pipeline calls them as
futures, so that steps which do not need each other run together.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass

import radixray as rr

PASSAGES = [
    "The Danube rises in the Black Forest and flows into the Black Sea.",
    "The Nile flows north through Egypt into the Mediterranean Sea.",
    "Lake Baikal in Siberia is the deepest lake in the world.",
    "Mount Etna on the island of Sicily is an active volcano.",
    "The Sahara is the largest hot desert in the world.",
    "The Great Barrier Reef lies off the coast of Australia.",
]


def words(text: str) -> set[str]:
    return {word.strip("?.,").lower() for word in text.split() if len(word.strip("?.,")) > 3}


def retrieve(query: str) -> str:
    """The passage that shares most words with the query."""
    return max(PASSAGES, key=lambda passage: len(words(passage) & words(query)))


@dataclass(frozen=True)
class Answer:
    query: str
    passage: str
    guess: str
    """Without the passage."""
    text: str


@rr.function
async def search_query(s: rr.State, question: str) -> str:
    s += "Question: What is the biggest cat?\nKeywords: biggest cat\n"
    s += "Question: How tall is the Eiffel Tower?\nKeywords: Eiffel Tower tall\n"
    s += f"Question: {question}\nKeywords:"
    return (await s.gen("query", max_tokens=12, stop="\n")).text.strip()


@rr.function
async def respond(s: rr.State, question: str, context: str = "unknown") -> str:
    s += "Answer from the context, with as few words as possible.\n"
    s += "Context: The Rhine flows into the North Sea.\nQuestion: Where does the Rhine end?\n"
    s += "Answer: in the North Sea\n"
    s += f"Context: {context}\nQuestion: {question}\nAnswer:"
    return (await s.gen("answer", max_tokens=16, stop=["\n", "."])).text.strip()


@rr.function
async def pipeline(s: rr.State, question: str) -> Answer:
    searching, guessing = s.call(search_query, question), s.call(respond, question)
    query = (await searching).value
    passage = retrieve(f"{question} {query}")
    text = (await s.call(respond, question, passage)).value
    return Answer(query, passage, (await guessing).value, text)


QUESTIONS = [
    "Into which sea does the Nile flow?",
    "Which lake is the deepest in the world?",
    "On which island is Mount Etna?",
]


async def main() -> list[rr.ProgramResult]:
    async with rr.init():
        started = time.perf_counter()
        results = await pipeline.run_batch(QUESTIONS, temperature=0, on_error="raise")
        seconds = time.perf_counter() - started
    for question, result in zip(QUESTIONS, results, strict=True):
        print(f"{question}\n   searched for {result.value.query!r}: {result.value.passage}")
        print(f"   answer: {result.value.text!r}; without the passage: {result.value.guess!r}")
    usage = sum((result.usage for result in results), rr.Usage())
    print(f"\n{usage.cached} of {usage.prompt} prompt tokens came from the cache; {seconds:.1f} s")
    return results


if __name__ == "__main__":
    asyncio.run(main())
