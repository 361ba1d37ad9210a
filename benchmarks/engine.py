"""One step of the model, without scheduler or HTTP: decode batches and prefill chunks.

The kinds of kernels take turns, and the best time of each is shown, as a shared machine drifts.
Beside them stands the floor of this machine: the longer of reading what the step must read
at the measured memory bandwidth, and computing what it must compute at the measured rate of a large
matrix product.

    python benchmarks/engine.py [--quick | --growth]

``--growth`` shows how a decode step grows with the context and with the batch.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable
from dataclasses import dataclass

os.environ.setdefault("GOMP_SPINCOUNT", "2000")  # as in a model actor

import numpy as np
import torch
from rich.console import Console
from rich.table import Table

from radixray.config import DEFAULT_MODEL
from radixray.kernels.cpu.select import CpuKernels, native_kernels, numba_kernels, torch_kernels
from radixray.kernels.kv_pool import KVPool
from radixray.models.batch import ForwardBatch
from radixray.models.llama import LlamaModel, expected_tensors
from radixray.models.loader import load_model
from radixray.models.resolve import resolve_model


@dataclass(frozen=True, slots=True)
class Case:
    """A step of `batch` sequences alike.

    Attributes:
        context: tokens of each sequence, the new ones included.
        shared: leading tokens that all sequences share.
        new: tokens computed for each.
    """

    name: str
    batch: int
    context: int
    shared: int = 0
    new: int = 1

    @property
    def slots(self) -> int:
        """Distinct tokens in the pool."""
        return self.shared + self.batch * (self.context - self.shared)


DECODES = [
    case
    for batch in (1, 8, 32, 64)
    for case in (
        Case(f"decode {batch} x 950 (850 shared)", batch, 950, shared=850),
        Case(f"decode {batch} x 300", batch, 300),
    )
]
PREFILLS = [
    Case("prefill 512", 1, 512, new=512),
    Case("prefill 512 after 850", 1, 1362, new=512),
    Case("prefill 128 after 850", 1, 978, new=128),
]
GROWTH = [
    *(Case(f"decode 4 x {n:,}", 4, n) for n in (100, 250, 500, 1000, 2000, 4000, 8000)),
    *(Case(f"decode {n} x 300", n, 300) for n in (1, 2, 4, 8, 16, 32, 64, 128)),
]
QUICK = [DECODES[0], DECODES[4], DECODES[5], PREFILLS[1]]


def make_batch(case: Case, vocab_size: int, *, scattered: bool) -> ForwardBatch:
    """The step, with slots one after another or scattered over the pool (page size 1, aged)."""
    rng = np.random.default_rng(0)
    slots = rng.permutation(case.slots) if scattered else np.arange(case.slots)
    slots = slots.astype(np.int32)
    shared, own = slots[: case.shared], np.split(slots[case.shared :], case.batch)
    contexts = [np.concatenate([shared, part]) for part in own]
    total = case.batch * case.new
    positions = np.tile(np.arange(case.context - case.new, case.context), case.batch)
    return ForwardBatch(
        token_ids=torch.from_numpy(rng.integers(vocab_size, size=total)),
        positions=torch.from_numpy(positions.astype(np.int64)),
        out_slots=torch.from_numpy(np.concatenate([c[-case.new :] for c in contexts])).long(),
        query_lens=np.full(case.batch, case.new, np.int32),
        num_decode=case.batch if case.new == 1 else 0,
        context_slots=contexts,
        logit_rows=torch.arange(case.new - 1, total, case.new),
    )


def milliseconds(run: Callable[[], object]) -> float:
    """Wall time of one call."""
    start = time.perf_counter()
    run()
    return 1e3 * (time.perf_counter() - start)


def bandwidth() -> float:
    """Bytes a second that all threads read from memory together, at best."""
    data = torch.ones(1 << 26)
    return data.nbytes / min(milliseconds(data.sum) for _ in range(8)) * 1e3


def matmul_rate(dtype: torch.dtype) -> float:
    """Floating point operations a second of a large product, at best."""
    a, b = torch.randn(1024, 2048).to(dtype), torch.randn(2048, 2048).to(dtype)
    best = min(milliseconds(lambda: a @ b) for _ in range(8))
    return 2 * a.numel() * b.shape[1] / best * 1e3


def floor_ms(case: Case, model: LlamaModel, read_rate: float, compute_rate: float) -> float:
    """What the step takes at least: reading weights and KV, or computing, whichever is longer."""
    config = model.config
    shapes = expected_tensors(config)
    head = config.vocab_size * config.hidden_size
    layers = sum(int(np.prod(s)) for name, s in shapes.items() if ".layers." in name)
    kv_bytes = KVPool.bytes_per_slot(
        config.num_layers, config.num_kv_heads, config.head_dim, model.dtype
    )
    read = (layers + head) * model.dtype.itemsize + case.slots * kv_bytes
    seen = case.new * (case.context - case.new) + case.new * (case.new + 1) // 2
    attention = 4 * config.num_layers * config.num_heads * config.head_dim * seen
    compute = case.batch * (2 * layers * case.new + 2 * head + attention)
    return 1e3 * max(read / read_rate, compute / compute_rate)


def step_times(
    model: LlamaModel, batch: ForwardBatch, pool: KVPool, kinds: list[CpuKernels], repeats: int
) -> list[float]:
    """Milliseconds of a step with each kind of kernels, at best."""
    times: list[list[float]] = [[] for _ in kinds]
    for turn in range(repeats + 1):
        for kernels, found in zip(kinds, times, strict=True):
            model.kernels = kernels
            took = milliseconds(lambda: model.forward(batch, pool).argmax(-1))
            if turn:  # the first is warming up
                found.append(took)
    return [min(found) for found in times]


def measure(dtype: torch.dtype, cases: list[Case], repeats: int, *, scattered: bool) -> Table:
    """The table of one dtype."""
    model = load_model(resolve_model(DEFAULT_MODEL), dtype)
    config = model.config
    pool = KVPool(
        config.num_layers,
        config.num_kv_heads,
        config.head_dim,
        max(case.slots for case in cases),
        dtype,
    )
    pool.k.normal_()
    pool.v.normal_()
    kinds = [torch_kernels(), numba_kernels(), native_kernels()]
    before = bandwidth(), matmul_rate(dtype)
    steps = [
        step_times(
            model, make_batch(case, config.vocab_size, scattered=scattered), pool, kinds, repeats
        )
        for case in cases
    ]
    # Again, as other load on the machine may have slowed the first.
    read_rate, compute_rate = max(before[0], bandwidth()), max(before[1], matmul_rate(dtype))
    table = Table(
        title=f"{str(dtype).removeprefix('torch.')}, {torch.get_num_threads()} threads; memory "
        f"{read_rate / 1e9:.1f} GB/s, products {compute_rate / 1e9:.0f} GFLOP/s; ms a step"
    )
    table.add_column("step")
    columns = *(kind.name for kind in kinds), "torch / native", "floor", "native / floor"
    for column in (*columns, "tokens/s"):
        table.add_column(column, justify="right")
    for case, times in zip(cases, steps, strict=True):
        floor, fast = floor_ms(case, model, read_rate, compute_rate), times[-1]
        rate = 1e3 * case.batch * case.new / fast
        numbers = *times, times[0] / fast, floor, fast / floor
        table.add_row(case.name, *(f"{x:.1f}" for x in numbers), f"{rate:.0f}")
    return table


def main() -> None:
    """Print a table for each dtype."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--quick", action="store_true", help="a few cases, in about half a minute")
    parser.add_argument("--growth", action="store_true", help="longer contexts, larger batches")
    parser.add_argument("--repeats", type=int, default=0, help="steps of each case and kind")
    parser.add_argument("--dtype", choices=["bfloat16", "float32"], help="only this one")
    parser.add_argument("--contiguous", action="store_true", help="slots that follow each other")
    options = parser.parse_args()
    cases = QUICK if options.quick else GROWTH if options.growth else DECODES + PREFILLS
    repeats = options.repeats or (5 if options.quick else 15)
    for name in [options.dtype] if options.dtype else ["bfloat16", "float32"]:
        dtype = getattr(torch, name)
        Console(width=100).print(measure(dtype, cases, repeats, scattered=not options.contiguous))


if __name__ == "__main__":
    main()
