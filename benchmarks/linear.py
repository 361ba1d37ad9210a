"""Linear layers of a step in bfloat16, by oneDNN and by native_linear.c, over rows of the batch.

    GOMP_SPINCOUNT=2000 python benchmarks/linear.py [--rows 1,8,32] [--repeats 10]

As many layers as SmolLM2-135M has, so that weights come from memory, then its head. The two take
turns; a time is the sum over shapes of the best tenth of a shape's calls.
"""

from __future__ import annotations

import os
import time
from typing import Annotated

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

import torch
import typer
from rich.console import Console
from rich.table import Table

from radixray.kernels.cpu import native
from radixray.kernels.cpu.linear import NativeLinear, PackedLinear, run_in_turn

SHAPES = [(960, 576), (576, 576), (3072, 576), (576, 1536)]
HEAD = (49152, 576)
LAYERS = 30


def sequence(layers: list[PackedLinear], inputs: dict[int, torch.Tensor]) -> list[float]:
    """Seconds of each of the calls, one after another."""
    seconds: list[float] = []
    before = time.perf_counter()
    for layer in layers:
        layer(inputs[layer.in_features])
        now = time.perf_counter()
        seconds.append(now - before)
        before = now
    return seconds


def best_tenth(times: list[float]) -> float:
    """The time that a tenth of them beat."""
    return sorted(times)[len(times) // 10]


def milliseconds(
    kinds: list[list[PackedLinear]], rows: int, repeats: int
) -> list[tuple[float, float]]:
    """Of all layers and of the head, for each kind."""
    inputs = {size: torch.randn(rows, size).bfloat16() for _, size in SHAPES}
    times: list[list[list[float]]] = [[] for _ in kinds]
    for turn in range(repeats + 1):
        for layers, found in zip(kinds, times, strict=True):
            seconds = sequence(layers, inputs)
            if turn:  # the first is warming up
                found.append(seconds)
    results: list[tuple[float, float]] = []
    for found in times:
        calls = [list(call) for call in zip(*found, strict=True)]
        shapes = [
            [seconds for call in calls[i : -1 : len(SHAPES)] for seconds in call]
            for i in range(len(SHAPES))
        ]
        layers = LAYERS * sum(best_tenth(shape) for shape in shapes)
        results.append((1e3 * layers, 1e3 * best_tenth(calls[-1])))
    return results


def main(
    rows: Annotated[str, typer.Option(help="Sizes of the batch.")] = (
        "1,2,4,8,16,32,48,64,80,128,256,512"
    ),
    repeats: Annotated[int, typer.Option(help="Turns of each kind.")] = 10,
) -> None:
    """Measure and print."""
    library = native.load()
    if not native.has_linear(library):
        raise SystemExit(f"no native product with the instructions {native.instructions()}")
    packer = NativeLinear(library)
    kinds: list[list[PackedLinear]] = [[], []]
    with torch.inference_mode():
        for shape in [*SHAPES * LAYERS, HEAD]:
            weight = torch.randn(shape).bfloat16()
            kinds[0].append(PackedLinear(weight))
            kinds[1].append(PackedLinear(weight, packer))
        run_in_turn(kinds[1])
        table = Table(title=f"ms of {LAYERS} layers and a head, {torch.get_num_threads()} threads")
        for column in ("rows", "oneDNN", "native", "faster", "GFLOP/s", "head", "native", "faster"):
            table.add_column(column, justify="right")
        operations = 2 * LAYERS * sum(out * size for out, size in SHAPES)
        for count in map(int, rows.split(",")):
            theirs, ours = milliseconds(kinds, count, repeats)
            table.add_row(
                str(count),
                *(f"{theirs[0]:.2f}", f"{ours[0]:.2f}", f"{theirs[0] / ours[0]:.2f}"),
                f"{operations * count / ours[0] / 1e6:.0f}",
                *(f"{theirs[1]:.2f}", f"{ours[1]:.2f}", f"{theirs[1] / ours[1]:.2f}"),
            )
    Console().print(table)


if __name__ == "__main__":
    typer.run(main)
