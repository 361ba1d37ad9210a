"""Run generations over a Transport; none ends without a finish reason or an error."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator, Mapping
from contextlib import aclosing, contextmanager
from typing import Any, TypeVar

from radixray.actors.transport import Generates
from radixray.errors import AbortedError, EngineError, InvalidRequestError
from radixray.protocol import Delta, GenerateRequest, Usage, join_deltas

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
    transport: Generates, request: GenerateRequest, on_delta: Callable[[Delta], Awaitable[None]]
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


async def complete(transport: Generates, request: GenerateRequest) -> Delta:
    """The whole output of `request`, as one Delta with its usage. Raises as `follow`."""
    deltas: list[Delta] = []

    async def keep(delta: Delta) -> None:
        deltas.append(delta)

    usage = await follow(transport, request, keep)
    whole = join_deltas(deltas)
    whole.usage = usage
    # They need not be on the very first.
    scored = (delta.prompt_logprobs for delta in deltas)
    whole.prompt_logprobs = next((each for each in scored if each is not None), None)
    return whole


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
