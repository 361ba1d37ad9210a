"""Those who send requests, and what each has used of its limits."""

from __future__ import annotations

import time
from collections.abc import Callable

from radixray.errors import RateLimitError
from radixray.serve.keys import KeyLimits

MINUTE_S = 60.0

Clock = Callable[[], float]


class Tenant:
    """A sender of requests.

    Args:
        name: of its key.
        limits: of its key.
        clock: seconds.
    """

    def __init__(self, name: str, limits: KeyLimits, clock: Clock = time.monotonic) -> None:
        self.name = name
        self._under_way = 0
        self._most = limits.max_concurrent
        self._requests = _bucket(limits.requests_per_minute, clock)
        self._tokens = _bucket(limits.tokens_per_minute, clock)

    def enter(self) -> None:
        """A request comes; `leave` must follow.

        Raises:
            RateLimitError: one too many.
        """
        if self._most is not None and self._under_way >= self._most:
            raise _limited(
                f"{self._under_way} requests of this API key are under way, of at most "
                f"{self._most} at once",
                1.0,
            )
        for bucket, what in ((self._requests, "requests"), (self._tokens, "tokens")):
            if bucket is not None and (wait := bucket.wait_for(1)) > 0:
                raise _limited(f"this API key may use {bucket.size} {what} a minute", wait)
        if self._requests is not None:
            self._requests.take(1)
        self._under_way += 1

    def leave(self) -> None:
        """A request that came is done."""
        self._under_way -= 1

    def ask(self, tokens: int) -> None:
        """Takes the tokens of a request's prompts, before any of it runs.

        Raises:
            RateLimitError: there are too few left; none are taken.
        """
        if self._tokens is None:
            return
        if (wait := self._tokens.wait_for(tokens)) > 0:
            raise _limited(
                f"this API key may use {self._tokens.size} tokens a minute, and the prompt has "
                f"{tokens}",
                wait,
            )
        self._tokens.take(tokens)

    def spend(self, tokens: int) -> None:
        """Takes tokens that were generated, even if that leaves fewer than none."""
        if self._tokens is not None:
            self._tokens.take(tokens)


class _Bucket:
    """Fills evenly, up to a minute's worth."""

    def __init__(self, size: int, clock: Clock) -> None:
        self.size = size
        self._clock = clock
        self._level = float(size)
        self._filled = clock()

    def wait_for(self, amount: int) -> float:
        """Seconds until `amount` is there; what a full bucket cannot hold waits for a full one."""
        now = self._clock()
        rate = self.size / MINUTE_S
        self._level = min(self.size, self._level + (now - self._filled) * rate)
        self._filled = now
        return max(0.0, (min(amount, self.size) - self._level) / rate)

    def take(self, amount: int) -> None:
        self._level -= amount


def _bucket(size: int | None, clock: Clock) -> _Bucket | None:
    return None if size is None else _Bucket(size, clock)


def _limited(message: str, retry_after_s: float) -> RateLimitError:
    error = RateLimitError(message)
    error.retry_after_s = retry_after_s
    return error
