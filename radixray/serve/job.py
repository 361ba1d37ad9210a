"""One HTTP request as the generations it asks for."""

from __future__ import annotations

import secrets
import time
import uuid
from dataclasses import dataclass

import msgspec

from radixray.errors import InvalidRequestError, ModelNotFoundError
from radixray.protocol import (
    MAX_SEED,
    GenerateRequest,
    ModelInfo,
    SamplingParams,
    Usage,
)
from radixray.serve.constraints import constraint_of
from radixray.serve.generation import named_as_in
from radixray.serve.openai_protocol import (
    MAX_N,
    MAX_SEQUENCES,
    Body,
    ChatBody,
    MaybeIds,
    MaybeUsage,
    PromptTokensDetails,
    UsageBody,
)
from radixray.serve.tools import ToolUse

_SAME_NAMES = (
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "frequency_penalty",
    "presence_penalty",
    "repetition_penalty",
    "logit_bias",
    "min_tokens",
    "stop_token_ids",
    "ignore_eos",
)
"""Sampling parameters that a body calls as the engine does."""


@dataclass(frozen=True, kw_only=True)
class Job:
    """The sequences of one HTTP request, prompt by prompt, `n` for each.

    Attributes:
        id: the answer's id; each sequence's request id begins with it.
        requests: what to run, in the order of the answer's choices.
        include_usage: whether a streamed answer ends with a chunk of usage.
        names: what the body calls the requests' fields, where it is not their own name.
        return_token_ids: give the ids of prompt and output beside their text.
    """

    id: str
    created: int
    model: str
    n: int
    requests: list[GenerateRequest]
    stream: bool
    include_usage: bool
    names: dict[str, str]
    return_token_ids: bool = False

    def shown_ids(self, ids: list[int]) -> MaybeIds:
        """`ids`, where they are asked for."""
        return ids if self.return_token_ids else msgspec.UNSET

    @property
    def chunk_usage(self) -> MaybeUsage:
        """The usage of a chunk that is not the last."""
        return None if self.include_usage else msgspec.UNSET

    def usage(self, usages: list[Usage]) -> UsageBody:
        """The sum of all sequences' usages; each prompt counts once, however large `n` is.

        Of a prompt's `n` sequences the one that found least in the cache counts: what it missed
        is what was computed, and its siblings found that.
        """
        prompts = [usages[i : i + self.n] for i in range(0, len(usages), self.n)]
        prompt = sum(group[0].prompt for group in prompts)
        completion = sum(usage.completion for usage in usages)
        cached = sum(min(usage.cached for usage in group) for group in prompts)
        return UsageBody(prompt, completion, prompt + completion, PromptTokensDetails(cached))


def check_model(name: str, info: ModelInfo) -> None:
    """Raises ModelNotFoundError if `name` is not the served model."""
    if name != info.name:
        raise ModelNotFoundError(
            f"the model {name!r} does not exist; this server has {info.name!r}", param="model"
        )


def make_job(
    body: Body,
    prompts: list[list[int]],
    info: ModelInfo,
    *,
    prefix: str,
    prompt_param: str,
    default_max_tokens: int | None,
    logprobs: int | None,
    prompt_logprobs: bool = False,
    tools: ToolUse | None = None,
) -> Job:
    """The Job that `body` asks for with `prompts`, checked; nothing is queued yet.

    Args:
        prefix: of the answer's id, e.g. ``cmpl``.
        prompt_param: the parameter that `prompts` came from, for errors.
        default_max_tokens: where the body gives none; None takes what the context leaves.
        logprobs: as in SamplingParams.
        prompt_logprobs: give the prompt's, too.
        tools: what the model may call, or must.

    Raises:
        InvalidRequestError: a value outside its limit; its `param` is the body's name for it.
        ContextLengthError: a prompt that does not fit.
    """
    if not 1 <= body.n <= MAX_N:
        raise InvalidRequestError(f"n must be from 1 to {MAX_N}, not {body.n}", param="n")
    if not 1 <= len(prompts) * body.n <= MAX_SEQUENCES:
        raise InvalidRequestError(
            f"{prompt_param} asks for {len(prompts) * body.n} sequences (prompts times n); "
            f"it must be from 1 to {MAX_SEQUENCES}",
            param=prompt_param,
        )
    if body.stream_options is not None and not body.stream:
        raise InvalidRequestError(
            "stream_options is only allowed when stream is true", param="stream_options"
        )
    job_id = f"{prefix}-{uuid.uuid4().hex}"
    sampling = msgspec.structs.replace(
        _sampling(body, default_max_tokens),
        logprobs=logprobs,
        prompt_logprobs_from=1 if prompt_logprobs else None,
    )
    constraint, names = constraint_of(body)
    if tools is not None:
        if constraint is not None:
            given = next(iter(names.values()))
            raise InvalidRequestError(
                f"{given} cannot be combined with tools, unless tool_choice is none", param=given
            )
        constraint, names = tools.forced, {"json_schema": "tools"}
    names["prompt"] = prompt_param
    if isinstance(body, ChatBody):
        names["logprobs"] = "top_logprobs"
    if body.max_tokens is None and body.max_completion_tokens is not None:
        names["max_tokens"] = "max_completion_tokens"
    requests: list[GenerateRequest] = []
    for prompt_ids in prompts:
        # Without a seed, equal prompts of a list still differ: each draws its own.
        seed = secrets.randbelow(MAX_SEED) if body.seed is None else body.seed
        choices = [
            GenerateRequest(
                request_id=f"{job_id}-{len(requests) + i}",
                prompt_ids=prompt_ids,
                sampling=msgspec.structs.replace(sampling, seed=shifted_seed(seed, i)),
                constraint=constraint,
                cache_salt=body.cache_salt,
                priority=body.priority,
                fsm_debug=body.fsm_debug,
                whole=not body.stream,
            )
            for i in range(body.n)
        ]
        with named_as_in(names):
            choices[0].validate(info)  # its siblings differ in the seed only
        requests += choices
    options = body.stream_options
    return Job(
        id=job_id,
        created=int(time.time()),
        model=info.name,
        n=body.n,
        requests=requests,
        stream=body.stream,
        include_usage=options is not None and options.include_usage is True,
        names=names,
        return_token_ids=body.return_token_ids,
    )


def _sampling(body: Body, default_max_tokens: int | None) -> SamplingParams:
    given = {body.max_tokens, body.max_completion_tokens} - {None}
    if len(given) == 2:
        raise InvalidRequestError(
            f"max_completion_tokens {body.max_completion_tokens} and max_tokens "
            f"{body.max_tokens} contradict each other",
            param="max_completion_tokens",
        )
    return SamplingParams(
        max_tokens=given.pop() if given else default_max_tokens,
        stop=(body.stop,) if isinstance(body.stop, str) else body.stop,
        **{name: getattr(body, name) for name in _SAME_NAMES},
    )


def shifted_seed(seed: int, i: int) -> int:
    """The seed of a prompt's choice `i`; one out of range stays as it is, to be refused."""
    return (seed + i) % (MAX_SEED + 1) if 0 <= seed <= MAX_SEED else seed
