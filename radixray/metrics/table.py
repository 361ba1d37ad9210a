"""The one table of what is counted: our names, and those that dashboards of others expect."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Literal, NamedTuple

from radixray.metrics.histogram import Histogram
from radixray.metrics.reports import ActorReport

Value = float | Histogram
Reading = Value | Mapping[str, int] | Mapping[int, int] | Mapping[str, Histogram]
Kind = Literal["counter", "gauge", "histogram"]


class Family(NamedTuple):
    """One thing that every model actor counts.

    Attributes:
        name: ours, without a prefix; that of a counter has no ``_total``.
        help: what it is.
        read: its value in a report; several, by the value of `label`, where there is one.
        also: other projects' names of the same. ``name{label}`` has another label there.
        label: what distinguishes several values.
    """

    name: str
    kind: Kind
    help: str
    read: Callable[[ActorReport], Reading]
    also: tuple[str, ...] = ()
    label: str = ""


def _share(part: float, whole: float) -> float:
    return part / whole if whole else 0.0


FAMILIES: tuple[Family, ...] = (
    Family(
        "requests_running",
        "gauge",
        "Requests in the batch.",
        lambda r: r.stats.running,
        ("vllm:num_requests_running", "sglang:num_running_reqs"),
    ),
    Family(
        "requests_waiting",
        "gauge",
        "Requests in the queue.",
        lambda r: r.stats.waiting,
        ("vllm:num_requests_waiting", "sglang:num_queue_reqs"),
    ),
    Family(
        "queue_by_priority",
        "gauge",
        "Sequences in the queue, by priority.",
        lambda r: r.queued,
        label="priority",
    ),
    Family(
        "requests_finished",
        "counter",
        "Requests that ended, by finish reason.",
        lambda r: r.engine.finished,
        ("vllm:request_success{finished_reason}",),
        "reason",
    ),
    Family(
        "requests",
        "counter",
        "Requests that ended.",
        lambda r: sum(r.engine.finished.copy().values()),
        ("sglang:num_requests",),
    ),
    Family(
        "requests_aborted",
        "counter",
        "Requests that were aborted.",
        lambda r: r.engine.finished.get("abort", 0),
        ("sglang:num_aborted_requests",),
    ),
    Family(
        "requests_refused",
        "counter",
        "Requests refused because too many waited.",
        lambda r: r.engine.refused,
    ),
    Family(
        "retractions",
        "counter",
        "Requests pushed back into the queue for want of pages.",
        lambda r: r.stats.retractions,
        ("vllm:num_preemptions", "sglang:num_retracted_requests"),
    ),
    Family(
        "prompt_tokens",
        "counter",
        "Prompt tokens of requests that have started.",
        lambda r: r.engine.prompt_tokens,
        ("vllm:prompt_tokens", "vllm:prefix_cache_queries", "sglang:prompt_tokens"),
    ),
    Family(
        "cached_tokens",
        "counter",
        "Of these, tokens found in the cache.",
        lambda r: r.engine.cached_tokens,
        ("vllm:prefix_cache_hits", "vllm:prompt_tokens_cached", "sglang:cached_tokens"),
    ),
    Family(
        "cache_hit_rate",
        "gauge",
        "Part of the prompt tokens found in the cache since the start, 0 to 1.",
        lambda r: _share(r.engine.cached_tokens, r.engine.prompt_tokens),
        ("sglang:cache_hit_rate",),
    ),
    Family(
        "prefill_tokens",
        "counter",
        "Prompt tokens computed, those computed again after a retraction among them.",
        lambda r: r.stats.prefill_tokens,
    ),
    Family(
        "generation_tokens",
        "counter",
        "Tokens generated.",
        lambda r: r.stats.generated_tokens,
        ("vllm:generation_tokens", "sglang:generation_tokens"),
    ),
    Family(
        "jumped_tokens",
        "counter",
        "Of these, tokens that a constraint forced, taken without asking the model.",
        lambda r: r.stats.jumped_tokens,
    ),
    Family(
        "generation_tokens_per_second",
        "gauge",
        "Tokens generated in each of the last seconds.",
        lambda r: r.tokens_per_s,
        ("sglang:gen_throughput",),
    ),
    Family("pages", "gauge", "Pages of the KV pool.", lambda r: r.stats.pages_total),
    Family("pages_free", "gauge", "Pages nobody holds.", lambda r: r.stats.pages_free),
    Family("pages_tree", "gauge", "Pages of the radix tree.", lambda r: r.stats.pages_tree),
    Family("pages_active", "gauge", "Pages that requests lease.", lambda r: r.stats.pages_leased),
    Family("pages_pinned", "gauge", "Of the tree's, pages pinned.", lambda r: r.stats.pages_pinned),
    Family(
        "ledger_violations",
        "counter",
        "Faults of the page ledger that were found and mended.",
        lambda r: r.stats.ledger_violations,
    ),
    Family(
        "kv_usage",
        "gauge",
        "Part of the KV pool in use; cached prefixes nobody uses count as free. 0 to 1.",
        lambda r: _share(r.pages_used, r.stats.pages_total),
        ("vllm:kv_cache_usage_perc", "sglang:token_usage"),
    ),
    Family(
        "kv_tokens",
        "gauge",
        "Tokens whose KV is in use.",
        lambda r: r.pages_used * r.page_size,
        ("sglang:num_used_tokens", "sglang:kv_used_tokens"),
    ),
    Family(
        "kv_free_tokens",
        "gauge",
        "Tokens that fit into free pages.",
        lambda r: r.stats.pages_free * r.page_size,
        ("sglang:kv_available_tokens",),
    ),
    Family(
        "kv_evictable_tokens",
        "gauge",
        "Cached tokens that nobody uses.",
        lambda r: r.pages_evictable * r.page_size,
        ("sglang:kv_evictable_tokens",),
    ),
    Family(
        "kv_pool_tokens",
        "gauge",
        "Tokens that the KV pool holds.",
        lambda r: r.stats.pages_total * r.page_size,
        ("sglang:max_total_num_tokens",),
    ),
    Family(
        "context_length",
        "gauge",
        "Most tokens of one sequence.",
        lambda r: r.context_length,
        ("sglang:context_len",),
    ),
    Family("steps", "counter", "Steps of the engine.", lambda r: r.stats.steps),
    Family(
        "heartbeat_age_seconds",
        "gauge",
        "Time since the engine last showed life.",
        lambda r: r.stats.heartbeat_age_s,
    ),
    Family(
        "step_time_seconds",
        "histogram",
        "Time of a step, by whether some prompt was computed in it.",
        lambda r: r.engine.step,
        label="kind",
    ),
    Family(
        "step_tokens",
        "histogram",
        "Tokens that a step computed.",
        lambda r: r.engine.step_tokens,
        ("vllm:iteration_tokens_total",),
    ),
    Family(
        "time_to_first_token_seconds",
        "histogram",
        "From a request's arrival at the model actor to its first token.",
        lambda r: r.engine.first_token,
        ("vllm:time_to_first_token_seconds", "sglang:time_to_first_token_seconds"),
    ),
    Family(
        "inter_token_latency_seconds",
        "histogram",
        "From one token of a request to the next.",
        lambda r: r.engine.inter_token,
        (
            "vllm:inter_token_latency_seconds",
            "vllm:time_per_output_token_seconds",
            "sglang:inter_token_latency_seconds",
        ),
    ),
    Family(
        "request_time_per_output_token_seconds",
        "histogram",
        "The mean time between the tokens of a request that ended.",
        lambda r: r.engine.per_output_token,
        ("vllm:request_time_per_output_token_seconds",),
    ),
    Family(
        "e2e_request_latency_seconds",
        "histogram",
        "From a request's arrival at the model actor to its end.",
        lambda r: r.engine.whole,
        ("vllm:e2e_request_latency_seconds", "sglang:e2e_request_latency_seconds"),
    ),
    Family(
        "queue_time_seconds",
        "histogram",
        "From a request's arrival to its first start.",
        lambda r: r.engine.queue,
        ("vllm:request_queue_time_seconds", "sglang:queue_time_seconds"),
    ),
    Family(
        "prefill_time_seconds",
        "histogram",
        "From a request's first start to its first token.",
        lambda r: r.engine.prefill,
        ("vllm:request_prefill_time_seconds",),
    ),
    Family(
        "decode_time_seconds",
        "histogram",
        "From a request's first token to its last.",
        lambda r: r.engine.decode,
        ("vllm:request_decode_time_seconds",),
    ),
    Family(
        "inference_time_seconds",
        "histogram",
        "From a request's first start to its last token.",
        lambda r: r.engine.inference,
        ("vllm:request_inference_time_seconds",),
    ),
    Family(
        "request_prompt_tokens",
        "histogram",
        "Prompt tokens of a request that ended.",
        lambda r: r.engine.prompt_length,
        ("vllm:request_prompt_tokens", "sglang:prompt_tokens_histogram"),
    ),
    Family(
        "request_uncached_tokens",
        "histogram",
        "Of these, tokens not found in the cache.",
        lambda r: r.engine.uncached_length,
        ("sglang:uncached_prompt_tokens_histogram",),
    ),
    Family(
        "request_generation_tokens",
        "histogram",
        "Output tokens of a request that ended.",
        lambda r: r.engine.output_length,
        ("vllm:request_generation_tokens", "sglang:generation_tokens_histogram"),
    ),
)
