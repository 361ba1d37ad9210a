"""Multiple-choice questions, as in MMLU: worked examples, a question, and the likeliest answer.

All questions share the worked examples, which are computed once. No token is generated: the engine
reads the four answers after each question. Larger models can be asked for a letter in the same way.
"""

from __future__ import annotations

import asyncio
import time

import radixray as rr

SHOTS = [
    ("What do plants need for photosynthesis?", "light"),
    ("What is 7 times 6?", "42"),
    ("Which of these is a mammal: a whale, a shark, an eagle or a frog?", "a whale"),
    ("What is the capital of Japan?", "Tokyo"),
    ("What freezes into ice?", "water"),
]

QUESTIONS = [
    ("Which planet is known as the Red Planet?", ("Venus", "Mars", "Jupiter", "Saturn"), 1),
    ("What is the capital of France?", ("Paris", "Rome", "Madrid", "Berlin"), 0),
    ("What is water made of?", ("iron", "gold", "hydrogen and oxygen", "carbon"), 2),
    ("Which animal barks?", ("a cat", "a cow", "a horse", "a dog"), 3),
    ("Who wrote Romeo and Juliet?", ("Shakespeare", "Newton", "Mozart", "Darwin"), 0),
    ("Which organ pumps blood?", ("the lung", "the heart", "the skin", "the liver"), 1),
    ("In which season does it snow most?", ("summer", "spring", "winter", "autumn"), 2),
    ("How many days has a week?", ("five", "nine", "ten", "seven"), 3),
]

PROMPT = "".join(f"Question: {question}\nAnswer: {answer}\n\n" for question, answer in SHOTS)


@rr.function
async def answer(s: rr.State, question: str, answers: tuple[str, ...]) -> int:
    s += PROMPT
    s += f"Question: {question}\nAnswer:"
    choice = await s.select("answer", [f" {answer}" for answer in answers])
    return choice.index


async def main() -> list[rr.ProgramResult]:
    rows = [(question, answers) for question, answers, _ in QUESTIONS]
    async with rr.init():
        started = time.perf_counter()
        results = await answer.run_batch(rows, on_error="raise")
        seconds = time.perf_counter() - started
    for (question, answers, right), result in zip(QUESTIONS, results, strict=True):
        verdict = "right" if result.value == right else "wrong"
        print(f"{question:42}{answers[result.value]:22}{verdict}")
    usage = sum((result.usage for result in results), rr.Usage())
    print(f"\n{usage.cached} of {usage.prompt} prompt tokens came from the cache; {seconds:.1f} s")
    return results


if __name__ == "__main__":
    asyncio.run(main())
