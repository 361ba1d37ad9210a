"""What is told to Ray's metrics, against a stand-in for them."""

from __future__ import annotations

import pytest

from radixray.actors import ray_metrics
from radixray.actors.ray_metrics import RayMetrics
from radixray.metrics.reports import ActorReport, EngineMetrics
from radixray.reports import EngineStats

Key = tuple[str, frozenset[tuple[str, str]]]


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> dict[Key, float]:
    """Values by name and tags."""
    found: dict[Key, float] = {}

    class Metric:
        def __init__(self, name: str, description: str, tag_keys: tuple[str, ...]) -> None:
            self._name, self._tag_keys = name, tag_keys

        def _key(self, tags: dict[str, str]) -> Key:
            assert set(tags) == set(self._tag_keys)
            return self._name, frozenset(tags.items())

    class Gauge(Metric):
        def set(self, value: float, tags: dict[str, str]) -> None:
            found[self._key(tags)] = value

    class Counter(Metric):
        def inc(self, value: float, tags: dict[str, str]) -> None:
            assert value > 0  # else Ray raises
            found[self._key(tags)] = found.get(self._key(tags), 0) + value

    monkeypatch.setattr(ray_metrics, "Gauge", Gauge)
    monkeypatch.setattr(ray_metrics, "Counter", Counter)
    return found


def test_counters_grow_and_gauges_follow(told: dict[Key, float]) -> None:
    engine = EngineMetrics()
    metrics = RayMetrics("d/model-0", "mine")
    tags = {("actor", "d/model-0"), ("model_name", "mine")}
    for round_number in (1, 2, 3):
        engine.finished["stop"] = 2 * round_number
        engine.step["decode"].observe(0.5)
        metrics.publish(
            ActorReport(
                stats=EngineStats(running=7 - round_number, generated_tokens=10 * round_number),
                engine=engine,
                queued={},
                page_size=1,
                context_length=1,
                pages_evictable=0,
            )
        )
    assert told["radixray_requests_running", frozenset(tags)] == 4
    assert told["radixray_generation_tokens", frozenset(tags)] == 30
    assert told["radixray_requests_finished", frozenset(tags | {("reason", "stop")})] == 6
    decode = frozenset(tags | {("kind", "decode")})
    assert told["radixray_step_time_seconds_sum", decode] == 1.5
    assert told["radixray_step_time_seconds_count", decode] == 3
