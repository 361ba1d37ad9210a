"""Telling the scheduler of requests to come: what a fork shares, and what the rows of a batch do.

Nothing of a program is run or read for that: only the tokens of its requests are.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from functools import cache
from types import TracebackType
from typing import Any

from radixray.actors.transport import LooksAhead, Transport
from radixray.client.forwarding import ForwardingTransport, innermost
from radixray.protocol import Delta, GenerateRequest, Request, ScoreRequest, ScoreResult

SHARED_TOKENS = 32
"""A prefix shorter than that is not worth a hint."""

MAX_AT_ONCE = 10_000
"""Requests under way that a hint tells of."""


class Announcements:
    """The hints of one run, which are ended together."""

    def __init__(self, transport: Transport) -> None:
        inside: Any = innermost(transport)
        self._scheduler: LooksAhead | None = inside if _hears(type(inside)) else None
        self._ends: list[Callable[[], None]] = []

    @property
    def heard(self) -> bool:
        """Whether there is anybody to tell."""
        return self._scheduler is not None

    def requests(
        self,
        prefix_ids: list[int],
        cache_salt: str,
        requests: int,
        *,
        at_once: int | None = None,
        own_tokens: int = 0,
    ) -> None:
        """So many requests with this prefix will come; by default all at once."""
        if self._scheduler is None or requests < 2 or len(prefix_ids) < SHARED_TOKENS:
            return
        end = self._scheduler.expect(
            prefix_ids,
            requests,
            at_once=min(requests if at_once is None else at_once, MAX_AT_ONCE),
            own_tokens=own_tokens,
            cache_salt=cache_salt,
        )
        self._ends.append(end)

    def end(self) -> None:
        """No more of them will come."""
        ends, self._ends = self._ends, []
        for end in ends:
            end()


@cache
def _hears(kind: type) -> bool:
    # Asking a protocol takes as long as the rest of a program's beginning.
    return issubclass(kind, LooksAhead)


class BatchLookahead(ForwardingTransport):
    """A transport for the programs of one batch, which finds what their first requests share.

    These come in one turn of the loop and wait for each other so long. Each group that begins
    alike is announced, with as many requests as the rows to come will make if they are alike, too.

    Args:
        rows: how many there are, or None where that is not known.
        at_once: most requests under way.
    """

    def __init__(self, transport: Transport, rows: int | None, at_once: int) -> None:
        super().__init__(transport)
        self._rows = rows
        self._at_once = at_once
        self._announcements = Announcements(transport)
        self._first: list[Request] = []
        self._looking = self._announcements.heard

    def generate(self, request: GenerateRequest) -> AsyncGenerator[Delta, None]:
        """As the transport's."""
        return self._held(request) if self._looking else self.inside.generate(request)

    async def score(self, request: ScoreRequest) -> ScoreResult:
        """As the transport's."""
        if self._looking:
            await self._look(request)
        return await self.inside.score(request)

    def __enter__(self) -> BatchLookahead:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._announcements.end()

    async def _held(self, request: GenerateRequest) -> AsyncGenerator[Delta, None]:
        await self._look(request)
        async with aclosing(self.inside.generate(request)) as deltas:
            async for delta in deltas:
                yield delta

    async def _look(self, request: Request) -> None:
        self._first.append(request)
        await asyncio.sleep(0)
        if self._looking:
            self._looking = False
            self._announce(self._first)
            self._first = []

    def _announce(self, first: Sequence[Request]) -> None:
        groups: dict[tuple[str, tuple[int, ...]], list[list[int]]] = {}
        for request in first:
            if request.images:  # which separate KV that the tokens do not
                continue
            key = request.cache_salt, tuple(request.prompt_ids[:SHARED_TOKENS])
            groups.setdefault(key, []).append(request.prompt_ids)
        for (salt, _), prompts in groups.items():
            if len(prompts) < 2:
                continue
            prefix = _shared(prompts)
            rows = len(first) if self._rows is None else max(self._rows, len(first))
            self._announcements.requests(
                prefix,
                salt,
                rows * len(prompts) // len(first),
                at_once=min(len(prompts), self._at_once),
                own_tokens=sum(map(len, prompts)) // len(prompts) - len(prefix),
            )


def _shared(prompts: Sequence[list[int]]) -> list[int]:
    """What they all begin with."""
    # Whatever the first and the last in order share, those between them share, too.
    first, last = min(prompts), max(prompts)
    size = next(
        (i for i, (a, b) in enumerate(zip(first, last, strict=False)) if a != b), len(first)
    )
    return first[:size]
