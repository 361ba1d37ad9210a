"""What each process counts, as it tells it to whoever asks."""

from __future__ import annotations

import msgspec

from radixray.metrics.histogram import REQUEST_SECONDS, STEP_SECONDS, TOKENS, Histogram
from radixray.reports import EngineStats, Predictions


def _requests() -> Histogram:
    return Histogram(REQUEST_SECONDS)


def _steps() -> Histogram:
    return Histogram(STEP_SECONDS)


def _tokens() -> Histogram:
    return Histogram(TOKENS)


class EngineMetrics(msgspec.Struct, kw_only=True):
    """What an engine counts since its start, beside `EngineStats`. Times are in seconds.

    Attributes:
        prompt_tokens: of requests that have started.
        cached_tokens: of these, tokens found in the cache when their request first started.
        finished: requests that ended, by finish reason.
        refused: requests refused because too many waited.
        first_token: from a request's arrival to its first token.
        inter_token: from one token of a request to the next.
        per_output_token: the mean of that in each request that ended.
        whole: from arrival to end.
        queue: from arrival to the first start.
        prefill: from the first start to the first token.
        decode: from the first token to the last.
        inference: from the first start to the last token.
        prompt_length, uncached_length, output_length: tokens of requests that ended.
        step: times of steps, ``prefill`` where some request had more than one token to compute,
            else ``decode``.
        step_tokens: tokens that a step computed.
    """

    prompt_tokens: int = 0
    cached_tokens: int = 0
    finished: dict[str, int] = {}
    refused: int = 0
    first_token: Histogram = msgspec.field(default_factory=_requests)
    inter_token: Histogram = msgspec.field(default_factory=_steps)
    per_output_token: Histogram = msgspec.field(default_factory=_steps)
    whole: Histogram = msgspec.field(default_factory=_requests)
    queue: Histogram = msgspec.field(default_factory=_requests)
    prefill: Histogram = msgspec.field(default_factory=_requests)
    decode: Histogram = msgspec.field(default_factory=_requests)
    inference: Histogram = msgspec.field(default_factory=_requests)
    prompt_length: Histogram = msgspec.field(default_factory=_tokens)
    uncached_length: Histogram = msgspec.field(default_factory=_tokens)
    output_length: Histogram = msgspec.field(default_factory=_tokens)
    step: dict[str, Histogram] = msgspec.field(
        default_factory=lambda: {"prefill": _steps(), "decode": _steps()}
    )
    step_tokens: Histogram = msgspec.field(default_factory=_tokens)


class ActorReport(msgspec.Struct, frozen=True, kw_only=True):
    """What one model actor has to tell.

    Attributes:
        stats, engine: its counters.
        queued: sequences that wait, by priority.
        page_size: tokens a page holds.
        context_length: most tokens of one sequence.
        pages_evictable: of the tree's pages, those nobody uses.
        tokens_per_s: generated lately.
    """

    stats: EngineStats
    engine: EngineMetrics
    queued: dict[int, int]
    page_size: int
    context_length: int
    pages_evictable: int
    tokens_per_s: float = 0.0

    @property
    def pages_used(self) -> int:
        """Pages that cannot be had at once."""
        return self.stats.pages_total - self.stats.pages_free - self.pages_evictable


class SchedulerReport(msgspec.Struct, frozen=True, kw_only=True):
    """What the scheduler actor has to tell.

    Attributes:
        placements: requests it placed, by actor and reason.
        matched_tokens: prompt tokens it believed to be cached where it placed them.
        shared: counts that other processes left with it, by process; see `Measures.share`.
        predictions: what it believed to be cached beside what was found, by actor.
        restarts: how often each model actor died and was started again.
    """

    placements: dict[str, dict[str, int]] = {}
    matched_tokens: int = 0
    shared: dict[str, dict[str, int]] = {}
    predictions: dict[str, Predictions] = {}
    restarts: dict[str, int] = {}


class DeploymentReport(msgspec.Struct, frozen=True, kw_only=True):
    """All of a deployment that answered in time.

    Attributes:
        model: its name.
        actors: None where a model actor did not answer.
        scheduler: None where it did not answer.
    """

    model: str
    actors: dict[str, ActorReport | None]
    scheduler: SchedulerReport | None
