"""The one interface between those who send requests (programs, HTTP) and those who run them."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from typing import Protocol, runtime_checkable

from radixray.protocol import Delta, GenerateRequest, ModelInfo, ScoreRequest, ScoreResult
from radixray.reports import EngineStats
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
