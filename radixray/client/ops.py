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
from radixray.client.reasoning import ReasoningSplitter, split
from radixray.client.results import Gen
from radixray.client.text_feed import TextFeed
from radixray.client.together import together
from radixray.errors import AbortedError, EngineError, GrammarError
from radixray.protocol import (
    Delta,
    GenerateRequest,
    SamplingParams,
    TokenLogprob,
    Usage,
)
from radixray.tokenizer.tokenizer import Tokenizer


async def generate(
    transport: Transport,
    transcript: Transcript,
    queue: OpQueue,
    params: ResolvedParameters,
    feed: TextFeed | None,
) -> Gen:
    """Continues the transcript; raises the transport's typed errors.

    Where reasoning is told apart, the transcript goes on with the answer alone.
    """
    prompt_ids = transcript.prompt_ids()
    prompt = transcript.content.text
    request = GenerateRequest(
        request_id=new_request(queue),
        prompt_ids=prompt_ids,
        sampling=params.sampling,
        constraint=params.constraint,
        **params.request,
        **transcript.request_images(),
    )
    reading = params.reading
    if feed is not None and params.reasoning is not None:
        feed.split_by(ReasoningSplitter(params.reasoning, prompt))
    # What may yet be trimmed is shown when it is known.
    trimmed = reading is not None and reading.ends != ""
    output = await _collect(transport, request, None if trimmed or feed is None else feed.push)
    cut = isinstance(output.stop_reason, str)
    text, ids = output.text, output.token_ids
    if params.no_stop_trim and (stop := _stop_text(output, transport.tokenizer)):
        text += stop
    else:
        # The token that ended the output is no part of it; a constraint may end it without one.
        ends = {*transport.info.eos_token_ids, *params.sampling.stop_token_ids}
        if output.finish_reason == "stop" and not cut and ids and ids[-1] in ends:
            ids = ids[:-1]
        if reading is not None:
            text = reading.trim(text)
            cut = cut or text != output.text
    if feed is not None:
        feed.finish(text)
    reasoning, answer = None, text
    if params.reasoning is not None:
        reasoning, answer = split(text, params.reasoning, prompt)
    skip = len(text) - len(answer)
    transcript.add_output(prompt_ids, ids, text, cut=cut, skip=skip)
    if reading is None:
        value = answer
    else:
        value = reading.read(text, cut_off=output.finish_reason == "length")
    return replace(output, text=answer, reasoning=reasoning, value=value)


async def samples(
    transport: Transport,
    transcript: Transcript,
    queue: OpQueue,
    params: ResolvedParameters,
    feed: TextFeed | None,
) -> list[Gen]:
    """`n` independent continuations; the transcript goes on with the first, which is shown.

    Raises the transport's typed errors; the first failure aborts the other samples.
    """
    first, *others = sample_parameters(params)
    copies = [transcript.copy() for _ in others]
    return await together(
        [
            generate(transport, transcript, queue, first, feed),
            *(
                generate(transport, copy, queue, other, None)
                for copy, other in zip(copies, others, strict=True)
            ),
        ]
    )


async def commit(
    transport: Transport,
    transcript: Transcript,
    queue: OpQueue,
    cache_salt: str,
    timeout_s: float | None,
    announce: Callable[[list[int], str], None],
) -> Usage:
    """Has the engine compute and keep the transcript's tokens, as far as they are final.

    `announce` is called with them and the cache salt before.
    """
    ids = transcript.content.stable_ids()
    if not ids:
        return Usage()
    if not transcript.num_images:  # which separate KV that the tokens do not
        announce(ids, cache_salt)
    request = GenerateRequest(
        request_id=new_request(queue),
        prompt_ids=ids,
        sampling=SamplingParams(max_tokens=0),
        cache_salt=cache_salt,
        timeout_s=timeout_s,
        **transcript.request_images(),
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


def _stop_text(output: Gen, tokenizer: Tokenizer) -> str:
    """How what ended the output reads; special tokens have no text."""
    if isinstance(output.stop_reason, int):
        return tokenizer.token_bytes[output.stop_reason].decode(errors="replace")
    return output.stop_reason or ""


def new_request(queue: OpQueue) -> str:
    """The id of a new request, which an error of the running operation will name."""
    queue.request_id = uuid.uuid4().hex
    return queue.request_id
