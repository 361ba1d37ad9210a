"""An OpenAI-compatible endpoint whose model is a function of the text before it."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from typing import Any

from aiohttp import web

TOKEN = re.compile(r"\s?[^\s]+|\s")


class FakeOpenAI:
    """Writes `write(text so far)`, a word a token.

    Attributes:
        write: what the model says after a text: of ``completions`` the prompt; of ``chat`` what the
            last message, if it is the assistant's, begins with.
        bodies: all requests.
        live: requests under way.
        status, error: answer with these instead.
        hang: after the first token, wait.
        with_logprobs: give them where they are asked for.
    """

    def __init__(self) -> None:
        self.write: Callable[[str], str] = lambda text: " ok"
        self.bodies: list[dict[str, Any]] = []
        self.live = 0
        self.headers: dict[str, str] = {}
        self.status, self.error = 200, {}
        self.mid_error: dict[str, Any] | None = None
        self.cut_off = False
        self.hang = False
        self.with_logprobs = True
        self.scores: Callable[[str], list[tuple[str, float]]] = lambda text: []

    async def handle(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        self.bodies.append(
            {"path": request.path, "auth": request.headers.get("Authorization")} | body
        )
        self.live += 1
        try:
            if self.status != 200:
                return web.json_response(
                    {"error": self.error}, status=self.status, headers=self.headers
                )
            if body.get("echo"):
                return web.json_response(self.scored(body))
            return await self.stream(request, body)
        finally:
            self.live -= 1

    def scored(self, body: dict[str, Any]) -> dict[str, Any]:
        choices = []
        for index, prompt in enumerate(body["prompt"]):
            tokens = [*self.scores(prompt), (" more", -9.0)]
            offsets = [sum(len(t) for t, _ in tokens[:i]) for i in range(len(tokens))]
            values = [None, *(value for _, value in tokens[1:])]
            choices.append(
                {
                    "index": index,
                    "text": "",
                    "logprobs": {"text_offset": offsets, "token_logprobs": values},
                }
            )
        return {"choices": choices[::-1], "usage": {"prompt_tokens": 9, "completion_tokens": 2}}

    async def stream(self, request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        chat = "messages" in body
        if chat:
            last = body["messages"][-1] if body["messages"] else {"role": "user"}
            before = last["content"] if last["role"] == "assistant" else ""
        else:
            before = body["prompt"]
        tokens, reason = self.tokens(before, body)
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)

        async def send(event: Any) -> None:
            await response.write(f"data: {json.dumps(event)}\n\n".encode())

        for token in tokens:
            choice: dict[str, Any] = {"index": 0, "finish_reason": None}
            choice |= {"delta": {"content": token}} if chat else {"text": token}
            if self.with_logprobs and body.get("logprobs", False) is not False:
                content = {
                    "content": [{"token": token, "bytes": list(token.encode()), "logprob": -1}]
                }
                choice["logprobs"] = content if chat else {"tokens": [token]}
            await send({"choices": [choice]})
            if self.hang:
                await asyncio.sleep(30)
            if self.mid_error is not None:
                await send({"error": self.mid_error})
                return response
        if self.cut_off:
            return response
        end: dict[str, Any] = {"delta": {}} if chat else {"text": ""}
        await send({"choices": [{"index": 0, "finish_reason": reason, **end}]})
        usage = {
            "prompt_tokens": 5,
            "completion_tokens": len(tokens),
            "prompt_tokens_details": {"cached_tokens": 3},
        }
        await send({"choices": [], "usage": usage})
        await response.write(b": a comment\n\ndata: [DONE]\n\n")
        return response

    def tokens(self, before: str, body: dict[str, Any]) -> tuple[list[str], str]:
        made = TOKEN.findall(self.write(before))
        limit = body.get("max_tokens", body.get("max_completion_tokens", 16))
        stops = body.get("stop") or []
        text, kept = "", []
        for token in made[:limit]:
            text += token
            kept.append(token)
            found = [text.find(stop) for stop in stops if stop in text]
            if found:
                whole = text[: min(found)]
                return TOKEN.findall(whole), "stop"
        return kept, "stop" if len(made) < limit else "length"


@asynccontextmanager
async def fake_openai() -> AsyncGenerator[tuple[FakeOpenAI, str], None]:
    """The fake, and its base URL."""
    fake = FakeOpenAI()
    app = web.Application()
    app.router.add_post("/v1/chat/completions", fake.handle)
    app.router.add_post("/v1/completions", fake.handle)
    runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    assert site._server is not None
    port = site._server.sockets[0].getsockname()[1]  # type: ignore[attr-defined]
    try:
        yield fake, f"http://127.0.0.1:{port}/v1"
    finally:
        await runner.cleanup()
