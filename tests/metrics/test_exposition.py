"""The page of metrics, as Prometheus's own parser reads it."""

from __future__ import annotations

import re

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client import Histogram as PrometheusHistogram
from prometheus_client.parser import text_string_to_metric_families

from radixray.metrics.exposition import render
from radixray.metrics.histogram import TOKENS, Histogram
from radixray.metrics.reports import (
    ActorReport,
    DeploymentReport,
    EngineMetrics,
    SchedulerReport,
)
from radixray.metrics.table import FAMILIES
from radixray.reports import EngineStats, Predictions

Samples = dict[tuple[str, frozenset[tuple[str, str]]], float]

WANTED = set(
    """
vllm:num_requests_running vllm:num_requests_waiting vllm:kv_cache_usage_perc
vllm:prefix_cache_queries_total vllm:prefix_cache_hits_total vllm:prompt_tokens_total
vllm:generation_tokens_total vllm:request_success_total vllm:num_preemptions_total
vllm:time_to_first_token_seconds vllm:inter_token_latency_seconds
vllm:time_per_output_token_seconds vllm:request_time_per_output_token_seconds
vllm:e2e_request_latency_seconds vllm:request_queue_time_seconds
vllm:request_prefill_time_seconds vllm:request_decode_time_seconds
vllm:request_inference_time_seconds vllm:request_prompt_tokens vllm:request_generation_tokens
vllm:iteration_tokens_total
sglang:num_running_reqs sglang:num_queue_reqs sglang:token_usage sglang:num_used_tokens
sglang:cache_hit_rate sglang:gen_throughput sglang:prompt_tokens_total
sglang:generation_tokens_total sglang:cached_tokens_total sglang:num_requests_total
sglang:num_aborted_requests_total sglang:num_retracted_requests_total
sglang:time_to_first_token_seconds sglang:inter_token_latency_seconds
sglang:e2e_request_latency_seconds sglang:queue_time_seconds sglang:max_total_num_tokens
""".split()  # noqa: SIM905
)
"""As vLLM and SGLang write them; each is in one of the dashboards they ship, or its docs."""


def report() -> ActorReport:
    engine = EngineMetrics(
        prompt_tokens=400, cached_tokens=100, finished={"stop": 4, "length": 1, "abort": 2}
    )
    for value in (0.004, 0.005, 0.3, 7000.0):
        engine.first_token.observe(value)
    engine.inter_token.observe(0.02, 7)
    engine.step["decode"].observe(0.5)
    stats = EngineStats(
        running=3, waiting=5, pages_total=64, pages_free=10, pages_tree=40, pages_leased=14
    )
    return ActorReport(
        stats=stats,
        engine=engine,
        queued={0: 4, -2: 1},
        page_size=16,
        context_length=2048,
        pages_evictable=22,
        tokens_per_s=12.5,
    )


def samples(page: str) -> Samples:
    found: Samples = {}
    for family in text_string_to_metric_families(page):
        for sample in family.samples:
            key = (sample.name, frozenset(sample.labels.items()))
            assert key not in found, key
            found[key] = sample.value
    return found


@pytest.fixture
def page() -> str:
    scheduler = SchedulerReport(
        placements={"d/model-0": {"prefix": 6, "load": 1}},
        matched_tokens=900,
        predictions={
            "d/model-0": Predictions(
                requests=6, predicted_tokens=880, found_tokens=700, too_many=2, too_few=1
            )
        },
        shared={"a": {"GET /metrics 200": 2}, "b": {"GET /metrics 200": 3, "POST other 404": 1}},
    )
    actors = {"d/model-0": report(), 'd"\\\n/model-1': None}
    return render(DeploymentReport(model="mine", actors=actors, scheduler=scheduler))


def test_values(page: str) -> None:
    found = samples(page)

    def value(name: str, **labels: str) -> float:
        return found[name, frozenset({"model_name": "mine", **labels}.items())]

    one = {"actor": "d/model-0"}
    assert value("radixray:requests_running", **one) == 3
    assert value("sglang:num_queue_reqs", **one) == value("vllm:num_requests_waiting", **one) == 5
    assert value("radixray:queue_by_priority", priority="-2", **one) == 1
    assert value("vllm:request_success_total", finished_reason="length", **one) == 1
    assert value("radixray:requests_finished_total", reason="abort", **one) == 2
    assert value("sglang:num_requests_total", **one) == 7
    assert value("radixray:cache_hit_rate", **one) == 0.25
    # 64 pages: 10 are free, 22 could be.
    assert value("vllm:kv_cache_usage_perc", **one) == 0.5
    assert value("sglang:num_used_tokens", **one) == 512
    assert value("vllm:inter_token_latency_seconds_sum", **one) == pytest.approx(0.14)
    assert value("vllm:inter_token_latency_seconds_count", **one) == 7
    assert value("radixray:step_time_seconds_bucket", kind="decode", le="0.3", **one) == 0
    assert value("radixray:step_time_seconds_bucket", kind="decode", le="0.5", **one) == 1
    assert value("radixray:actor_up", **one) == 1
    assert value("radixray:actor_up", actor='d"\\\n/model-1') == 0
    assert value("radixray:actors_missing") == 1
    assert value("radixray:placements_total", reason="prefix", **one) == 6
    assert value("radixray:placement_matched_tokens_total") == 900
    assert value("radixray:prediction_requests_total", **one) == 6
    assert value("radixray:prediction_predicted_tokens_total", **one) == 880
    assert value("radixray:prediction_found_tokens_total", **one) == 700
    assert value("radixray:mispredictions_total", found="less", **one) == 2
    assert value("radixray:mispredictions_total", found="more", **one) == 1
    http = frozenset({"method": "GET", "route": "/metrics", "status": "200"}.items())
    assert found["radixray:http_requests_total", http] == 5


def test_every_name_once_and_as_others_have_it(page: str) -> None:
    declared = re.findall(r"^# TYPE (\S+) (\S+)$", page, re.MULTILINE)
    names = [name for name, _ in declared]
    assert len(set(names)) == len(names)
    assert not WANTED - set(names)
    for name, kind in declared:
        assert kind != "counter" or name.endswith("_total")
        assert re.fullmatch(r"(radixray|vllm|sglang):[a-z0-9_]+", name)


def test_histograms_are_prometheus_own(page: str) -> None:
    """Buckets, sum and count equal those of its client library, fed with the same values."""
    registry = CollectorRegistry()
    theirs = PrometheusHistogram("h", "", buckets=TOKENS, registry=registry)
    ours = Histogram(TOKENS)
    for value in (0, 1, 1.5, 2, 3, 1000, 131_072, 131_073, 1e9):
        theirs.observe(value)
        ours.observe(value)
    expected = [
        s for s in samples(generate_latest(registry).decode()).items() if "created" not in s[0][0]
    ]
    engine = EngineMetrics(step_tokens=ours)
    actor = ActorReport(
        stats=EngineStats(),
        engine=engine,
        queued={},
        page_size=1,
        context_length=1,
        pages_evictable=0,
    )
    text = render(DeploymentReport(model="m", actors={"a": actor}, scheduler=None))
    got = samples(text)
    for (name, labels), value in expected:
        ours_name = name.replace("h_", "radixray:step_tokens_", 1)
        assert got[ours_name, labels | {("model_name", "m"), ("actor", "a")}] == value
    assert len(expected) == len(TOKENS) + 3


def test_an_engine_that_did_nothing() -> None:
    actor = ActorReport(
        stats=EngineStats(),
        engine=EngineMetrics(),
        queued={},
        page_size=1,
        context_length=1,
        pages_evictable=0,
    )
    found = samples(render(DeploymentReport(model="m", actors={"a": actor}, scheduler=None)))
    assert found["radixray:cache_hit_rate", frozenset({("model_name", "m"), ("actor", "a")})] == 0


def test_how_often_actors_were_started_again() -> None:
    """Told by the scheduler actor: one that dies again and again cannot."""
    scheduler = SchedulerReport(restarts={"a": 0, "b": 3})
    report = DeploymentReport(model="m", actors={"a": None, "b": None}, scheduler=scheduler)
    found = samples(render(report))
    for actor, count in (("a", 0), ("b", 3)):
        labels = frozenset({("model_name", "m"), ("actor", actor)})
        assert found["radixray:actor_restarts_total", labels] == count


def test_counts_of_one_engine_are_not_those_of_another() -> None:
    first, second = EngineMetrics(), EngineMetrics()
    first.whole.observe(1.0)
    first.step["decode"].observe(1.0)
    first.finished["stop"] = 1
    assert second == EngineMetrics()
    assert first.queue.counts is not first.whole.counts


def test_the_table_says_what_everything_is() -> None:
    for family in FAMILIES:
        assert family.help.endswith(".")
        assert not family.name.endswith("_total")
