"""``POST /generate``, as SGLang answers it."""

from __future__ import annotations

import secrets
import time
import uuid
from collections.abc import Sequence
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from radixray.actors.transport import Transport
from radixray.checks import check_int
from radixray.errors import ContextLengthError, InvalidRequestError
from radixray.protocol import (
    MAX_LOGPROBS,
    MAX_SEED,
    Delta,
    GenerateRequest,
    Handle,
    SamplingParams,
    TokenLogprob,
    Usage,
    join_deltas,
)
from radixray.serve.admission import admit
from radixray.serve.answer import answer
from radixray.serve.connection import Connection
from radixray.serve.constraints import ConstrainedBody, constraint_of
from radixray.serve.generation import named_as_in
from radixray.serve.job import Job, shifted_seed
from radixray.serve.live_requests import ABORTED, AbortableTransport
from radixray.serve.logprobs import MIN_LOGPROB
from radixray.serve.openai_protocol import MAX_N, MAX_SEQUENCES, UsageBody
from radixray.serve.parse import parse, read_body
from radixray.serve.sglang_protocol import (
    MetaInfo,
    NativeAnswer,
    NativeBody,
    NativeSampling,
    Scored,
)
from radixray.serve.tokenize import encode


async def native_generate(request: Request) -> Response:
    """Continue each prompt `n` times."""
    body = parse(await read_body(request), NativeBody, nested="sampling_params")
    connection: Connection = request.app.state.connection
    transport = await connection.transport()
    job = await _job(body, transport, request.state.tenant.name)
    admitted = admit(request, transport, job.requests)
    abortable = AbortableTransport(admitted, request.app.state.live)
    return await answer(request, abortable, job, NativeShape(body, job, transport))


class NativeShape:
    """Answers; those of a stream hold all there is so far."""

    def __init__(self, body: NativeBody, job: Job, transport: Transport) -> None:
        self._body = body
        self._tokenizer = transport.tokenizer
        self._requests = job.requests
        prompts = body.text if body.text is not None else body.input_ids
        first = prompts[0] if isinstance(prompts, list) and prompts else None
        # A list of texts, or of lists of ids; a list of ids is one prompt.
        self._many = job.n > 1 or isinstance(first, list | str)
        self._so_far: dict[int, Delta] = {}

    def whole(self, outputs: list[Delta], usage: UsageBody) -> list[NativeAnswer] | NativeAnswer:
        answers = [self._answer(i, output) for i, output in enumerate(outputs)]
        return answers if self._many else answers[0]

    def pieces(self, index: int, delta: Delta, *, first: bool) -> list[msgspec.Struct]:
        if not first:
            before = self._so_far[index]
            delta = join_deltas([before, delta])
            delta.prompt_logprobs = before.prompt_logprobs or delta.prompt_logprobs
        self._so_far[index] = delta
        answer = self._answer(index, delta)
        if self._many:
            answer.index = index
        return [answer]

    def usage(self, usage: UsageBody) -> msgspec.Struct:
        raise AssertionError("every answer has its own")

    def _answer(self, index: int, output: Delta) -> NativeAnswer:
        request, usage = self._requests[index], output.usage or Usage()
        meta = MetaInfo(
            request.handle.rid if request.handle else request.request_id,
            _finish_reason(output),
            len(request.prompt_ids),
            len(output.token_ids),
            usage.cached,
        )
        if self._body.return_logprob:
            self._add_logprobs(meta, request.prompt_ids, output)
        return NativeAnswer(output.text, output.token_ids, meta)

    def _add_logprobs(self, meta: MetaInfo, prompt_ids: list[int], output: Delta) -> None:
        made = output.logprobs or []
        meta.output_token_logprobs = [self._scored(each.token_id, each.logprob) for each in made]
        start = self._body.score_from
        first = prompt_ids[:1] if start == 0 else []
        given = (output.prompt_logprobs or []) if start >= 0 else []
        meta.input_token_logprobs = [self._scored(token, None) for token in first]
        meta.input_token_logprobs += [self._scored(each.token_id, each.logprob) for each in given]
        if self._body.top_logprobs_num:
            meta.output_top_logprobs = self._tops(made)
            meta.input_top_logprobs = [*(None for _ in first), *self._tops(given)]

    def _tops(self, scored: Sequence[TokenLogprob]) -> list[list[Scored] | None]:
        return [[self._scored(token, logprob) for token, logprob in each.top] for each in scored]

    def _scored(self, token_id: int, logprob: float | None) -> Scored:
        text = None
        if self._body.return_text_in_logprobs:
            text = self._tokenizer.spelling(token_id).decode(errors="replace")
        return None if logprob is None else max(logprob, MIN_LOGPROB), token_id, text


def _finish_reason(output: Delta) -> dict[str, str | int] | None:
    if output.finish_reason is None:
        return None
    if output.finish_reason == "length":
        return {"type": "length", "length": len(output.token_ids)}
    if output.finish_reason == ABORTED:
        return {"type": "abort", "message": "aborted by request"}
    if output.stop_reason is None:
        return {"type": output.finish_reason}
    return {"type": output.finish_reason, "matched": output.stop_reason}


async def _job(body: NativeBody, transport: Transport, owner: str) -> Job:
    given, info = body.sampling_params, transport.info
    if not 1 <= given.n <= MAX_N:
        raise InvalidRequestError(
            f"sampling_params.n must be from 1 to {MAX_N}, not {given.n}", param="sampling_params.n"
        )
    if not given.skip_special_tokens:
        param = "sampling_params.skip_special_tokens"
        raise InvalidRequestError(f"{param} must be true: text has no special tokens", param=param)
    prompts = await _prompts(body, transport)
    prompt_param = "text" if body.text is not None else "input_ids"
    if not 1 <= len(prompts) * given.n <= MAX_SEQUENCES:
        raise InvalidRequestError(
            f"{prompt_param} asks for {len(prompts) * given.n} sequences; it must be from 1 to "
            f"{MAX_SEQUENCES}",
            param=prompt_param,
        )
    check_int("top_logprobs_num", body.top_logprobs_num, 0, MAX_LOGPROBS)
    # It is not looked at where nobody asks for log-probabilities.
    end = min(map(len, prompts)) if body.return_logprob else None
    check_int("logprob_start_len", body.score_from, -1, end)
    rids = _rids(body, len(prompts) * given.n)
    names = {each: f"sampling_params.{each}" for each in ("regex", "json_schema", "ebnf")}
    with named_as_in(names):
        constraint, _ = constraint_of(
            ConstrainedBody(regex=given.regex, json_schema=given.json_schema, ebnf=given.ebnf)
        )
    names |= {each: f"sampling_params.{each}" for each in _SAME_NAMES}
    names |= {"max_tokens": "sampling_params.max_new_tokens", "prompt": prompt_param}
    names |= {"min_tokens": "sampling_params.min_new_tokens"}
    names |= {"seed": "sampling_params.sampling_seed", "logprobs": "top_logprobs_num"}
    job_id = f"gen-{uuid.uuid4().hex}"
    requests: list[GenerateRequest] = []
    for prompt_ids in prompts:
        seed = secrets.randbelow(MAX_SEED) if given.sampling_seed is None else given.sampling_seed
        for i in range(given.n):
            request_id = f"{job_id}-{len(requests)}"
            with named_as_in(names):
                sequence = GenerateRequest(
                    request_id=request_id,
                    prompt_ids=prompt_ids,
                    sampling=_sampling(body, given, shifted_seed(seed, i)),
                    constraint=constraint,
                    priority=body.priority,
                    whole=not body.stream,
                    handle=Handle(owner, rids[len(requests)] if rids else request_id),
                )
                sequence.validate(info)
            requests.append(sequence)
    return Job(
        id=job_id,
        created=int(time.time()),
        model=info.name,
        n=given.n,
        requests=requests,
        stream=body.stream,
        include_usage=False,
        names=names,
    )


_SAME_NAMES = (
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "frequency_penalty",
    "presence_penalty",
    "repetition_penalty",
    "logit_bias",
    "stop",
    "stop_regex",
    "stop_token_ids",
    "ignore_eos",
)


def _sampling(body: NativeBody, given: NativeSampling, seed: int) -> SamplingParams:
    start = body.score_from
    wants_prompt = body.return_logprob and start >= 0
    return SamplingParams(
        max_tokens=given.max_new_tokens,
        min_tokens=given.min_new_tokens,
        seed=seed,
        logprobs=body.top_logprobs_num if body.return_logprob else None,
        # SGLang tells of the very first token, too, which nothing scores.
        prompt_logprobs_from=max(1, start) if wants_prompt else None,
        **{name: _several(getattr(given, name)) for name in _SAME_NAMES},
    )


def _several(given: Any) -> Any:
    """One string is a list of it."""
    return (given,) if isinstance(given, str) else given


async def _prompts(body: NativeBody, transport: Transport) -> list[list[int]]:
    if (body.text is None) == (body.input_ids is None):
        raise InvalidRequestError("give one of text and input_ids", param="text")
    if body.text is not None:
        texts = [body.text] if isinstance(body.text, str) else body.text
        try:
            return [await encode(transport, text, add_special_tokens=True) for text in texts]
        except ContextLengthError as error:
            error.param = "text"
            raise
    ids = body.input_ids or []
    lists = [item for item in ids if isinstance(item, list)]
    numbers = [item for item in ids if isinstance(item, int)]
    if lists and numbers:
        raise InvalidRequestError(
            "input_ids must be a list of ids, or a list of such lists", param="input_ids"
        )
    return lists or [numbers]


def _rids(body: NativeBody, count: int) -> list[str] | None:
    if body.rid is None:
        return None
    if isinstance(body.rid, str):
        return [body.rid] if count == 1 else [f"{body.rid}_{i}" for i in range(count)]
    if len(body.rid) != count:
        raise InvalidRequestError(f"rid must hold {count} ids, not {len(body.rid)}", param="rid")
    return body.rid
