"""Metrics as Prometheus's text format, version 0.0.4."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import accumulate

from radixray.metrics.histogram import Histogram
from radixray.metrics.reports import ActorReport, DeploymentReport
from radixray.metrics.table import FAMILIES, Family, Kind, Value

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

_OURS = "radixray:"

Labels = Mapping[str, str]
Series = list[tuple[Labels, Value]]


def render(report: DeploymentReport) -> str:
    """The whole page."""
    lines: list[str] = []
    answered = {name: each for name, each in report.actors.items() if each is not None}
    for family in FAMILIES:
        for name, label in _names(family):
            series = _series(family, label, report.model, answered)
            lines += _family(name, family.kind, family.help, series)
    lines += _deployment(report)
    return "\n".join(lines) + "\n"


def _names(family: Family) -> Iterator[tuple[str, str]]:
    """Each name of a family, and the label that distinguishes its values there."""
    yield _OURS + family.name, family.label
    for other in family.also:
        name, _, label = other.rstrip("}").partition("{")
        yield name, label or family.label


def _series(family: Family, label: str, model: str, reports: Mapping[str, ActorReport]) -> Series:
    found: Series = []
    for actor, report in reports.items():
        labels = {"model_name": model, "actor": actor}
        value = family.read(report)
        if isinstance(value, Mapping):
            found += [({**labels, label: str(key)}, each) for key, each in value.items()]
        else:
            found.append((labels, value))
    return found


def _deployment(report: DeploymentReport) -> Iterator[str]:
    """What belongs to no model actor."""
    model = {"model_name": report.model}
    up: Series = [
        ({**model, "actor": name}, float(each is not None)) for name, each in report.actors.items()
    ]
    yield from _family(f"{_OURS}actor_up", "gauge", "Whether the model actor answered.", up)
    missing = sum(each is None for each in report.actors.values())
    text = "Model actors that did not answer, and are left out here."
    yield from _family(f"{_OURS}actors_missing", "gauge", text, [(model, missing)])
    scheduler = report.scheduler
    text = "Whether the scheduler actor answered."
    answered = float(scheduler is not None)
    yield from _family(f"{_OURS}scheduler_up", "gauge", text, [(model, answered)])
    if scheduler is None:
        return
    placements: Series = [
        ({**model, "actor": actor, "reason": reason}, count)
        for actor, reasons in scheduler.placements.items()
        for reason, count in reasons.items()
    ]
    text = "Requests that the scheduler actor placed; a lone model actor gets all unasked."
    yield from _family(f"{_OURS}placements", "counter", text, placements)
    text = "Prompt tokens believed to be cached where their request was placed."
    matched: Series = [(model, scheduler.matched_tokens)]
    yield from _family(f"{_OURS}placement_matched_tokens", "counter", text, matched)
    for name, text in (
        ("requests", "Requests that told what they found where they were placed."),
        ("predicted_tokens", "Of their prompts, tokens believed to be cached there."),
        ("found_tokens", "Of their prompts, tokens that were cached there."),
    ):
        series: Series = [
            ({**model, "actor": actor}, getattr(counts, name))
            for actor, counts in scheduler.predictions.items()
        ]
        yield from _family(f"{_OURS}prediction_{name}", "counter", text, series)
    text = "Of these requests, those that found at least a page less, or more, than was believed."
    wrong: Series = [
        ({**model, "actor": actor, "found": found}, count)
        for actor, counts in scheduler.predictions.items()
        for found, count in (("less", counts.too_many), ("more", counts.too_few))
    ]
    yield from _family(f"{_OURS}mispredictions", "counter", text, wrong)
    text = "Model actors that died and were started again."
    restarts: Series = [
        ({**model, "actor": actor}, count) for actor, count in scheduler.restarts.items()
    ]
    yield from _family(f"{_OURS}actor_restarts", "counter", text, restarts)
    text = "Answers over HTTP, of all ingress processes."
    answers = _http(scheduler.shared)
    yield from _family(f"{_OURS}http_requests", "counter", text, answers)


def _http(shared: Mapping[str, Mapping[str, int]]) -> Series:
    summed: dict[str, int] = {}
    for counts in shared.values():
        for key, count in counts.items():
            summed[key] = summed.get(key, 0) + count
    return [
        (dict(zip(("method", "route", "status"), key.split(" "), strict=True)), count)
        for key, count in sorted(summed.items())
    ]


def _family(name: str, kind: Kind, help_text: str, series: Series) -> Iterator[str]:
    name = f"{name}_total" if kind == "counter" else name
    yield f"# HELP {name} {help_text}"
    yield f"# TYPE {name} {kind}"
    for labels, value in series:
        if isinstance(value, Histogram):
            yield from _histogram(name, labels, value)
        else:
            yield _sample(name, labels, value)


def _histogram(name: str, labels: Labels, histogram: Histogram) -> Iterator[str]:
    bounds = [*(repr(float(bound)) for bound in histogram.bounds), "+Inf"]
    below = list(accumulate(histogram.counts))
    for bound, count in zip(bounds, below, strict=True):
        yield _sample(f"{name}_bucket", {**labels, "le": bound}, count)
    yield _sample(f"{name}_sum", labels, histogram.total)
    yield _sample(f"{name}_count", labels, below[-1])


def _sample(name: str, labels: Labels, value: float) -> str:
    inside = ",".join(f'{key}="{_escaped(text)}"' for key, text in labels.items())
    return f"{name}{{{inside}}} {float(value)!r}"


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')
