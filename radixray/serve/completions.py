"""``POST /v1/completions``."""

from __future__ import annotations

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from radixray.actors.transport import Transport
from radixray.errors import InvalidRequestError
from radixray.protocol import Delta
from radixray.serve.admission import admit
from radixray.serve.answer import answer
from radixray.serve.connection import Connection
from radixray.serve.job import Job, check_model, make_job
from radixray.serve.logprobs import CompletionLogprobs, CompletionLogprobWriter, joined
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
from radixray.tokenizer.tokenizer import Tokenizer

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
        logprobs=body.logprobs,
        prompt_logprobs=body.echo and body.logprobs is not None,
    )
    echoes = _echoes(body, job, transport.tokenizer) if body.echo else None
    shape = CompletionShape(job, transport.tokenizer, echoes)
    return await answer(request, admit(request, transport, job.requests), job, shape)


class CompletionShape:
    """Text completions; a chunk has the same shape as the whole.

    Args:
        job: what is answered.
        tokenizer: of the model.
        echoes: for each choice the prompt's text, where the answer is to begin with it.
    """

    def __init__(self, job: Job, tokenizer: Tokenizer, echoes: list[str] | None) -> None:
        self._job = job
        self._echoes = echoes
        self._writers = [
            CompletionLogprobWriter(tokenizer, echoes[i] if echoes else "")
            for i in range(len(job.requests))
        ]

    def whole(self, outputs: list[Delta], usage: UsageBody) -> CompletionResponse:
        choices = [self._choice(i, output, first=True) for i, output in enumerate(outputs)]
        return self._response(choices, usage)

    def pieces(self, index: int, delta: Delta, *, first: bool) -> list[msgspec.Struct]:
        choice = self._choice(index, delta, first=first)
        if not (
            first or choice.text or choice.logprobs or choice.token_ids or choice.finish_reason
        ):
            return []
        return [self._response([choice], self._job.chunk_usage)]

    def _choice(self, index: int, delta: Delta, *, first: bool) -> CompletionChoice:
        text = self._echoes[index] + delta.text if first and self._echoes else delta.text
        return CompletionChoice(
            index,
            text,
            delta.finish_reason,
            self._logprobs(index, delta),
            grammar=worth_telling(delta.grammar),
            token_ids=self._job.shown_ids(delta.token_ids),
            prompt_token_ids=self._job.shown_ids(self._job.requests[index].prompt_ids)
            if first
            else msgspec.UNSET,
        )

    def _logprobs(self, index: int, delta: Delta) -> CompletionLogprobs | None:
        writer = self._writers[index]
        echoed = None
        if delta.prompt_logprobs is not None:
            echoed = writer.echo(self._job.requests[index].prompt_ids, delta.prompt_logprobs)
        if delta.logprobs is None:
            return echoed
        output = writer.output(delta.logprobs)
        return output if echoed is None else joined(echoed, output)

    def usage(self, usage: UsageBody) -> CompletionResponse:
        return self._response([], usage)

    def _response(self, choices: list[CompletionChoice], usage: MaybeUsage) -> CompletionResponse:
        job = self._job
        return CompletionResponse(job.id, job.created, job.model, choices, usage)


def _echoes(body: CompletionBody, job: Job, tokenizer: Tokenizer) -> list[str]:
    # A prompt that came as text is echoed as it came, special tokens and all.
    given = [body.prompt] if isinstance(body.prompt, str) else body.prompt
    return [
        text if isinstance(text, str) else tokenizer.decode(request.prompt_ids)
        for i, request in enumerate(job.requests)
        for text in (given[i // job.n],)
    ]


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
