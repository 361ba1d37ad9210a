"""Where the time of a decode step goes: the model, and everything around it.

    python benchmarks/step.py

Requests of 950 tokens, 850 of them shared, decode together. What runs around the model is what
running it in another thread could hide at best.
"""

from __future__ import annotations

import random
import time
from collections import defaultdict
from collections.abc import Callable
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

import radixray.engine.engine as engine_module
from radixray.config import EngineConfig
from radixray.engine.build import build_engine
from radixray.engine.engine import Engine
from radixray.engine.generate import GenerateTask
from radixray.protocol import GenerateRequest, SamplingParams

PARTS = {"model": "the model", "plan": "planning", "sample": "sampling", "text": "text, stops"}


class Clock:
    """Wraps functions and adds up the time they take."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = defaultdict(float)

    def wrap(self, owner: Any, name: str, part: str) -> None:
        """Times each call of ``owner.name`` as `part`."""
        function: Callable[..., Any] = getattr(owner, name)

        def timed(*args: Any, **kwargs: Any) -> Any:
            started = time.perf_counter()
            try:
                return function(*args, **kwargs)
            finally:
                self.seconds[part] += time.perf_counter() - started

        setattr(owner, name, timed)


def measure(engine: Engine, clock: Clock, batch: int, steps: int) -> dict[str, float]:
    """Milliseconds a step, by part and in all."""
    rng = random.Random(0)
    shared = [rng.randrange(1000, 40_000) for _ in range(850)]
    sampling = SamplingParams(max_tokens=steps + 60, temperature=0, ignore_eos=True)
    for number in range(batch):
        own = [rng.randrange(1000, 40_000) for _ in range(100)]
        engine.add(
            GenerateRequest(
                request_id=f"{batch}-{number}", prompt_ids=shared + own, sampling=sampling
            )
        )
    while any(s.computed < 950 for s in [*engine._waiting, *engine._running.values()]):
        engine.step()
    clock.seconds.clear()
    started = time.perf_counter()
    for _ in range(steps):
        engine.step()
    whole = time.perf_counter() - started
    found = {part: clock.seconds[part] / steps * 1000 for part in PARTS}
    found["all"] = whole / steps * 1000
    while engine.has_work:
        engine.step()
    return found


def main(
    dtype: Annotated[str, typer.Option(help="bfloat16 or float32.")] = "bfloat16",
    steps: Annotated[int, typer.Option(help="Steps to measure.")] = 40,
) -> None:
    """Measure and print."""
    engine = build_engine(EngineConfig(dtype=dtype, max_total_tokens=60_000, overlap=False))  # type: ignore[arg-type]
    clock = Clock()
    clock.wrap(engine._model, "forward", "model")
    clock.wrap(engine_module, "plan_batch", "plan")
    clock.wrap(engine_module, "sample", "sample")
    clock.wrap(GenerateTask, "accept", "text")
    table = Table(title=f"A decode step, ms, {dtype}")
    for column in ("batch", "step", *PARTS.values(), "the rest", "tokens/s", "not the model"):
        table.add_column(column, justify="right")
    for batch in (1, 8, 32, 64):
        found = measure(engine, clock, batch, steps)
        known = [found[part] for part in PARTS]
        table.add_row(
            str(batch),
            f"{found['all']:.1f}",
            *(f"{value:.2f}" for value in known),
            f"{found['all'] - sum(known):.2f}",
            f"{batch / found['all'] * 1000:.0f}",
            f"{1 - found['model'] / found['all']:.1%}",
        )
    Console().print(table)


if __name__ == "__main__":
    typer.run(main)
