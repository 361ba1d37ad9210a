"""Six loads, each a way in which programs share prefixes, or do not.

Their shapes are those of the programs in the SGLang paper (Zheng et al., 2024). The text is random
words: what a model makes of it is of no matter here, how long it is and what it shares is. A seed
fixes all of it; with another seed, nothing but the frame of the prompts is the same.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from load import Client, at_most

WORDS = """
apple bamboo barrel basin beacon bicycle blossom bottle branch bronze bucket butter camera canal
canvas carbon carpet castle cedar cherry circle cloud clover coast coffee column comet cotton
cradle crystal desert diamond drawer eagle ember engine fabric feather field flame flute frost
ginger glacier hammer harvest helmet honey island ivory jacket jungle kettle ladder lemon
library lizard magnet mirror mountain needle ocean olive onion otter paper pigeon pillow prairie
quartz rabbit ribbon saffron sailor shadow silver spider station stone storm summer tiger timber
tower trumpet valley village wagon weather willow
"""
VOCABULARY = WORDS.split()

Run = Callable[[Client, random.Random], Awaitable[None]]


@dataclass(frozen=True)
class Workload:
    """One load.

    Attributes:
        unit: the rate to compare servers by, "tokens_per_s" or "requests_per_s".
        required: how many times the peer's rate, with its cache on, RadixRay must reach.
        run: puts the load on a client's server, once.
    """

    name: str
    title: str
    unit: str
    required: float
    run: Run


def prose(rng: random.Random, words: int) -> str:
    """So many random words."""
    return " ".join(rng.choices(VOCABULARY, k=words))


async def few_shot(client: Client, rng: random.Random) -> None:
    """96 questions behind the same 20 worked examples, 32 at once, 16 tokens each."""
    examples = "".join(f"Q: {prose(rng, 24)}?\nA: {prose(rng, 12)}.\n\n" for _ in range(20))
    prompts = [f"{examples}Q: {prose(rng, 30)}?\nA:" for _ in range(96)]
    await at_most(32, [partial(_complete, client, prompt, 16) for prompt in prompts])


async def tree_of_thought(client: Client, rng: random.Random) -> None:
    """5 problems behind one instruction; each grows four thoughts, and each of those four more."""
    instruction = f"Think in steps, each in a new direction.\n{prose(rng, 150)}\n"
    problems = [f"{instruction}Problem {i}: {prose(rng, 60)}\n" for i in range(5)]

    async def grow(text: str, levels: int) -> None:
        async def branch(number: int) -> None:
            asked = f"{text}Idea {number}:"
            thought = await client.complete(asked, 32)
            if levels > 1:
                grown.append(f"{asked}{thought}\n")

        grown: list[str] = []
        await asyncio.gather(*map(branch, range(4)))
        await asyncio.gather(*(grow(text, levels - 1) for text in grown))

    await asyncio.gather(*(grow(problem, 2) for problem in problems))


ORDER_SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "recipient_full_name": {"type": "string", "pattern": "^[A-Z][a-z]{2,10} [A-Z][a-z]{2,10}$"},
        "purchase_order_number": {"type": "string", "pattern": "^PO-[0-9]{6}$"},
        "fulfilment_state": {"enum": ["received", "packed", "shipped", "returned"]},
        "quantity_of_articles": {"type": "integer", "minimum": 1, "maximum": 99},
        "is_gift_wrapped": {"type": "boolean"},
        "preferred_delivery": {"enum": ["economy", "express", "same-day"]},
    },
    "required": [
        "recipient_full_name",
        "purchase_order_number",
        "fulfilment_state",
        "quantity_of_articles",
        "is_gift_wrapped",
        "preferred_delivery",
    ],
    "additionalProperties": False,
}


async def json_schema(client: Client, rng: random.Random) -> None:
    """64 letters, 32 at once, each to be made an object of six fields with long fixed keys."""
    letters = [f"Give me this order as a JSON object. {prose(rng, 90)}" for _ in range(64)]
    await at_most(32, [partial(client.extract, text, ORDER_SCHEMA, 160) for text in letters])


async def chat(client: Client, rng: random.Random) -> None:
    """16 conversations of four turns behind one system message, 48 tokens a turn."""
    system = {"role": "system", "content": f"You answer with care. {prose(rng, 80)}"}
    questions = [[prose(rng, 40) for _ in range(4)] for _ in range(16)]

    async def talk(turns: list[str]) -> None:
        messages = [system]
        for turn in turns:
            messages.append({"role": "user", "content": turn})
            reply = await client.chat(messages, 48)
            messages.append({"role": "assistant", "content": reply})

    await asyncio.gather(*map(talk, questions))


async def tool_use(client: Client, rng: random.Random) -> None:
    """24 agents with the same 14 tools, 16 at once; three times 24 tokens and what a tool says."""
    names = rng.sample(VOCABULARY, 14)
    tools = "".join(f"- {name}(text): {prose(rng, 25)}\n" for name in names)
    goals = [
        (f"You may use:\n{tools}Goal: {prose(rng, 30)}\n", [prose(rng, 40) for _ in range(3)])
        for _ in range(24)
    ]

    async def act(start: str, results: list[str]) -> None:
        text = start
        for number, result in enumerate(results):
            text += f"Action {number}:"
            text += f"{await client.complete(text, 24)}\nResult: {result}\n"

    await at_most(16, [partial(act, *goal) for goal in goals])


async def unique(client: Client, rng: random.Random) -> None:
    """48 prompts that share nothing, 32 at once, 48 tokens each."""
    prompts = [prose(rng, 180) for _ in range(48)]
    await at_most(32, [partial(_complete, client, prompt, 48) for prompt in prompts])


async def warm_up(client: Client, rng: random.Random) -> None:
    """A little of everything, so that no first use of anything is measured."""
    prompts = [prose(rng, 250) for _ in range(8)]
    await at_most(8, [partial(_complete, client, prompt, 8) for prompt in prompts])
    await client.chat([{"role": "user", "content": prose(rng, 20)}], 8)


async def _complete(client: Client, prompt: str, tokens: int) -> None:
    await client.complete(prompt, tokens)


WORKLOADS = {
    workload.name: workload
    for workload in (
        Workload("fewshot", "few-shot", "tokens_per_s", 2.0, few_shot),
        Workload("tot", "tree of thought", "tokens_per_s", 2.0, tree_of_thought),
        Workload("json", "JSON", "requests_per_s", 3.0, json_schema),
        Workload("chat", "chat", "tokens_per_s", 2.0, chat),
        Workload("tool", "tool use", "tokens_per_s", 2.0, tool_use),
        Workload("unique", "unique prompts", "tokens_per_s", 2.0, unique),
    )
}
