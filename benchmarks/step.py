"""Where the time of decode steps goes: a table of its parts, and a flame graph of Python's stacks.

    python benchmarks/step.py [--batches 1,8,32,64] [--kernels native|numba|torch]

Requests of 950 tokens, 850 of them shared, decode together. Everything but the model is what
running it in another thread could hide at best. The graph, of the last batch, goes to
``benchmarks/results/``.
"""

from __future__ import annotations

import os
import random
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

os.environ.setdefault("GOMP_SPINCOUNT", "2000")  # as in a model actor

import numpy as np
import typer
from flame import Sampler, flame_graph
from rich.console import Console
from rich.table import Table

import radixray.engine.engine as engine_module
from radixray.config import Dtype, EngineConfig
from radixray.engine.build import build_engine
from radixray.engine.engine import Engine
from radixray.engine.generate import GenerateTask
from radixray.kernels.cpu.linear import PackedLinear
from radixray.kernels.cpu.native_layers import NativeLayers
from radixray.kernels.cpu.select import VARIABLE
from radixray.protocol import GenerateRequest, SamplingParams

RESULTS = Path(__file__).parent / "results"

KERNELS = {
    "linear": "linear layers",
    "head": "head",
    "attention": "attention",
    "rows": "norms, rotary, SwiGLU",
    "prepare": "cutting the work",
    "glue": "rest of the model",
}
AROUND = {
    "plan": "planning",
    "reserve": "pages",
    "flatten": "flattening",
    "sample": "sampling",
    "text": "text, stops",
    "other": "other",
}


class Clock:
    """Wraps functions and adds up the time they take, less that of wrapped ones they call."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = defaultdict(float)
        self._inner = [0.0]

    def wrap(self, owner: Any, name: str, part: str | Callable[..., str]) -> None:
        """Times each call of ``owner.name`` as `part`, or as what that says of the arguments."""
        function: Callable[..., Any] = getattr(owner, name)

        def timed(*args: Any, **kwargs: Any) -> Any:
            self._inner.append(0.0)
            started = time.perf_counter()
            try:
                return function(*args, **kwargs)
            finally:
                took = time.perf_counter() - started
                called = part if isinstance(part, str) else part(*args)
                self.seconds[called] += took - self._inner.pop()
                self._inner[-1] += took

        setattr(owner, name, timed)

    def wrap_layers(self, layers: NativeLayers) -> None:
        """Times a call of all layers by its parts, which it knows itself."""
        seconds = layers.seconds = np.zeros(3)
        forward = layers.forward

        def timed(*args: Any) -> Any:
            seconds[:] = 0
            try:
                return forward(*args)
            finally:
                for part, took in zip(("rows", "linear", "attention"), seconds, strict=True):
                    self.seconds[part] += took
                    self._inner[-1] += took

        setattr(layers, "forward", timed)  # noqa: B010


def instrument(engine: Engine) -> Clock:
    """A clock of all parts of the engine's steps."""
    clock, model = Clock(), engine._model
    clock.wrap(engine, "step", "other")
    clock.wrap(engine.roster, "_plan", "plan")
    clock.wrap(engine.roster, "_reserve", "reserve")
    clock.wrap(engine_module, "flatten", "flatten")
    clock.wrap(engine, "_sample", "sample")
    clock.wrap(GenerateTask, "accept", "text")
    clock.wrap(GenerateTask, "take_delta", "text")
    clock.wrap(model, "forward", "glue")
    clock.wrap(model.kernels.attention, "prepare", "prepare")
    clock.wrap(model.kernels.attention, "forward", "attention")
    for name in ("rms_norm", "add_rms_norm", "rotate", "silu_multiply"):
        clock.wrap(model.kernels.ops, name, "rows")
    # Python looks it up on the class.
    clock.wrap(
        PackedLinear, "__call__", lambda layer, x: "head" if layer is model._head else "linear"
    )
    if model._all_layers is not None:
        clock.wrap_layers(model._all_layers)
    return clock


def decode(engine: Engine, batch: int, steps: int, before: Callable[[], object]) -> float:
    """Milliseconds of a step, once all are prefilled; calls `before` right before the first."""
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
    while any(s.computed < 950 for s in [*engine.roster.waiting, *engine.roster.running.values()]):
        engine.step()
    before()
    started = time.perf_counter()
    for _ in range(steps):
        engine.step()
    return (time.perf_counter() - started) / steps * 1000


def drain(engine: Engine) -> None:
    """Ends all requests."""
    while engine.has_work:
        engine.step()


def table_of(found: dict[int, dict[str, float]], title: str) -> Table:
    """Milliseconds by part, a column a batch."""
    table = Table(title=title)
    table.add_column("ms a step")
    for batch in found:
        table.add_column(f"batch {batch}", justify="right")

    def row(name: str, values: list[float], form: str = "{:.2f}") -> None:
        table.add_row(name, *(form.format(value) for value in values))

    for section in (KERNELS, AROUND):
        for part, name in section.items():
            row(name, [parts[part] for parts in found.values()])
        table.add_section()
    whole = [sum(parts.values()) for parts in found.values()]
    around = [sum(parts[part] for part in AROUND) for parts in found.values()]
    row("the step", whole)
    row("tokens/s", [batch / ms * 1000 for batch, ms in zip(found, whole, strict=True)], "{:.0f}")
    row("not kernels", [a / ms for a, ms in zip(around, whole, strict=True)], "{:.1%}")
    return table


def main(
    dtype: Annotated[str, typer.Option(help="bfloat16 or float32.")] = "bfloat16",
    steps: Annotated[int, typer.Option(help="Steps to measure.")] = 40,
    batches: Annotated[str, typer.Option(help="Sizes of the batch.")] = "1,8,32",
    kernels: Annotated[str, typer.Option(help="native, numba or torch.")] = "",
) -> None:
    """Measure and print."""
    if kernels:
        os.environ[VARIABLE] = kernels
    config = EngineConfig(dtype=_dtype(dtype), max_total_tokens=60_000, overlap=False)
    engine = build_engine(config)
    sizes = [int(batch) for batch in batches.split(",")]
    # The stacks first: they should not show the clock.
    sampler = Sampler()
    decode(engine, sizes[-1], 3 * steps, sampler.start)
    stacks = sampler.stop()
    drain(engine)
    clock = instrument(engine)
    found: dict[int, dict[str, float]] = {}
    for batch in sizes:
        decode(engine, batch, steps, clock.seconds.clear)
        found[batch] = {part: clock.seconds[part] / steps * 1000 for part in KERNELS | AROUND}
        drain(engine)
    console = Console()
    console.print(table_of(found, f"A decode step: {dtype}, {engine._model.kernels.name} kernels"))
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / "step.svg"
    path.write_text(flame_graph(stacks, f"Decode steps at batch {sizes[-1]}"), encoding="utf-8")
    (RESULTS / "step.folded").write_text(
        "".join(f"{';'.join(stack)} {count}\n" for stack, count in sorted(stacks.items())),
        encoding="utf-8",
    )
    console.print(f"Flame graph: {os.path.relpath(path)}")


def _dtype(name: str) -> Dtype:
    if name not in ("bfloat16", "float32"):
        raise typer.BadParameter(f"not {name!r}", param_hint="--dtype")
    return name


if __name__ == "__main__":
    typer.run(main)
