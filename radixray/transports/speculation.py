"""API speculation: one call that generates beyond its end, and serves the generations after it.

A program that alternates generations and fixed text, such as ``Name: <gen> Age: <gen>``, costs a
call for each. Models often write the fixed text themselves. So a call asks for more than it needs,
and without stops; what is left over is kept. A later generation whose prompt goes on exactly as
what is left over is served from it, else it is a call of its own. Where the endpoint's output
depends on the text alone, such as at temperature 0, values are the same with and without.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import msgspec

from radixray.errors import OutputError
from radixray.protocol import GenerateRequest, SamplingParams, Usage
from radixray.transports.message_markup import BODY
from radixray.transports.openai_answer import Piece
from radixray.transports.openai_request import Dialect, body_of

MAX_KEPT = 256

_BODY = BODY.encode()

Complete = Callable[[dict[str, Any]], Awaitable[Piece]]


@dataclass
class _Kept:
    """What a call generated.

    Attributes:
        how: all of the request that shapes its tokens, but for where it ends.
        prompt: the bytes it was given.
        text: the bytes it made.
        ends: where each token of `text` ends; None where the endpoint did not say.
        most: the most tokens that `text` can be.
        limit: of the call, while all of what it made is here.
        natural: the model ended it, not a limit.
    """

    how: tuple[Any, ...]
    prompt: bytes
    text: bytes
    ends: list[int] | None
    most: int
    limit: int | None
    natural: bool


class Speculation:
    """What calls to one endpoint have left over. Belongs to one event loop.

    Args:
        tokens: how many a call generates, if it needs no more.
        logprobs: ask for log-probabilities, which say where each token ends, and so where a
            `max_tokens` cuts. Without them, what is left over serves only where it cannot have
            been cut.
    """

    def __init__(self, tokens: int, logprobs: bool) -> None:
        self._tokens = tokens
        self._logprobs = logprobs
        self._kept: list[_Kept] = []
        self._blind = not logprobs

    def concerns(self, request: GenerateRequest) -> bool:
        """Whether the request's output may be part of a longer one."""
        sampling = request.sampling
        return (
            request.constraint is None
            and sampling.max_tokens is not None
            and sampling.logprobs is None
            and sampling.prompt_logprobs_from is None
        )

    async def serve(
        self, request: GenerateRequest, dialect: Dialect, complete: Complete
    ) -> Piece | None:
        """The request's output; None where it must be asked for by itself.

        Raises:
            UnsupportedFeatureError: as `body_of`.
            OutputError: the model did not write the text after which to go on, and the endpoint
                cannot be told to.
            RadixRayError: the call failed.
        """
        how, prompt = _how(request), bytes(request.prompt_ids)
        served = self._left_over(how, prompt, request.sampling)
        if served is not None:
            return served
        # An endpoint that cannot go on with a message that has begun is asked for all of it.
        start = len(prompt)
        if dialect.api == "chat" and dialect.prefill is None:
            start = prompt.rfind(_BODY) + len(_BODY)
        begun = prompt[start:]
        if begun and any(kept.how == how and kept.prompt == prompt[:start] for kept in self._kept):
            raise self._mismatch(how, prompt[:start], begun)
        assert request.sampling.max_tokens is not None
        if self._blind and not begun and request.sampling.max_tokens < self._tokens:
            return None  # where it ends among so many tokens would hardly be known
        usage = await self._ask(how, request, prompt[:start], dialect, complete)
        served = self._left_over(how, prompt, request.sampling)
        if served is not None:
            served.usage = usage
        elif begun:
            raise self._mismatch(how, prompt[:start], begun)
        return served

    def _left_over(
        self, how: tuple[Any, ...], prompt: bytes, sampling: SamplingParams
    ) -> Piece | None:
        for kept in reversed(self._kept):
            begun = prompt[len(kept.prompt) :]
            if kept.how == how and prompt.startswith(kept.prompt) and kept.text.startswith(begun):
                served = _cut(kept, len(begun), sampling)
                if served is not None:
                    if sampling.temperature > 0 and sampling.seed is None:
                        _use_up(kept, len(begun) + len(served.text.encode()))
                    return served
        return None

    async def _ask(
        self,
        how: tuple[Any, ...],
        request: GenerateRequest,
        prompt: bytes,
        dialect: Dialect,
        complete: Complete,
    ) -> Usage:
        assert request.sampling.max_tokens is not None
        more = max(self._tokens, request.sampling.max_tokens)
        sampling = msgspec.structs.replace(request.sampling, max_tokens=more, stop=())
        asked = msgspec.structs.replace(request, sampling=sampling, prompt_ids=list(prompt))
        body = body_of(asked, dialect)
        if self._logprobs:
            body["logprobs"] = True if dialect.api == "chat" else 0
        answer = await complete(body)
        kept = _keep(how, prompt, answer, more)
        self._blind = self._blind or kept.ends is None
        self._kept = [*self._kept[1 - MAX_KEPT :], kept]
        return answer.usage or Usage()

    def _mismatch(self, how: tuple[Any, ...], prompt: bytes, begun: bytes) -> OutputError:
        texts = [k.text for k in self._kept if (k.how, k.prompt) == (how, prompt)]
        # Run again, the program gets a new answer.
        self._kept = [k for k in self._kept if (k.how, k.prompt) != (how, prompt)]
        said, wanted = texts[-1].decode(errors="replace"), begun.decode(errors="replace")
        return OutputError(
            f"the program's message begins with {wanted!r:.200}, the model's is {said!r:.200}: it "
            f"went on otherwise, or num_api_spec_tokens={self._tokens} is too few, and this "
            f"endpoint cannot be told to go on from there (prefill)",
            param="num_api_spec_tokens",
            text=said,
        )


def _use_up(kept: _Kept, size: int) -> None:
    """Of what was drawn by chance nothing serves twice, or two samples would be one."""
    kept.limit = None
    kept.prompt, kept.text = kept.prompt + kept.text[:size], kept.text[size:]
    if kept.ends is not None:
        kept.ends = [end - size for end in kept.ends if end > size]


def _how(request: GenerateRequest) -> tuple[Any, ...]:
    sampling = msgspec.structs.replace(request.sampling, stop=(), max_tokens=None)
    return (msgspec.json.encode(sampling), request.cache_salt, request.priority)


def _keep(how: tuple[Any, ...], prompt: bytes, answer: Piece, asked: int) -> _Kept:
    text = answer.text.encode()
    ends: list[int] | None = []
    end = 0
    for token in answer.tokens:
        end += len(token)
        ends.append(min(end, len(text)))
    # A token that ended the output may be told of, and spells nothing of it.
    while len(ends) > 1 and ends[-2] >= len(text):
        ends.pop()
    if b"".join(answer.tokens)[: len(text)] != text or (text and not ends):
        ends = None
    made = answer.usage.completion if answer.usage is not None else asked
    natural = answer.finish_reason == "stop"
    return _Kept(how, prompt, text, ends, min(made or asked, len(text)), asked, natural)


def _cut(kept: _Kept, start: int, sampling: SamplingParams) -> Piece | None:
    """The output that begins at byte `start`, or None where its end is not known."""
    limit = sampling.max_tokens
    assert limit is not None
    rest = kept.text[start:]
    stops = [stop.encode() for stop in sampling.stop]
    found = min(
        ((rest.find(stop), len(stop)) for stop in stops if stop in rest),
        default=None,
        key=lambda place: (place[0] + place[1], place[0]),
    )
    end = len(rest) if found is None else sum(found)
    tokens = None
    if kept.ends is not None:
        tokens = [e for e in kept.ends if e > start]
        needed = sum(1 for e in tokens if e <= start + end)
        if not (tokens and needed and tokens[needed - 1] == start + end) and end:
            needed += 1  # it ends within a token
    else:
        needed = min(kept.most, end)
    if found is not None and needed <= limit:
        return Piece(rest[: found[0]].decode(errors="replace"), "stop", usage=Usage())
    if found is None and start == 0 and limit == kept.limit:
        reason = "stop" if kept.natural else "length"
        return Piece(rest.decode(errors="replace"), reason, usage=Usage())
    if found is None and kept.natural and needed < limit:
        return Piece(rest.decode(errors="replace"), "stop", usage=Usage())
    if tokens is not None and len(tokens) >= limit:
        text = kept.text[start : tokens[limit - 1]]
        return Piece(text.decode(errors="replace"), "length", usage=Usage())
    return None
