"""What serving.py has measured, as medians, verdicts, a table, a file and a plot."""

from __future__ import annotations

import json
import os
import platform
import statistics
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

from rich.table import Table
from workloads import WORKLOADS

Numbers = dict[str, Any]

FEW_SHOT_CACHE = 5.0
"""How many times as fast few-shot must be with our cache as without."""


def medians(rounds: list[Numbers]) -> list[Numbers]:
    """For each load and system, the median and the range of its rounds."""
    rows: list[Numbers] = []
    for workload in WORKLOADS.values():
        of_load = [done for done in rounds if done["workload"] == workload.name]
        for system in dict.fromkeys(sorted(done["system"] for done in of_load)):
            own = [done for done in of_load if done["system"] == system]
            rows.append({"workload": workload.name, "system": system} | _summary(own))
    # In the order in which they were first measured, whatever their names.
    order = list(dict.fromkeys(done["system"] for done in rounds))
    loads = list(WORKLOADS)
    return sorted(rows, key=lambda r: (loads.index(r["workload"]), order.index(r["system"])))


def _summary(own: list[Numbers]) -> Numbers:
    if any("refused" in done for done in own):
        return {"refused": True}
    bad: dict[str, int] = {}
    for done in own:
        for reason, count in done["bad"].items():
            bad[reason] = bad.get(reason, 0) + count
    summary: Numbers = {
        name: _spread([done[name] for done in own])
        for name in ("tokens_per_s", "requests_per_s", "p50", "p99", "seconds")
    }
    prompt = sum(done["prompt_tokens"] for done in own)
    cached = sum(done["cached_tokens"] for done in own) / prompt if prompt else 0.0
    return summary | {"cached": cached, "bad": bad}


def verdicts(rounds: list[Numbers]) -> list[Numbers]:
    """What is required, and what came out: medians over the rounds of ratios within a round."""
    checks: list[Numbers] = []
    for workload in WORKLOADS.values():
        unit, name = workload.unit, workload.name
        checks += _check(rounds, name, unit, "peer", workload.required)
        # Of latencies the ratio is turned round: more is better here, too.
        checks += _check(rounds, name, "p99", "peer", 1.0, lambda ours, other: other / ours)
        if name == "fewshot":
            checks += _check(rounds, name, unit, "radixray-off", FEW_SHOT_CACHE)
    return checks


def _check(
    rounds: list[Numbers],
    workload: str,
    number: str,
    other: str,
    required: float,
    ratio: Callable[[float, float], float] = lambda ours, other: ours / other,
) -> list[Numbers]:
    values = {
        (done["system"], done["round"]): done[number]
        for done in rounds
        if done["workload"] == workload and "refused" not in done
    }
    ratios = [
        ratio(ours, values[other, round_])
        for (system, round_), ours in values.items()
        if system == "radixray" and (other, round_) in values
    ]
    if not ratios:
        return []
    spread = _spread(ratios)
    return [
        {
            "workload": workload,
            "number": number,
            "other": other,
            "required": required,
            "ratio": spread,
            "met": spread["median"] >= required,
        }
    ]


def _spread(values: list[float]) -> Numbers:
    return {"median": statistics.median(values), "min": min(values), "max": max(values)}


def table(rows: list[Numbers], checks: list[Numbers], names: dict[str, str]) -> Table:
    """Everything at one look."""
    shown = Table(
        title="medians (least to most) over the rounds",
        caption="RadixRay is: its rate over this row's, within a round; "
        "p99: this row's over RadixRay's\nbad: an answer of another status or length, or JSON "
        "that the schema does not allow",
        padding=(0, 1, 0, 0),
    )
    for column in ("load", "system"):
        shown.add_column(column, no_wrap=True)
    for column in ("tokens/s", "requests/s", "p50 s", "p99 s", "cached", "bad"):
        shown.add_column(column, justify="right", no_wrap=True)
    shown.add_column("RadixRay is", no_wrap=True)
    last = ""
    for row in rows:
        if last not in ("", row["workload"]):
            shown.add_section()
        load = WORKLOADS[row["workload"]].title if row["workload"] != last else ""
        last = row["workload"]
        name = names[row["system"]]
        if "refused" in row:
            shown.add_row(load, name, *[""] * 6, "refused")
            continue
        shown.add_row(
            load,
            name,
            _range(row["tokens_per_s"], 0),
            _range(row["requests_per_s"], 2),
            _range(row["p50"], 2),
            _range(row["p99"], 2),
            f"{row['cached']:.0%}",
            str(sum(row["bad"].values()) or ""),
            _verdict(row, checks),
        )
    return shown


def _verdict(row: Numbers, checks: list[Numbers]) -> str:
    parts: list[str] = []
    for check in checks:
        if (check["workload"], check["other"]) == (row["workload"], row["system"]):
            what = "p99 " if check["number"] == "p99" else ""
            mark = "[green]met[/]" if check["met"] else f"[red]want {check['required']:g}x[/]"
            parts.append(f"{what}{_range(check['ratio'], 2, 'x')} {mark}")
    return "\n".join(parts)


def _range(spread: Numbers, digits: int, unit: str = "") -> str:
    middle, low, high = (f"{spread[name]:.{digits}f}" for name in ("median", "min", "max"))
    return f"{middle}{unit}" if low == high else f"{middle}{unit} ({low}-{high})"


def plot(path: Path, rows: list[Numbers], names: dict[str, str]) -> None:
    """Bars of each load's own rate, over those of the peer with its cache on if it is there."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    systems = list(dict.fromkeys(row["system"] for row in rows))
    loads = list(dict.fromkeys(row["workload"] for row in rows))
    rates = {
        (row["workload"], row["system"]): row[WORKLOADS[row["workload"]].unit]
        for row in rows
        if "refused" not in row
    }
    base = "peer" if "peer" in systems else systems[0]
    figure, axes = pyplot.subplots(figsize=(1.6 * len(loads) + 3, 4.5))
    width = 0.8 / len(systems)
    for position, system in enumerate(systems):
        for place, load in enumerate(loads):
            rate, reference = rates.get((load, system)), rates.get((load, base))
            if rate is None or reference is None:
                continue
            height, low, high = (
                rate[name] / reference["median"] for name in ("median", "min", "max")
            )
            axes.bar(
                place + (position - (len(systems) - 1) / 2) * width,
                height,
                width,
                yerr=[[height - low], [high - height]],
                color=f"C{position}",
                label=names[system] if place == 0 else None,
            )
    axes.axhline(1.0, color="black", linewidth=0.5)
    axes.set_xticks(range(len(loads)), [WORKLOADS[load].title for load in loads])
    axes.set_ylabel(f"rate, {names[base]} = 1")
    axes.legend()
    figure.tight_layout()
    figure.savefig(path, dpi=150)


def save(path: Path, content: Numbers) -> None:
    """Writes `content` as JSON."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content, indent=2) + "\n")


def machine() -> Numbers:
    """What the measurement ran on."""
    packages = ("radixray", "ray", "torch")
    return {
        "cpu": cpu_name(),
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "load_average": os.getloadavg(),
    } | {name: version(name) for name in packages}


def cpu_name() -> str:
    """The processor's name, as the system gives it."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.machine()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()
