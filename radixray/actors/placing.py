"""Asking the scheduler actor where requests should run, all of one turn of the loop in one call."""

from __future__ import annotations

import asyncio
import itertools
import logging
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import ray
from ray.exceptions import RayError

from radixray.actors.independent import independent_call, independent_task
from radixray.actors.replay import tokens_of
from radixray.actors.wire import CohortHint, PlaceRequest, decode_placements, encode, encode_request
from radixray.checks import check_int
from radixray.errors import EngineError
from radixray.protocol import Request
from radixray.reports import Placement

MAX_EXPECTED = 10_000_000
"""Requests of one cohort."""

MAX_AT_ONCE = 10_000

log = logging.getLogger("radixray")


@dataclass(frozen=True, slots=True)
class _Asked:
    request_id: str
    message: bytes
    answer: asyncio.Future[Placement]


class Placer:
    """One consumer's questions to the scheduler actor, and what it tells of requests to come.

    Belongs to one event loop.

    Args:
        scheduler: handle of the scheduler actor.
        names: of the model actors, as they are now.
        namespace: of a cache salt and images.
    """

    def __init__(
        self, scheduler: Any, names: Callable[[], Sequence[str]], namespace: Callable[..., str]
    ) -> None:
        self._scheduler = scheduler
        self._names = names
        self._namespace = namespace
        self._requests: list[_Asked] = []
        self._hints: list[bytes] = []
        self._gone: list[str] = []
        self._asking = False
        self._calls: set[asyncio.Future[None]] = set()
        self._turn = itertools.count()

    async def place(self, request: Request) -> Placement:
        """Where the request should run.

        Raises:
            EngineError: no answer that can be read came.
        """
        names = self._names()
        if len(names) == 1:
            return Placement(actor=names[0], matched=0, reason="only")
        namespace = self._namespace(request.cache_salt, request.images)
        message = encode_request(
            PlaceRequest(
                request.request_id, namespace, _bytes_of(tokens_of(request)), request.session
            )
        )
        answer: asyncio.Future[Placement] = asyncio.get_running_loop().create_future()
        self._requests.append(_Asked(request.request_id, message, answer))
        self._ask_soon()
        try:
            return await answer
        except asyncio.CancelledError:
            if not answer.cancelled():  # the answer came in the same turn
                self.gone(request.request_id)
            raise

    def gone(self, request_id: str) -> None:
        """The request was left early: the model actor may never have heard of it."""
        if len(self._names()) > 1:
            self._gone.append(request_id)
            self._ask_soon()

    def expect(
        self,
        prompt_ids: list[int],
        requests: int,
        *,
        at_once: int,
        own_tokens: int,
        cache_salt: str,
    ) -> Callable[[], None]:
        """See `LooksAhead.expect`."""
        check_int("requests", requests, 1, MAX_EXPECTED)
        check_int("at_once", at_once, 1, MAX_AT_ONCE)
        check_int("own_tokens", own_tokens, 0)
        if len(self._names()) == 1 or not prompt_ids:
            return lambda: None
        cohort_id = uuid.uuid4().hex
        self._hint(
            CohortHint(
                cohort_id,
                self._namespace(cache_salt),
                _bytes_of(prompt_ids),
                requests,
                at_once,
                own_tokens,
            )
        )
        return lambda: self._hint(CohortHint(cohort_id))

    def _hint(self, hint: CohortHint) -> None:
        self._hints.append(encode(hint))
        self._ask_soon()

    def _ask_soon(self) -> None:
        if not self._asking:
            self._asking = True
            independent_call(self._ask)

    def _ask(self) -> None:
        self._asking = False
        # Some may have been cancelled since.
        requests = [asked for asked in self._requests if not asked.answer.done()]
        self._requests = []
        hints, self._hints = self._hints, []
        gone, self._gone = self._gone, []
        if requests:
            call = independent_task(self._place_all(requests, hints, gone))
            self._calls.add(call)
            call.add_done_callback(self._calls.discard)
        elif ray.is_initialized():
            # Nobody waits for an answer.
            self._scheduler.place.remote([], hints, gone)

    async def _place_all(
        self,
        asked: list[_Asked],
        hints: list[bytes],
        gone: list[str],
    ) -> None:
        try:
            placements = await self._placements([a.message for a in asked], hints, gone)
        except Exception as error:  # whatever it is, nobody may wait for an answer any more
            for each in asked:
                if not each.answer.done():
                    failure = EngineError(f"the request cannot be placed: {error!r}")
                    each.answer.set_exception(failure)
            return
        for each, placement in zip(asked, placements, strict=True):
            if each.answer.done():  # cancelled meanwhile
                self.gone(each.request_id)
            else:
                each.answer.set_result(placement)

    async def _placements(
        self, requests: list[bytes], hints: list[bytes], gone: list[str]
    ) -> list[Placement]:
        try:
            return decode_placements(await self._scheduler.place.remote(requests, hints, gone))
        except RayError as error:
            # The scheduler actor restarts by itself; no request needs to wait for it.
            log.warning("the scheduler actor cannot be reached, placing in turn: %s", error)
            names = self._names()
            turns = [names[next(self._turn) % len(names)] for _ in requests]
            return [Placement(actor=name, matched=0, reason="load") for name in turns]


def _bytes_of(token_ids: list[int]) -> bytes:
    return np.array(token_ids, np.int32).tobytes()
