"""Ask 32 questions behind one long few-shot prompt.

All requests begin with the same 900 tokens. The engine computes them once, and every question
after the first reuses them.
"""

from __future__ import annotations

import asyncio
import time

import radixray as rr

SHOTS = [
    ("What is 3 + 4?", "7"),
    ("What is the capital of Japan?", "Tokyo"),
    ("How many legs does a spider have?", "8"),
    ("Which planet is closest to the sun?", "Mercury"),
    ("What is 12 + 9?", "21"),
    ("What do bees make?", "honey"),
    ("What is the opposite of hot?", "cold"),
    ("Which ocean lies between Europe and America?", "Atlantic"),
    ("What is 20 - 5?", "15"),
    ("What is the capital of Egypt?", "Cairo"),
    ("How many days does a week have?", "7"),
    ("What is frozen water called?", "ice"),
    ("What colour is a ripe banana?", "yellow"),
    ("What is 6 * 7?", "42"),
    ("Which language do people in Brazil speak?", "Portuguese"),
    ("What is the largest animal on Earth?", "blue whale"),
    ("How many sides does a hexagon have?", "6"),
    ("What is 100 - 1?", "99"),
    ("What is the capital of Canada?", "Ottawa"),
    ("Who wrote Romeo and Juliet?", "Shakespeare"),
    ("Which gas do plants take from the air?", "carbon dioxide"),
    ("What is 9 + 8?", "17"),
    ("What is a young dog called?", "puppy"),
    ("Which metal is liquid at room temperature?", "mercury"),
    ("How many minutes does an hour have?", "60"),
    ("What is the capital of Kenya?", "Nairobi"),
    ("What is 5 * 5?", "25"),
    ("What is the opposite of early?", "late"),
    ("Which organ pumps blood through the body?", "heart"),
    ("On which continent is Nigeria?", "Africa"),
    ("What is 50 - 20?", "30"),
    ("What do caterpillars turn into?", "butterflies"),
    ("How many strings does a violin have?", "4"),
    ("What is the capital of Norway?", "Oslo"),
    ("What is the chemical symbol of gold?", "Au"),
    ("What is 8 * 3?", "24"),
    ("Which season comes after winter?", "spring"),
    ("What is a group of wolves called?", "pack"),
    ("What is the tallest mountain on Earth?", "Mount Everest"),
    ("How many cents does a dollar have?", "100"),
    ("What is 14 + 14?", "28"),
    ("Which animal is known for its long neck?", "giraffe"),
    ("What is the capital of Greece?", "Athens"),
    ("What is the opposite of empty?", "full"),
    ("Which country has the most people?", "India"),
    ("What is 36 + 6?", "42"),
    ("What is the capital of Peru?", "Lima"),
    ("Which instrument has 88 keys?", "piano"),
    ("What is a home for bees called?", "hive"),
    ("How many players does a football team have?", "11"),
    ("What is 7 * 9?", "63"),
    ("Which tool do you use to cut paper?", "scissors"),
    ("What is the capital of Sweden?", "Stockholm"),
    ("Which sense do you use with your ears?", "hearing"),
]

QUESTIONS = [
    ("What is 2 + 2?", "4"),
    ("What is the capital of France?", "Paris"),
    ("How many months does a year have?", "12"),
    ("What is the opposite of big?", "small"),
    ("What is 10 + 10?", "20"),
    ("What is the capital of Italy?", "Rome"),
    ("What do cows give us to drink?", "milk"),
    ("How many sides does a triangle have?", "3"),
    ("What is 7 + 8?", "15"),
    ("What is the capital of Germany?", "Berlin"),
    ("Which planet do we live on?", "Earth"),
    ("What colour is the sky on a clear day?", "blue"),
    ("What is 30 - 10?", "20"),
    ("What is the capital of Spain?", "Madrid"),
    ("How many legs does a dog have?", "4"),
    ("What is a young cat called?", "kitten"),
    ("What is 4 * 5?", "20"),
    ("What is the capital of Russia?", "Moscow"),
    ("Which star gives us light by day?", "sun"),
    ("What is the opposite of up?", "down"),
    ("What is 9 - 3?", "6"),
    ("What is the capital of England?", "London"),
    ("How many hours does a day have?", "24"),
    ("What colour is grass?", "green"),
    ("What is 3 * 3?", "9"),
    ("What is the capital of China?", "Beijing"),
    ("On which continent is Egypt?", "Africa"),
    ("What is the chemical symbol of oxygen?", "O"),
    ("What is 11 + 5?", "16"),
    ("What is the capital of Portugal?", "Lisbon"),
    ("How many fingers does a hand have?", "5"),
    ("Which season comes after spring?", "summer"),
]

INTRODUCTION = "Answer each question with as few words as possible.\n\n"
PROMPT = INTRODUCTION + "".join(f"Question: {q}\nAnswer: {a}\n\n" for q, a in SHOTS)


@rr.function
async def answer(s: rr.State, question: str) -> str:
    s += PROMPT
    s += f"Question: {question}\nAnswer:"
    result = await s.gen("answer", max_tokens=12, stop="\n")
    return result.text.strip()


async def main() -> list[rr.ProgramResult]:
    questions = [question for question, _ in QUESTIONS]
    right = 0
    results: list[rr.ProgramResult] = []
    async with rr.init():
        started = time.perf_counter()
        async for result in answer.map(questions, temperature=0):
            question, expected = QUESTIONS[result.index]
            right += result.value == expected
            print(f"{question:42} {result.value:16} {result.usage.cached:4} tokens from the cache")
            results.append(result)
        seconds = time.perf_counter() - started
    usage = sum((result.usage for result in results), rr.Usage())
    print(f"\n{right} of {len(QUESTIONS)} right")
    print(f"{usage.cached} of {usage.prompt} prompt tokens came from the cache; {seconds:.1f} s")
    return results


if __name__ == "__main__":
    asyncio.run(main())
