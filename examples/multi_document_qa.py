"""Questions about several documents: one branch reads each, and the parent goes on from all.

The join "concat" appends what the branches said, in their order.
"""

from __future__ import annotations

import asyncio
import time

import radixray as rr

DOCUMENTS = [
    "Minutes of May. The club has 48 members. The summer party is on 14 June in the park.",
    "Minutes of June. The party had 120 guests. Tom was thanked for the music.",
    "Minutes of July. The club bought a new boat, which is red and is called Swallow.",
]
QUESTIONS = ["What is the boat called?", "When is the summer party?"]


@rr.function
async def ask(s: rr.State, documents: list[str], questions: list[str]) -> list[str]:
    s += "Minutes of April. The dues rose to 20 euros a year.\nIn short: dues of 20 euros.\n\n"
    async with s.fork(len(documents), join="concat") as readers:
        for reader, document in zip(readers, documents, strict=True):
            reader += f"{document}\nIn short:" + rr.gen("note", max_tokens=24, stop=["\n", "."])
            reader += ".\n\n"
    s += "Question: How much are the dues?\nAnswer: 20 euros\n\n"
    async with s.fork(len(questions)) as branches:
        for branch, question in zip(branches, questions, strict=True):
            branch += f"Question: {question}\nAnswer:"
            branch += rr.gen("answer", max_tokens=16, stop=["\n", "."])
    return [str(answer).strip() for answer in s["answer"].value]


async def main() -> rr.ProgramResult:
    async with rr.init():
        started = time.perf_counter()
        result = await ask.run(DOCUMENTS, QUESTIONS, temperature=0)
        seconds = time.perf_counter() - started
    print(result.text().rstrip())
    for question, answer in zip(QUESTIONS, result.value, strict=True):
        print(f"{question} {answer}")
    usage = result.usage
    print(f"\n{usage.cached} of {usage.prompt} prompt tokens came from the cache; {seconds:.1f} s")
    return result


if __name__ == "__main__":
    asyncio.run(main())
