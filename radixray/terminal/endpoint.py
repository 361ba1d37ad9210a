"""An OpenAI-compatible endpoint, asked with what the standard library has of HTTP."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from http.client import HTTPException
from typing import Any
from urllib.error import HTTPError
from urllib.parse import quote, urlsplit
from urllib.request import ProxyHandler, Request, build_opener

import msgspec

from radixray.errors import DeploymentError, EngineError, InvalidRequestError, RadixRayError
from radixray.explanation import Explanation

CONNECT_TIMEOUT_S = 10.0
SILENCE_TIMEOUT_S = 600.0
"""A long queue is silent, too."""

Message = dict[str, str]


@dataclass(frozen=True, slots=True)
class TokenCounts:
    """What an answer cost.

    Attributes:
        prompt, cached, completion: tokens of the prompt, those found in the cache, and new ones.
    """

    prompt: int
    cached: int
    completion: int


class Endpoint:
    """A server, by the URL that `radixray serve` prints.

    Args:
        url: with or without ``/v1``.
        api_key: what it wants as bearer token, if anything.

    Raises:
        InvalidRequestError: `url` is none of HTTP's.
    """

    def __init__(self, url: str, api_key: str | None) -> None:
        host = _host_of(url)
        self.url = url.rstrip("/").removesuffix("/v1")
        # A proxy of the environment is for others, not for this machine's own server.
        here = host == "localhost" or host.startswith("127.") or host == "::1"
        self._opener = build_opener(*([ProxyHandler({})] if here else []))
        self._headers = {"Content-Type": "application/json"}
        if api_key:
            self._headers["Authorization"] = f"Bearer {api_key}"

    def models(self) -> list[str]:
        """The ids of the models served.

        Raises:
            DeploymentError: nothing answers there, or not as such a server does.
            InvalidRequestError: the API key is missing or wrong.
        """
        with closing(self._open("/v1/models", None, CONNECT_TIMEOUT_S)) as answer:
            try:
                return [model["id"] for model in json.load(answer)["data"]]
            except (ValueError, LookupError, TypeError) as error:
                raise DeploymentError(f"{self.url} is no OpenAI-compatible server") from error

    def chat(
        self, model: str, messages: list[Message], parameters: dict[str, Any]
    ) -> Iterator[str | TokenCounts]:
        """The pieces of the answer as they come, and at the end what it cost.

        Closing the iterator hangs up, which ends the generation.

        Raises:
            DeploymentError: nothing answers there any more.
            InvalidRequestError: the server refuses the request.
            EngineError: the answer breaks off.
        """
        body = {
            **parameters,
            "model": model,
            "messages": messages,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        with closing(self._open("/v1/chat/completions", body, SILENCE_TIMEOUT_S)) as answer:
            try:
                yield from _pieces(answer)
            except (OSError, HTTPException, ValueError) as error:
                raise EngineError(f"the answer broke off: {error!r}") from error

    def explain(self, request_id: str) -> Explanation:
        """What a RadixRay server remembers of a request, or of the first sequence of an answer.

        Raises:
            DeploymentError: no RadixRay server answers there.
            InvalidRequestError: nothing is known of it, or the API key is wrong.
        """
        path = f"/radixray/v1/explain/{quote(request_id, safe='')}"
        with closing(self._open(path, None, CONNECT_TIMEOUT_S)) as answer:
            try:
                return msgspec.json.decode(answer.read(), type=Explanation)
            except msgspec.DecodeError as error:
                raise DeploymentError(f"{self.url} is no RadixRay server") from error

    def _open(self, path: str, body: object, timeout_s: float) -> Any:
        data = None if body is None else json.dumps(body).encode()
        request = Request(self.url + path, data, self._headers)
        try:
            return self._opener.open(request, timeout=timeout_s)
        except HTTPError as error:
            raise _refusal(error) from None
        except (OSError, HTTPException, ValueError) as error:
            reason = getattr(error, "reason", None) or error
            raise DeploymentError(
                f"no server answers at {self.url} ({reason}); `radixray serve` starts one",
                param="url",
            ) from error


def _host_of(url: str) -> str:
    try:
        parts = urlsplit(url)
        if parts.scheme in ("http", "https") and parts.hostname and parts.port != 0:
            return parts.hostname
    except ValueError:  # brackets or a port that are none
        pass
    raise InvalidRequestError(f"url must be like http://host:port, not {url!r}", param="url")


def _pieces(answer: Any) -> Iterator[str | TokenCounts]:
    for line in answer:
        if not line.startswith(b"data:"):
            continue
        data = line.removeprefix(b"data:").strip()
        if data == b"[DONE]":
            return
        chunk = json.loads(data)
        if not isinstance(chunk, dict):
            raise ValueError("an event that is no object")
        if "error" in chunk:
            raise EngineError(_message(chunk) or "the server failed")
        for choice in chunk.get("choices") or ():
            if text := (choice.get("delta") or {}).get("content"):
                yield text
        if usage := chunk.get("usage"):
            details = usage.get("prompt_tokens_details") or {}
            yield TokenCounts(
                usage.get("prompt_tokens", 0),
                details.get("cached_tokens") or 0,
                usage.get("completion_tokens", 0),
            )
    raise EngineError("the answer broke off")


def _refusal(error: HTTPError) -> RadixRayError:
    with error:
        text = error.read().decode(errors="replace")
    try:
        message = _message(json.loads(text)) or text
    except ValueError:
        message = f"HTTP {error.code}: {text[:200] or error.reason}"
    if error.code in (401, 403):
        return InvalidRequestError(message, param="api_key")
    return InvalidRequestError(message) if error.code < 500 else EngineError(message)


def _message(body: Any) -> str:
    detail = body.get("error") if isinstance(body, dict) else None
    message = detail.get("message") if isinstance(detail, dict) else detail
    return str(message or "")
