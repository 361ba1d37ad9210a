"""The one interface between those who send requests (programs, HTTP) and those who run them."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from typing import Protocol, runtime_checkable

from radixray.config import DeploymentConfig
from radixray.explanation import Explanation
from radixray.protocol import (
    Delta,
    GenerateRequest,
    Handle,
    ModelInfo,
    ScoreRequest,
    ScoreResult,
)
from radixray.reports import CacheTree, EngineStats, PinReport
from radixray.tokenizer.tokenizer import Tokenizer


class Generates(Protocol):
    """What runs generations."""

    def generate(self, request: GenerateRequest) -> AsyncGenerator[Delta, None]:
        """The request's Deltas as they come; the last one has a finish_reason.

        Closing the generator, or cancelling the task that reads it, aborts the request and frees
        its pages within a step.

        Raises:
            RadixRayError: the typed cause, for every failure; a Delta's `error` is never seen.
        """
        ...


class Transport(Generates, Protocol):
    """A way to reach model actors. `EngineClient` is the one over Ray."""

    @property
    def info(self) -> ModelInfo:
        """The served model."""
        ...

    @property
    def tokenizer(self) -> Tokenizer:
        """The served model's tokenizer and chat template."""
        ...

    async def score(self, request: ScoreRequest) -> ScoreResult:
        """Log-probabilities of the choices. Cancelling the task aborts the request.

        Raises:
            RadixRayError: the typed cause.
        """
        ...

    async def flush(self) -> int:
        """Empties the caches of what no request uses; pages freed.

        Raises:
            EngineDiedError: a model actor cannot be reached.
        """
        ...

    async def stats(self) -> dict[str, EngineStats]:
        """Counters of each model actor by name; one that does not answer is not `reachable`."""
        ...


class Client(Transport, Protocol):
    """A transport that one event loop has opened."""

    async def close(self) -> None:
        """Ends it; requests under way fail."""
        ...

    def abandon(self) -> None:
        """As `close`, without waiting; in the client's loop only."""
        ...


@runtime_checkable
class EndsByHandle(Protocol):
    """A transport that can end generations of other processes."""

    async def end(self, handle: Handle) -> None:
        """Ends the generations that `handle` finds, whoever waits for them.

        Each ends with what there is of it, and the finish_reason ``abort``. One that has not come
        to a model actor yet is not found.

        Raises:
            EngineDiedError: a model actor cannot be reached; those of the others have ended.
        """
        ...


@runtime_checkable
class ControlsCache(Protocol):
    """A transport that can show the caches behind it, and keep prefixes in them."""

    async def pin(
        self, prompt_ids: list[int], ttl_s: float, *, cache_salt: str = ""
    ) -> dict[str, PinReport]:
        """Keeps what is cached of a prefix, everywhere, for `ttl_s` seconds.

        Raises:
            InvalidRequestError: a bad `ttl_s`, or no room in the pin budget.
            EngineDiedError: an engine cannot be reached.
        """
        ...

    async def cache_tree(self, limit: int = 100) -> dict[str, CacheTree]:
        """What each engine has cached, at most `limit` nodes each; raises EngineDiedError."""
        ...


class Place(Protocol):
    """Where programs run.

    Attributes:
        config: of the deployment on Ray that it is, or None.
        identity: differs from that of every other place.
        owned: whether this process started it.
    """

    @property
    def config(self) -> DeploymentConfig | None: ...

    @property
    def identity(self) -> str: ...

    @property
    def owned(self) -> bool: ...

    async def connect(self) -> Client:
        """A transport for the running event loop.

        Raises:
            EngineDiedError: it cannot be reached.
        """
        ...

    def shutdown(self) -> None:
        """Stops what this process started of it."""
        ...


@runtime_checkable
class Explains(Protocol):
    """A transport to engines that remember what became of requests."""

    async def explain(self, request_id: str) -> Explanation:
        """Why one of the latest requests went where it went, and found what it found.

        Raises:
            InvalidRequestError: nothing is known of it; param ``request_id``.
            EngineDiedError: nobody can be asked.
        """
        ...


@runtime_checkable
class LooksAhead(Protocol):
    """A transport to several engines, which may be told of requests to come."""

    def expect(
        self,
        prompt_ids: list[int],
        requests: int,
        *,
        at_once: int,
        own_tokens: int = 0,
        cache_salt: str = "",
    ) -> Callable[[], None]:
        """Requests that begin with `prompt_ids` will come; places are chosen, and kept, for them.

        A hint: it binds nobody, and what does not come is forgotten after a while.

        Args:
            requests: how many.
            at_once: most of them under way at a time.
            own_tokens: of each prompt, beyond `prompt_ids`.
            cache_salt: of the requests.

        Returns:
            What is to be called when no more of them will come.
        """
        ...
