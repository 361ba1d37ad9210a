"""``POST /v1/completions``."""

from __future__ import annotations

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from radixray.actors.transport import Transport
from radixray.errors import InvalidRequestError
from radixray.protocol import Completion, Delta
from radixray.serve.answer import answer
from radixray.serve.connection import Connection
from radixray.serve.job import Job, check_model, make_job
from radixray.serve.openai_protocol import (
    CompletionBody,
    CompletionChoice,
    CompletionResponse,
    MaybeUsage,
    UsageBody,
    worth_telling,
)
from radixray.serve.parse import parse, read_body
from radixray.serve.tokenize import encode

DEFAULT_MAX_TOKENS = 16
"""OpenAI's, for this route only."""


async def create_completion(request: Request) -> Response:
    """Continue each prompt `n` times."""
    body = parse(await read_body(request), CompletionBody)
    connection: Connection = request.app.state.connection
    transport = await connection.transport()
    check_model(body.model, transport.info)
    job = make_job(
        body,
        await _prompts(body, transport),
        transport.info,
        prefix="cmpl",
        prompt_param="prompt",
        default_max_tokens=DEFAULT_MAX_TOKENS,
    )
    return await answer(request, transport, job, CompletionShape(job))


class CompletionShape:
    """Text completions; a chunk has the same shape as the whole."""

    def __init__(self, job: Job) -> None:
        self._job = job

    def whole(self, completions: list[Completion], usage: UsageBody) -> CompletionResponse:
        choices = [
            CompletionChoice(
                i,
                completion.text,
                completion.finish_reason,
                grammar=worth_telling(completion.grammar),
            )
            for i, completion in enumerate(completions)
        ]
        return self._response(choices, usage)

    def pieces(self, index: int, delta: Delta, *, first: bool) -> list[msgspec.Struct]:
        if not (first or delta.text or delta.finish_reason):
            return []
        choice = CompletionChoice(
            index, delta.text, delta.finish_reason, grammar=worth_telling(delta.grammar)
        )
        return [self._response([choice], self._job.chunk_usage)]

    def usage(self, usage: UsageBody) -> CompletionResponse:
        return self._response([], usage)

    def _response(self, choices: list[CompletionChoice], usage: MaybeUsage) -> CompletionResponse:
        job = self._job
        return CompletionResponse(job.id, job.created, job.model, choices, usage)


async def _prompts(body: CompletionBody, transport: Transport) -> list[list[int]]:
    prompt = body.prompt
    items = [prompt] if isinstance(prompt, str) else prompt
    texts = [item for item in items if isinstance(item, str)]
    ids = [item for item in items if isinstance(item, int)]
    lists = [item for item in items if isinstance(item, list)]
    if not items:
        raise InvalidRequestError("prompt must not be an empty list", param="prompt")
    if max(len(texts), len(ids), len(lists)) != len(items):
        raise InvalidRequestError(
            "prompt must be a text, a list of texts, a list of token ids, or a list of such "
            "lists; not a mixture",
            param="prompt",
        )
    if texts:
        return [await encode(transport, text, add_special_tokens=True) for text in texts]
    return [ids] if ids else lists
