"""What an engine counts, to Ray's own metrics, which its dashboard shows."""

from __future__ import annotations

import itertools
import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping

from ray.util.metrics import Counter, Gauge

from radixray.metrics.histogram import Histogram
from radixray.metrics.reports import ActorReport
from radixray.metrics.table import FAMILIES, Family

EVERY_S = 5.0

log = logging.getLogger("radixray")


class RayMetrics:
    """Publishes reports of one model actor, as ``radixray_`` and the family's name.

    Of a histogram Ray gets sum and count: it takes values one by one only.
    """

    def __init__(self, actor: str, model: str) -> None:
        self._tags = {"actor": actor, "model_name": model}
        self._metrics: dict[str, Counter | Gauge] = {}
        self._told: dict[tuple[str, str], float] = {}

    def publish(self, report: ActorReport) -> None:
        """Tells Ray of `report`."""
        for family in FAMILIES:
            for name, value, key in _values(family, report):
                tags = self._tags | ({family.label: key} if family.label else {})
                metric = self._metrics.get(name)
                if metric is None:
                    make = Gauge if family.kind == "gauge" else Counter
                    metric = make(f"radixray_{name}", family.help, tuple(tags))
                    self._metrics[name] = metric
                if isinstance(metric, Gauge):
                    metric.set(value, tags)
                elif (more := value - self._told.get((name, key), 0)) > 0:
                    metric.inc(more, tags)
                    self._told[name, key] = value


class Publisher:
    """A thread that tells Ray every few seconds, and knows how fast tokens came meanwhile.

    Attributes:
        tokens_per_s: generated lately.
    """

    def __init__(self, report: Callable[[], ActorReport], metrics: RayMetrics) -> None:
        self.tokens_per_s = 0.0
        self._report = report
        self._metrics = metrics
        threading.Thread(target=self._run, name="radixray-metrics", daemon=True).start()

    def _run(self) -> None:
        then, tokens = time.monotonic(), 0
        for failures in itertools.count():
            time.sleep(EVERY_S)
            try:
                report = self._report()
                now = time.monotonic()
                self.tokens_per_s = (report.stats.generated_tokens - tokens) / (now - then)
                then, tokens = now, report.stats.generated_tokens
                self._metrics.publish(report)
            except Exception:  # a fault of Ray's metrics must not be one of the actor
                log.log(logging.DEBUG if failures else logging.WARNING, "no metrics", exc_info=True)


def _values(family: Family, report: ActorReport) -> Iterator[tuple[str, float, str]]:
    """Names, values, and values of the family's label."""
    found = family.read(report)
    # A list at once: the engine goes on counting.
    each = list(found.items()) if isinstance(found, Mapping) else [("", found)]
    for key, value in each:
        if isinstance(value, Histogram):
            yield f"{family.name}_sum", value.total, str(key)
            yield f"{family.name}_count", value.count, str(key)
        else:
            yield family.name, value, str(key)
