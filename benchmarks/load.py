"""A client that puts load on an OpenAI-compatible server and keeps count of what it answers."""

from __future__ import annotations

import asyncio
import itertools
import json
import math
import statistics
import time
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import aiohttp
from jsonschema import Draft202012Validator, ValidationError

TIMEOUT_S = 1800.0


@dataclass
class Tally:
    """What a workload's requests came to.

    Attributes:
        bad: answers that are not what was asked for, by what is wrong with them.
        refused: the server does not know a parameter that the load needs.
    """

    seconds: float = 0.0
    latencies: list[float] = field(default_factory=list)
    prompt_tokens: int = 0
    cached_tokens: int = 0
    generated_tokens: int = 0
    bad: Counter[str] = field(default_factory=Counter)
    refused: bool = False

    def numbers(self) -> dict[str, Any]:
        """The tally as plain numbers."""
        ordered = sorted(self.latencies) or [math.nan]
        return {
            "seconds": self.seconds,
            "requests": len(self.latencies),
            "tokens_per_s": self.generated_tokens / self.seconds,
            "requests_per_s": len(self.latencies) / self.seconds,
            "p50": statistics.median(ordered),
            "p99": ordered[math.ceil(0.99 * len(ordered)) - 1],
            "prompt_tokens": self.prompt_tokens,
            "cached_tokens": self.cached_tokens,
            "generated_tokens": self.generated_tokens,
            "bad": dict(self.bad),
        }


class Client:
    """Sends greedy requests to one model of one server.

    Args:
        salt: if given, every request is made a stranger to all others: it gets a `cache_salt` of
            its own that begins with this.
    """

    def __init__(
        self, session: aiohttp.ClientSession, url: str, model: str, salt: str | None = None
    ) -> None:
        self._session = session
        self._url = url
        self._model = model
        self._salt = salt
        self._numbers = itertools.count()
        self.tally = Tally()

    async def complete(self, prompt: str, tokens: int) -> str:
        """Exactly `tokens` tokens after `prompt`; "" when there is no answer."""
        body = {"prompt": prompt, "max_tokens": tokens, "ignore_eos": True}
        answer = await self._post("completions", body)
        return "" if answer is None else self._exact(answer, tokens)["text"]

    async def chat(self, messages: list[dict[str, str]], tokens: int) -> str:
        """The assistant's next message, of exactly `tokens` tokens; "" when there is none."""
        body = {"messages": messages, "max_tokens": tokens, "ignore_eos": True}
        answer = await self._post("chat/completions", body)
        return "" if answer is None else self._exact(answer, tokens)["message"]["content"]

    async def extract(self, text: str, schema: dict[str, Any], max_tokens: int) -> None:
        """Asks for JSON that `schema` allows, and checks it."""
        format_ = {"name": "extract", "schema": schema, "strict": True}
        body = {
            "messages": [{"role": "user", "content": text}],
            "max_tokens": max_tokens,
            "response_format": {"type": "json_schema", "json_schema": format_},
        }
        answer = await self._post("chat/completions", body)
        if answer is not None:
            try:
                content = json.loads(answer["choices"][0]["message"]["content"])
                Draft202012Validator(schema).validate(content)
            except (ValueError, ValidationError) as error:
                self.tally.bad[type(error).__name__] += 1

    async def _post(self, route: str, body: dict[str, Any]) -> dict[str, Any] | None:
        """The answer, counted; None if its status is not 200."""
        body |= {"model": self._model, "temperature": 0}
        if self._salt is not None:
            body["cache_salt"] = f"{self._salt}/{next(self._numbers)}"
        started = time.perf_counter()
        async with self._session.post(f"{self._url}/v1/{route}", json=body) as response:
            answer = await response.json(content_type=None)
        self.tally.latencies.append(time.perf_counter() - started)
        if response.status == 200:
            self._count(answer["usage"])
            return answer
        error = answer.get("error") or {}
        if error.get("param") == "response_format":
            self.tally.refused = True
        self.tally.bad[f"status {response.status}"] += 1
        return None

    def _count(self, usage: dict[str, Any]) -> None:
        details = usage.get("prompt_tokens_details") or {}
        self.tally.prompt_tokens += usage["prompt_tokens"]
        self.tally.cached_tokens += details.get("cached_tokens") or 0
        self.tally.generated_tokens += usage["completion_tokens"]

    def _exact(self, answer: dict[str, Any], tokens: int) -> dict[str, Any]:
        """The answer's only choice; counted as bad when it has another number of tokens."""
        if answer["usage"]["completion_tokens"] != tokens:
            self.tally.bad["token count"] += 1
        return answer["choices"][0]


@asynccontextmanager
async def client_of(url: str, model: str, salt: str | None = None) -> AsyncGenerator[Client, None]:
    """A Client with connections of its own."""
    async with aiohttp.ClientSession(
        timeout=aiohttp.ClientTimeout(total=TIMEOUT_S),
        connector=aiohttp.TCPConnector(limit=0),  # a workload limits itself
    ) as session:
        yield Client(session, url, model, salt)


async def at_most(limit: int, works: Iterable[Callable[[], Awaitable[None]]]) -> None:
    """Runs all `works`, `limit` of them at once, each begun as soon as another ends."""
    waiting = iter(works)

    async def worker() -> None:
        for work in waiting:
            await work()

    async with asyncio.TaskGroup() as group:
        for _ in range(limit):
            group.create_task(worker())
