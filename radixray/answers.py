"""What comes back of a request: Deltas as it runs, and what they add up to."""

from __future__ import annotations

import msgspec

from radixray.constraint import GrammarReport
from radixray.errors import WIRE_ERRORS, OverloadedError, RadixRayError


class Usage(msgspec.Struct, kw_only=True):
    """Token counts of one request.

    Attributes:
        prompt: tokens of the prompt.
        cached: prompt tokens whose KV was found in the radix cache.
        completion: tokens generated.
        jumped: generated tokens that the constraint forced, taken without asking the model.
    """

    prompt: int = 0
    cached: int = 0
    completion: int = 0
    jumped: int = 0

    def __add__(self, other: Usage) -> Usage:
        return Usage(
            prompt=self.prompt + other.prompt,
            cached=self.cached + other.cached,
            completion=self.completion + other.completion,
            jumped=self.jumped + other.jumped,
        )


class ErrorInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A RadixRayError on the wire: class name, message, parameter."""

    type: str
    message: str
    param: str | None = None
    retry_after_s: float | None = None

    @classmethod
    def of(cls, error: RadixRayError) -> ErrorInfo:
        """The wire form of `error`; a class unknown to WIRE_ERRORS travels as its nearest base."""
        name = next(c.__name__ for c in type(error).__mro__ if c.__name__ in WIRE_ERRORS)
        after = error.retry_after_s if isinstance(error, OverloadedError) else None
        return cls(type=name, message=error.message, param=error.param, retry_after_s=after)

    def to_error(self) -> RadixRayError:
        """The error again, as the class it was."""
        error = WIRE_ERRORS.get(self.type, RadixRayError)(self.message, param=self.param)
        if isinstance(error, OverloadedError) and self.retry_after_s is not None:
            error.retry_after_s = self.retry_after_s
        return error


class TokenLogprob(msgspec.Struct, frozen=True, array_like=True):
    """A token's natural-log probability.

    Attributes:
        top: (token id, log-probability) of the likeliest tokens, likeliest first.
    """

    token_id: int
    logprob: float
    top: list[tuple[int, float]] = []


class Delta(msgspec.Struct, kw_only=True, omit_defaults=True):
    """What one engine step added to one request.

    Attributes:
        request_id: whose.
        index: number of output tokens before this delta; lets a consumer spot loss or repeats.
        token_ids: tokens this step added, stop token included.
        jumped: how many of them a constraint forced; see `Usage`.
        text: characters that became certain; never part of a character, never part of a stop
            string.
        finish_reason: None while it runs; else ``stop``, ``length``, ``abort``, ``error``, or
            ``grammar_error`` where the constraint could go no further.
        stop_reason: the stop string, the text that a stop_regex matched, or the token id that
            ended it, or None.
        usage: on the last delta, and on the first (with what was found in the cache).
        logprobs: of `token_ids`, where the request asks for them.
        prompt_logprobs: of the prompt's tokens from `prompt_logprobs_from` on; on the first
            delta, where the request asks for them.
        choice_logprobs: on a ScoreRequest's last delta, natural-log probabilities per choice and
            token.
        grammar: of a constrained request, on the last delta.
        error: set when finish_reason is ``error``.
    """

    request_id: str
    index: int = 0
    token_ids: list[int] = []
    jumped: int = 0
    text: str = ""
    finish_reason: str | None = None
    stop_reason: int | str | None = None
    usage: Usage | None = None
    logprobs: list[TokenLogprob] | None = None
    prompt_logprobs: list[TokenLogprob] | None = None
    choice_logprobs: list[list[float]] | None = None
    grammar: GrammarReport | None = None
    error: ErrorInfo | None = None


def join_deltas(deltas: list[Delta]) -> Delta:
    """One Delta in place of several of the same request that follow each other, at least one."""
    first, last = deltas[0], deltas[-1]
    if first is last:
        return last
    logprobs = [item for delta in deltas for item in delta.logprobs or ()]
    return Delta(
        request_id=last.request_id,
        index=first.index,
        token_ids=[token for delta in deltas for token in delta.token_ids],
        jumped=sum(delta.jumped for delta in deltas),
        text="".join(delta.text for delta in deltas),
        finish_reason=last.finish_reason,
        stop_reason=last.stop_reason,
        usage=last.usage or first.usage,
        logprobs=logprobs or None,
        prompt_logprobs=first.prompt_logprobs,
        choice_logprobs=last.choice_logprobs,
        grammar=last.grammar,
        error=last.error,
    )


class Completion(msgspec.Struct, kw_only=True):
    """The whole output of one GenerateRequest: its Deltas joined.

    Attributes:
        token_ids: all output tokens, stop token included.
        text: the output, without stop token and stop string.
        finish_reason: ``stop``, ``length``, ``abort`` or ``grammar_error``.
        stop_reason: the stop string or token id that ended it, or None.
        grammar: of a constrained request.
    """

    request_id: str
    token_ids: list[int]
    text: str
    finish_reason: str
    stop_reason: int | str | None
    usage: Usage
    grammar: GrammarReport | None = None


class ScoreResult(msgspec.Struct, kw_only=True):
    """The answer to one ScoreRequest.

    Attributes:
        logprobs: natural-log probability of each token of each choice, in the request's order.
        usage: `prompt` and `cached` of the shared prompt; `completion` is 0.
    """

    request_id: str
    logprobs: list[list[float]]
    usage: Usage
