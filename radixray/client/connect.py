"""`rr.connect` and its kin: programs that run on a server over HTTP."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

from radixray.checks import check_int, check_number
from radixray.client.runtime import Runtime, use
from radixray.errors import InvalidRequestError
from radixray.protocol import MAX_INT, MAX_TIMEOUT_S

if TYPE_CHECKING:
    from radixray.transports.openai_request import API, Prefill


def connect(url: str, *, api_key: str | None = None) -> Runtime:
    """Uses a RadixRay server, e.g. one started by ``radixray serve``, over HTTP.

    Programs can do there what they can on Ray, but for constraints by Python code, and for pins.
    The server is asked at the first use. Leaves the place used before, if any.

    Args:
        url: e.g. ``http://127.0.0.1:8000``.
        api_key: what the server wants, if it does.

    Raises:
        InvalidRequestError: no such URL, or a runtime that this process started is in use.
    """
    from radixray.transports.radixray_server import RadixRayServer

    check_url("url", url)
    return use(RadixRayServer(url, api_key))


def connect_openai(
    base_url: str,
    *,
    model: str,
    api_key: str | None = None,
    api: API = "chat",
    prefill: Prefill | None = None,
    extensions: Collection[str] = (),
    chat_template: str | None = None,
    num_api_spec_tokens: int | None = None,
    spec_logprobs: bool = True,
    read_timeout_s: float = 600.0,
) -> Runtime:
    """Uses any OpenAI-compatible endpoint. What it cannot do is refused by name, and not sent.

    Nobody knows the model's tokens here, so the token ids of outputs and states are the bytes of
    their text. The endpoint is asked at the first use. Leaves the place used before, if any.

    Args:
        base_url: with its ``/v1``, e.g. ``https://api.openai.com/v1``.
        model: what the endpoint calls it.
        api_key: what the endpoint wants, if it does.
        api: ``chat`` sends messages; ``completions`` text.
        prefill: how a chat endpoint is told to go on with an assistant's message that has begun:
            it goes on with the ``last_message`` by itself, or where ``continue_final_message``
            says so, as at vLLM and SGLang. By default that is refused.
        extensions: what the endpoint knows beyond OpenAI's API: parameters by their names here,
            such as ``top_k`` and ``regex``; ``structured_outputs`` (vLLM's name for regex, choices
            and grammars); ``response_format`` with ``completions``; ``echo_logprobs``, which
            `select` needs; ``max_completion_tokens`` in place of ``max_tokens``.
        chat_template: Jinja source, for programs with roles on ``completions``.
        num_api_spec_tokens: API speculation: a call generates so many tokens, and what it has left
            over serves later generations, as far as it is what the program says in between.
        spec_logprobs: with that, ask where tokens end, without which less can be served.
        read_timeout_s: silence for so long is a lost connection.

    Raises:
        InvalidRequestError: a wrong argument, or a runtime that this process started is in use.
    """
    from radixray.transports.openai_endpoint import OpenAIEndpoint
    from radixray.transports.openai_request import Dialect

    check_url("base_url", base_url)
    if not isinstance(model, str) or not model:
        raise InvalidRequestError("model must be a non-empty string", param="model")
    if num_api_spec_tokens is not None:
        check_int("num_api_spec_tokens", num_api_spec_tokens, 1, MAX_INT)
    check_number("read_timeout_s", read_timeout_s, 0.0, MAX_TIMEOUT_S)
    for name, value, known in (
        ("api", api, ("chat", "completions")),
        ("prefill", prefill, (None, "last_message", "continue_final_message")),
    ):
        if value not in known:
            raise InvalidRequestError(f"{name} must be one of {known}, not {value!r}", param=name)
    return use(
        OpenAIEndpoint(
            base_url,
            Dialect(model, api, prefill, frozenset(extensions)),
            api_key=api_key,
            chat_template=chat_template,
            read_timeout_s=read_timeout_s,
            num_api_spec_tokens=num_api_spec_tokens,
            spec_logprobs=spec_logprobs,
        )
    )


def check_url(name: str, url: object) -> None:
    """Raises InvalidRequestError: no URL of an HTTP server."""
    if not isinstance(url, str) or not url.startswith(("http://", "https://")):
        raise InvalidRequestError(f"{name} must begin with http:// or https://", param=name)
