"""Carrying a request over the death of its model actor: no token lost, repeated or changed.

The caller's side keeps what it was given. When the actor dies, another one gets the request with
the tokens that came so far and goes on behind them; sampling is keyed on (seed, position), so what
follows is what would have followed. The request may also be what the actor died of; so it runs
alone until it has a new token (`radixray.scheduler.isolation`), and if actors die with nothing else
in their batch, it is given up.
"""

from __future__ import annotations

import asyncio
import random
import time

import msgspec

from radixray.config import DeploymentConfig
from radixray.errors import (
    DeadlineExceededError,
    EngineDiedError,
    HandedOverError,
    OverloadedError,
    PoisonedRequestError,
    RadixRayError,
)
from radixray.protocol import MAX_SEED, Delta, Emitted, GenerateRequest, Request

FIRST_PAUSE_S = 0.05
LONGEST_PAUSE_S = 2.0


class Replay:
    """One request, from its first attempt to its last Delta.

    Args:
        config: of the deployment, with its limits.
    """

    def __init__(self, request: Request, config: DeploymentConfig) -> None:
        self._request = _with_seed(request)
        self._config = config
        self._began = time.monotonic()
        self._token_ids: list[int] = []
        self._text_length = 0
        self._cached = self._jumped = 0
        self._deaths = self._deaths_alone = self._moves = 0
        self._began_alone = False
        self._last_progress = self._began
        self._pause_s = 0.0

    @property
    def index(self) -> int:
        """Output tokens that the caller has."""
        return len(self._token_ids)

    def request(self) -> Request:
        """What to send now: the request, from where the caller has it.

        Raises:
            DeadlineExceededError: its time is over.
        """
        request = msgspec.structs.replace(self._request, attempt=self._deaths)
        if not isinstance(request, GenerateRequest) or not (self._deaths or self._moves):
            return request
        changes: dict[str, object] = {}
        if self._token_ids:
            changes["emitted"] = Emitted(
                token_ids=self._token_ids,
                text_length=self._text_length,
                cached=self._cached,
                jumped=self._jumped,
            )
        if request.timeout_s is not None:
            changes["timeout_s"] = left = request.timeout_s - (time.monotonic() - self._began)
            if left <= 0:
                raise DeadlineExceededError(
                    f"request {request.request_id} did not finish within timeout_s="
                    f"{request.timeout_s}, in which {self._deaths} model actors died",
                    param="timeout_s",
                )
        return msgspec.structs.replace(request, **changes)

    def take(self, delta: Delta) -> bool:
        """Notes what came; False where it is only a sign that an attempt has begun."""
        self._began_alone = self._deaths > 0
        if not (delta.token_ids or delta.text or delta.finish_reason):
            return not self._deaths
        if delta.token_ids:
            self._began_alone = False
            self._deaths_alone = 0
            self._last_progress = time.monotonic()
            self._pause_s = 0.0
        self._token_ids += delta.token_ids
        self._text_length += len(delta.text)
        self._jumped += delta.jumped
        if delta.usage is not None:
            self._cached = delta.usage.cached
        return True

    async def survive(self, error: EngineDiedError | OverloadedError) -> None:
        """Returns when it is time for the next attempt.

        Raises:
            PoisonedRequestError: its attempts end in deaths.
            RadixRayError: `error`, where there are to be no more attempts.
        """
        if isinstance(error, HandedOverError):
            self._moves += 1  # nobody died of it, and nobody's limit is for this
        elif isinstance(error, EngineDiedError):
            self._deaths += 1
            self._deaths_alone += self._began_alone
            self._began_alone = False
        elif not (self._deaths or self._moves):
            raise error
        waited = time.monotonic() - self._last_progress
        if self._deaths_alone >= self._config.poisoned_after:
            raise PoisonedRequestError(
                f"{self._deaths_alone} model actors in a row died with nothing in their batch but "
                f"request {self._request.request_id}; it is not tried again "
                f"(poisoned_after={self._config.poisoned_after})"
            ) from error
        if self._deaths > self._config.max_replays or waited > self._config.replay_timeout_s:
            raise self._given_up(error, waited) from error
        if self._deaths + self._moves > 1 or isinstance(error, OverloadedError):
            self._pause_s = min(LONGEST_PAUSE_S, 2 * self._pause_s or FIRST_PAUSE_S)
            # Those that died together are not to come back together.
            await asyncio.sleep(self._pause_s * random.uniform(0.5, 1.5))

    def _given_up(self, error: RadixRayError, waited: float) -> RadixRayError:
        config = self._config
        if not config.max_replays:
            return error
        limit = (
            f"max_replays={config.max_replays}"
            if self._deaths > config.max_replays
            else f"replay_timeout_s={config.replay_timeout_s:g}"
        )
        return EngineDiedError(
            f"request {self._request.request_id} was tried {self._deaths} times, without a token "
            f"in {waited:.1f} s; the limit is {limit}. At last: {error.message}"
        )


def tokens_of(request: Request) -> list[int]:
    """The tokens to be found in a cache, or computed, before anything new."""
    if isinstance(request, GenerateRequest) and request.emitted is not None:
        return request.prompt_ids + request.emitted.token_ids
    return request.prompt_ids


def _with_seed(request: Request) -> Request:
    # Another actor would draw another one.
    if isinstance(request, GenerateRequest) and request.sampling.seed is None:
        sampling = msgspec.structs.replace(request.sampling, seed=random.randint(0, MAX_SEED))
        return msgspec.structs.replace(request, sampling=sampling)
    return request
