"""Any OpenAI-compatible endpoint: programs as chats or as texts.

Nobody knows the model's tokens here, so "tokens" are the bytes of the text.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

import msgspec

from radixray.errors import (
    DeadlineExceededError,
    EngineError,
    InvalidRequestError,
    UnsupportedFeatureError,
)
from radixray.protocol import (
    MAX_INT,
    Delta,
    GenerateRequest,
    ModelInfo,
    ScoreRequest,
    ScoreResult,
    Usage,
)
from radixray.reports import EngineStats
from radixray.tokenizer.byte_tokenizer import ByteTokenizer
from radixray.tokenizer.chat_template import ChatTemplate
from radixray.transports.http_errors import error_of
from radixray.transports.http_session import HTTPSession
from radixray.transports.message_markup import MessageMarkup
from radixray.transports.openai_answer import Piece, decoded, pieces_of, usage_of
from radixray.transports.openai_request import Dialect, body_of, check_extensions, text_of
from radixray.transports.speculation import Speculation


class OpenAIEndpoint:
    """A place where programs run: an OpenAI-compatible endpoint.

    Args:
        base_url: with its ``/v1``.
        dialect: what it understands.
        api_key: what it wants, if it does.
        chat_template: of a model behind ``completions``, for programs with roles.
        read_timeout_s: silence for so long is a lost connection.
        num_api_spec_tokens: see `Speculation`; None does not speculate.
        spec_logprobs: likewise.
    """

    config = None
    owned = False

    def __init__(
        self,
        base_url: str,
        dialect: Dialect,
        *,
        api_key: str | None = None,
        chat_template: str | None = None,
        read_timeout_s: float = 600.0,
        num_api_spec_tokens: int | None = None,
        spec_logprobs: bool = True,
    ) -> None:
        check_extensions(dialect.extensions)
        if chat_template is not None and dialect.api == "chat":
            raise InvalidRequestError(
                "chat_template goes with api='completions': a chat endpoint has its own",
                param="chat_template",
            )
        self.url = base_url.rstrip("/")
        self.dialect = dialect
        self._key = api_key
        self._timeout = read_timeout_s
        self._speculation = num_api_spec_tokens, spec_logprobs
        template = MessageMarkup() if dialect.api == "chat" else ChatTemplate(chat_template, {})
        self._tokenizer = ByteTokenizer(template)
        self.identity = repr((self.url, dialect, api_key, chat_template, self._speculation))

    async def connect(self) -> OpenAITransport:
        """A transport for the running event loop; asks the endpoint nothing."""
        tokens, logprobs = self._speculation
        return OpenAITransport(
            HTTPSession(self.url, self._key, self._timeout),
            self.dialect,
            self._tokenizer,
            None if tokens is None else Speculation(tokens, logprobs),
        )

    def shutdown(self) -> None:
        """Does nothing: the endpoint is not ours."""


class OpenAITransport:
    """A `Transport` to an OpenAI-compatible endpoint. Belongs to one event loop."""

    def __init__(
        self,
        session: HTTPSession,
        dialect: Dialect,
        tokenizer: ByteTokenizer,
        speculation: Speculation | None,
    ) -> None:
        self._session = session
        self._dialect = dialect
        self._tokenizer = tokenizer
        self._speculation = speculation

    @property
    def info(self) -> ModelInfo:
        """What is known of the model: its name."""
        return ModelInfo(
            name=self._dialect.model,
            context_length=MAX_INT,
            pool_tokens=MAX_INT,
            vocab_size=MAX_INT,
            eos_token_ids=(),
            dtype="",
            max_queued_requests=MAX_INT,
            own_tokens=False,
        )

    @property
    def tokenizer(self) -> ByteTokenizer:
        """Texts as bytes, chats as marked-up text."""
        return self._tokenizer

    async def generate(self, request: GenerateRequest) -> AsyncGenerator[Delta, None]:
        """The request's Deltas; see `Transport.generate`."""
        request.validate(self.info)
        if request.sampling.max_tokens == 0:
            # What an endpoint keeps is its own affair.
            yield Delta(request_id=request.request_id, finish_reason="length", usage=Usage())
            return
        left = None if request.timeout_s is None else _now() + request.timeout_s
        async with aclosing(self._deltas(request)) as deltas:
            while True:
                try:
                    async with asyncio.timeout_at(left):
                        delta = await anext(deltas)
                except StopAsyncIteration:
                    return
                except TimeoutError:
                    raise DeadlineExceededError(
                        f"the endpoint did not finish within timeout_s={request.timeout_s:g}"
                    ) from None
                yield delta

    async def score(self, request: ScoreRequest) -> ScoreResult:
        """Log-probabilities of the choices, from a ``completions`` endpoint that echoes them."""
        request.validate(self.info)
        if self._dialect.api == "chat" or "echo_logprobs" not in self._dialect.extensions:
            raise UnsupportedFeatureError(
                "select needs the log-probabilities of a prompt, which only api='completions' "
                "can give, of endpoints said to do so (extensions: 'echo_logprobs')",
                param="select",
            )
        if request.cache_salt and "cache_salt" not in self._dialect.extensions:
            raise UnsupportedFeatureError(
                "cache_salt is not supported here: the endpoint is not said to know it",
                param="cache_salt",
            )
        prompt = text_of(request.prompt_ids)
        choices = [text_of(choice) for choice in request.choices]
        body: dict[str, Any] = {
            "model": self._dialect.model,
            "prompt": [prompt + choice for choice in choices],
            "max_tokens": 1,
            "temperature": 0,
            "echo": True,
            "logprobs": 1,
        }
        if request.cache_salt:
            body["cache_salt"] = request.cache_salt
        raw = msgspec.json.encode(body)
        async with self._session.request("POST", self._dialect.path, raw) as response:
            answer = await response.read()
            if response.status != 200:
                raise error_of(response.status, answer, response.headers.get("Retry-After"))
        fields = decoded(answer)
        given = fields.get("choices") or []
        if len(given) != len(choices):
            raise EngineError(f"the endpoint scored {len(given)} of {len(choices)} choices")
        given = sorted(given, key=lambda choice: choice.get("index", 0))
        return ScoreResult(
            request_id=request.request_id,
            logprobs=[
                _span(each.get("logprobs"), len(prompt), prompt + choice)
                for each, choice in zip(given, choices, strict=True)
            ],
            usage=usage_of(fields) or Usage(),
        )

    async def stats(self) -> dict[str, EngineStats]:
        """None: an endpoint has no counters."""
        return {}

    async def flush(self) -> int:
        """Raises UnsupportedFeatureError: an endpoint's cache is its own affair."""
        raise UnsupportedFeatureError("an endpoint's cache cannot be emptied", param="flush")

    async def close(self) -> None:
        """Closes all connections; requests under way fail."""
        await self._session.close()

    def abandon(self) -> None:
        """As `close`, without waiting."""
        self._session.abandon()

    async def _deltas(self, request: GenerateRequest) -> AsyncGenerator[Delta, None]:
        if self._speculation is not None and self._speculation.concerns(request):
            served = await self._speculation.serve(request, self._dialect, self._complete)
            if served is not None:
                yield _delta(request, served, served.finish_reason, 0)
                return
        index = 0
        last = Piece()
        async with aclosing(self._stream(body_of(request, self._dialect))) as pieces:
            async for piece in pieces:
                last.usage = piece.usage or last.usage
                last.finish_reason = piece.finish_reason or last.finish_reason
                last.stop_reason = piece.stop_reason or last.stop_reason
                if piece.text:
                    yield _delta(request, piece, None, index)
                    index += len(piece.text.encode())
        yield _delta(request, last, last.finish_reason, index)

    async def _complete(self, body: dict[str, Any]) -> Piece:
        """The whole answer."""
        whole = Piece()
        async with aclosing(self._stream(body)) as pieces:
            async for piece in pieces:
                whole.text += piece.text
                whole.tokens += piece.tokens
                whole.usage = piece.usage or whole.usage
                whole.finish_reason = piece.finish_reason or whole.finish_reason
        return whole

    async def _stream(self, body: dict[str, Any]) -> AsyncGenerator[Piece, None]:
        raw = msgspec.json.encode(body)
        async with (
            self._session.request("POST", self._dialect.path, raw) as response,
            aclosing(pieces_of(response)) as pieces,
        ):
            async for piece in pieces:
                yield piece


def _delta(request: GenerateRequest, piece: Piece, reason: str | None, index: int) -> Delta:
    return Delta(
        request_id=request.request_id,
        index=index,
        token_ids=list(piece.text.encode()),
        text=piece.text,
        finish_reason=reason,
        stop_reason=piece.stop_reason,
        usage=(piece.usage or Usage()) if reason is not None else None,
    )


def _span(logprobs: Any, start: int, text: str) -> list[float]:
    """The log-probabilities of the tokens of `text` from character `start` on."""
    try:
        offsets, scores = logprobs["text_offset"], logprobs["token_logprobs"]
    except (KeyError, TypeError):
        raise EngineError("the endpoint gave no log-probabilities of the prompt") from None
    inside = [i for i, offset in enumerate(offsets) if start <= offset < len(text)]
    if not inside or offsets[inside[0]] != start:
        raise InvalidRequestError(
            "the model's tokens join the prompt's end with a choice's beginning; end the prompt "
            "where a word ends, and begin each choice with the space",
            param="choices",
        )
    return [float(scores[i]) for i in inside]


def _now() -> float:
    return asyncio.get_running_loop().time()
