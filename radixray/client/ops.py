"""The operations that ask the engine to compute a prompt and go on from it."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from contextlib import aclosing
from dataclasses import replace

from radixray.actors.transport import Transport
from radixray.client.chat import Transcript
from radixray.client.op_queue import OpQueue
from radixray.client.parameters import ResolvedParameters, sample_parameters
from radixray.client.results import Gen
from radixray.client.together import together
from radixray.errors import AbortedError, EngineError, GrammarError
from radixray.protocol import (
    Delta,
    GenerateRequest,
    SamplingParams,
    TokenLogprob,
    Usage,
)


async def generate(
    transport: Transport,
    transcript: Transcript,
    queue: OpQueue,
    params: ResolvedParameters,
    on_text: Callable[[str], None] | None,
) -> Gen:
    """Continues the transcript; raises the transport's typed errors."""
    prompt_ids = transcript.prompt_ids()
    request = GenerateRequest(
        request_id=new_request(queue),
        prompt_ids=prompt_ids,
        sampling=params.sampling,
        constraint=params.constraint,
        **params.request,
    )
    reading = params.reading
    trimmed = reading is not None and reading.ends != ""
    # What may yet be trimmed is shown when it is known.
    output = await _collect(transport, request, None if trimmed else on_text)
    # The token that ended the output is no part of it; a constraint may end it without one.
    ends = {*transport.info.eos_token_ids, *params.sampling.stop_token_ids}
    ids = output.token_ids
    cut = isinstance(output.stop_reason, str)
    if output.finish_reason == "stop" and not cut and ids and ids[-1] in ends:
        ids = ids[:-1]
    if reading is None:
        transcript.add_output(prompt_ids, ids, output.text, cut=cut)
        return output
    text = reading.trim(output.text)
    transcript.add_output(prompt_ids, ids, text, cut=cut or text != output.text)
    output = replace(output, text=text, value=reading.read(text))
    if trimmed and on_text is not None:
        on_text(text)
    return output


async def samples(
    transport: Transport,
    transcript: Transcript,
    queue: OpQueue,
    params: ResolvedParameters,
    on_text: Callable[[str], None] | None,
) -> list[Gen]:
    """`n` independent continuations; the transcript goes on with the first, which is shown.

    Raises the transport's typed errors; the first failure aborts the other samples.
    """
    first, *others = sample_parameters(params)
    copies = [transcript.copy() for _ in others]
    return await together(
        [
            generate(transport, transcript, queue, first, on_text),
            *(
                generate(transport, copy, queue, other, None)
                for copy, other in zip(copies, others, strict=True)
            ),
        ]
    )


async def commit(
    transport: Transport, transcript: Transcript, queue: OpQueue, cache_salt: str
) -> Usage:
    """Has the engine compute and keep the transcript's tokens, as far as they are final."""
    ids = transcript.content.stable_ids()
    if not ids:
        return Usage()
    request = GenerateRequest(
        request_id=new_request(queue),
        prompt_ids=ids,
        sampling=SamplingParams(max_tokens=0),
        cache_salt=cache_salt,
    )
    return (await _collect(transport, request, None)).usage


async def _collect(
    transport: Transport, request: GenerateRequest, on_text: Callable[[str], None] | None
) -> Gen:
    request.validate(transport.info)
    token_ids: list[int] = []
    texts: list[str] = []
    usage = Usage()
    logprobs: list[TokenLogprob] = []
    prompt_logprobs: list[TokenLogprob] | None = None
    last: Delta | None = None
    # Leaving early, by failure or cancellation, must close the stream: that aborts the request.
    async with aclosing(transport.generate(request)) as deltas:
        async for delta in deltas:
            last = delta
            token_ids += delta.token_ids
            usage = delta.usage or usage
            logprobs += delta.logprobs or []
            prompt_logprobs = delta.prompt_logprobs or prompt_logprobs
            if delta.text:
                texts.append(delta.text)
                if on_text is not None:
                    on_text(delta.text)
    if last is None or last.finish_reason is None:
        raise EngineError("the output ended without a finish reason")
    if last.finish_reason == "abort":
        raise AbortedError("the request was aborted")
    if last.finish_reason == "grammar_error" and last.grammar is not None:
        raise GrammarError(last.grammar.error, text="".join(texts))
    return Gen(
        text="".join(texts),
        token_ids=token_ids,
        finish_reason=last.finish_reason,
        stop_reason=last.stop_reason,
        usage=usage,
        request_id=request.request_id,
        logprobs=None if request.sampling.logprobs is None else logprobs,
        prompt_logprobs=prompt_logprobs,
        grammar=last.grammar,
    )


def new_request(queue: OpQueue) -> str:
    """The id of a new request, which an error of the running operation will name."""
    queue.request_id = uuid.uuid4().hex
    return queue.request_id
