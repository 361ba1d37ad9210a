"""Over HTTP, with the `openai` client: model actors are killed while they answer, and no answer
changes."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import AsyncGenerator, Generator
from pathlib import Path
from typing import Any

import openai
import pytest
from real_server import API_KEY, START_WITHIN_S, Server, start_server, stop

MODEL = "smollm2-135m"
ORDER = {
    "type": "object",
    "properties": {
        "item": {"type": "string", "maxLength": 40},
        "reasons": {
            "type": "array",
            "minItems": 3,
            "maxItems": 3,
            "items": {"type": "string", "maxLength": 40},
        },
    },
    "required": ["item", "reasons"],
    "additionalProperties": False,
}

pytestmark = pytest.mark.timeout(START_WITHIN_S + 120)


@pytest.fixture(scope="module")
def server() -> Generator[Server, None, None]:
    server = start_server("--model-actors", "2", "--cpu-threads", "1")
    yield server
    stop(server.process)


@pytest.fixture
async def client(server: Server) -> AsyncGenerator[openai.AsyncOpenAI, None]:
    async with openai.AsyncOpenAI(
        base_url=f"{server.url}/v1", api_key=API_KEY, max_retries=0, timeout=100
    ) as client:
        yield client


def model_actors(server: Server) -> list[int]:
    """Process ids; Ray names its processes after what runs in them."""
    parents, found = {}, []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            parents[int(folder.name)] = int(
                (folder / "stat").read_text().rpartition(")")[2].split()[1]
            )
            if (folder / "cmdline").read_text().startswith("ray::ModelActor"):
                found.append(int(folder.name))
        except OSError:  # it ended meanwhile
            continue

    def is_ours(pid: int) -> bool:
        while pid > 1 and pid != server.process.pid:
            pid = parents.get(pid, 0)
        return pid == server.process.pid

    return [pid for pid in found if is_ours(pid)]


def ask(word: str, **settings: Any) -> dict[str, Any]:
    content = f"Tell me about {word} in a few sentences."
    return {"model": MODEL, "messages": [{"role": "user", "content": content}]} | settings


QUESTIONS = [
    ask("rivers", temperature=0, max_tokens=150),
    ask("rivers", seed=4, max_tokens=120, logprobs=True, top_logprobs=2),
    ask("bread", seed=5, n=3, max_tokens=100),
    ask("bread", seed=6, max_tokens=200, stop=["and then everything", "of the most important "]),
    ask(
        "an order",
        seed=7,
        max_tokens=220,
        response_format={
            "type": "json_schema",
            "json_schema": {"name": "order", "schema": ORDER, "strict": True},
        },
    ),
    ask(
        "an order",
        seed=8,
        max_tokens=220,
        tools=[{"type": "function", "function": {"name": "order", "parameters": ORDER}}],
        tool_choice={"type": "function", "function": {"name": "order"}},
    ),
]


async def answer(client: openai.AsyncOpenAI, question: dict[str, Any], stream: bool) -> Any:
    """What was answered: of a stream, the pieces of each choice put together."""
    if not stream:
        choices = (await client.chat.completions.create(**question)).choices
        return [
            (c.finish_reason, c.message.content, _calls(c.message), _logprobs(c.logprobs))
            for c in choices
        ]
    texts: dict[int, list[str]] = {}
    ends: dict[int, Any] = {}
    async for chunk in await client.chat.completions.create(**question, stream=True):
        for choice in chunk.choices:
            delta = choice.delta
            calls = [call.function.arguments for call in delta.tool_calls or [] if call.function]
            texts.setdefault(choice.index, []).extend([delta.content or "", *filter(None, calls)])
            ends[choice.index] = choice.finish_reason or ends.get(choice.index)
    return {index: ("".join(parts), ends[index]) for index, parts in texts.items()}


def _calls(message: Any) -> list[str]:
    return [call.function.arguments for call in message.tool_calls or []]


def _logprobs(found: Any) -> Any:
    return found and [item.model_dump() for item in found.content]


@pytest.mark.parametrize("stream", [True, False])
async def test_answers_outlive_model_actors(
    server: Server, client: openai.AsyncOpenAI, stream: bool
) -> None:
    wanted = await asyncio.gather(*(answer(client, q, stream) for q in QUESTIONS))
    answers = asyncio.gather(*(answer(client, q, stream) for q in QUESTIONS))
    await asyncio.sleep(1.0)
    victims = model_actors(server)
    assert len(victims) == 2
    os.kill(victims[0], signal.SIGKILL)
    await asyncio.sleep(1.0)
    assert not answers.done()
    os.kill(victims[1], signal.SIGKILL)  # now there is none, until one is started again
    for got, want in zip(await answers, wanted, strict=True):
        assert got == want
    if not stream:
        json.loads(wanted[4][0][1])
    async with asyncio.timeout(60):
        while len(model_actors(server)) < 2:
            await asyncio.sleep(0.2)
