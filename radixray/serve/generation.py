"""Run generations over a Transport; none ends without a finish reason or an error."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator, Mapping
from contextlib import aclosing, contextmanager
from typing import Any, TypeVar

from radixray.actors.transport import Transport
from radixray.errors import AbortedError, EngineError, InvalidRequestError
from radixray.protocol import Completion, Delta, GenerateRequest, Usage

T = TypeVar("T")


@contextmanager
def named_as_in(names: Mapping[str, str]) -> Iterator[None]:
    """Errors raised inside name parameters as the caller does.

    Args:
        names: our name of a parameter -> the caller's, where they differ.
    """
    try:
        yield
    except InvalidRequestError as error:
        error.param = names.get(error.param or "", error.param)
        raise


async def follow(
    transport: Transport, request: GenerateRequest, on_delta: Callable[[Delta], Awaitable[None]]
) -> Usage:
    """Run `request`, hand each Delta to `on_delta`, and give its usage.

    Cancelling this aborts the request.

    Raises:
        AbortedError: the server aborted it.
        RadixRayError: as `Transport.generate`.
    """
    usage = Usage(prompt=len(request.prompt_ids))
    async with aclosing(transport.generate(request)) as deltas:
        async for delta in deltas:
            if delta.finish_reason == "abort":
                raise AbortedError("the server aborted the request; it may be sent again")
            usage = delta.usage or usage
            await on_delta(delta)
            if delta.finish_reason is not None:
                return usage
    raise EngineError("the generation ended without a finish reason")


async def complete(transport: Transport, request: GenerateRequest) -> Completion:
    """The whole output of `request`. Raises as `follow`."""
    texts: list[str] = []
    token_ids: list[int] = []
    last = Delta(request_id=request.request_id)

    async def keep(delta: Delta) -> None:
        nonlocal last
        texts.append(delta.text)
        token_ids.extend(delta.token_ids)
        last = delta

    usage = await follow(transport, request, keep)
    return Completion(
        request_id=request.request_id,
        token_ids=token_ids,
        text="".join(texts),
        finish_reason=last.finish_reason or "",
        stop_reason=last.stop_reason,
        usage=usage,
        grammar=last.grammar,
    )


async def run_all(works: Iterable[Coroutine[Any, Any, T]]) -> list[T]:
    """The results of `works`, run at once; when one fails the rest are cancelled.

    Raises:
        Exception: the first failure, by itself.
    """
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(work) for work in works]
    except ExceptionGroup as failed:
        raise failed.exceptions[0] from None
    return [task.result() for task in tasks]
