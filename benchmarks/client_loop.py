"""Very many programs in one event loop, on an engine that costs nothing: what the language costs.

Each program forks three branches, each branch generates. Measured are the time of all programs, the
threads there are meanwhile, and how long other work in the loop has to wait: the gap between two
turns of a task that asks for the next turn each time. CPU time of a gap is what the language takes
of it; the rest is a busy machine's.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import math
import threading
import time
from collections.abc import AsyncGenerator

from rich.console import Console
from rich.table import Table

import radixray as rr
from radixray.errors import UnsupportedFeatureError
from radixray.models.resolve import resolve_model
from radixray.protocol import Delta, GenerateRequest, ModelInfo, ScoreRequest, ScoreResult, Usage
from radixray.reports import EngineStats
from radixray.tokenizer.tokenizer import Tokenizer

LIMIT_MS = 20.0
"""The p99 of the turns that is wanted with 500 programs."""

STEP_S = 0.02
"""Between two tokens of a request."""

console = Console(width=100, highlight=False)


class FakeEngine:
    """A transport that answers each request with the same tokens, one a step."""

    def __init__(self, tokenizer: Tokenizer, tokens: int) -> None:
        self.tokenizer = tokenizer
        self.info = ModelInfo(
            name="fake",
            context_length=8192,
            pool_tokens=1 << 20,
            vocab_size=tokenizer.vocab_size,
            eos_token_ids=(2,),
            dtype="float32",
            max_queued_requests=1 << 20,
        )
        self._ids = tokenizer.encode(" and so on" * tokens)[:tokens]
        self._texts = [tokenizer.decode([token]) for token in self._ids]

    async def generate(self, request: GenerateRequest) -> AsyncGenerator[Delta, None]:
        """As `Transport.generate`."""
        usage = Usage(prompt=len(request.prompt_ids))
        if request.sampling.max_tokens == 0:
            await asyncio.sleep(STEP_S)
            yield Delta(request_id=request.request_id, finish_reason="length", usage=usage)
            return
        for index, (token, text) in enumerate(zip(self._ids, self._texts, strict=True)):
            await asyncio.sleep(STEP_S)
            last = index == len(self._ids) - 1
            yield Delta(
                request_id=request.request_id,
                index=index,
                token_ids=[token],
                text=text,
                finish_reason="length" if last else None,
                usage=usage if last else None,
            )

    async def score(self, request: ScoreRequest) -> ScoreResult:
        """No program here selects."""
        raise UnsupportedFeatureError("this engine only generates", param="select")

    async def flush(self) -> int:
        """Nothing to empty."""
        return 0

    async def stats(self) -> dict[str, EngineStats]:
        """None."""
        return {}


@rr.function
async def three_branches(s: rr.State, number: int) -> None:
    s += f"Program {number} has something to say about each of three subjects.\n"
    async with s.fork(3) as forks:
        for index, branch in enumerate(forks):
            branch += f"Subject {index}:" + rr.gen("x", max_tokens=64)


async def turns(gaps: list[tuple[float, float]]) -> None:
    """Notes how long each turn of the loop takes, and its CPU time."""
    last, last_cpu = time.perf_counter(), time.thread_time()
    while True:
        await asyncio.sleep(0)
        now, cpu = time.perf_counter(), time.thread_time()
        gaps.append((now - last, cpu - last_cpu))
        last, last_cpu = now, cpu


async def watch_threads(most: list[int]) -> None:
    """Notes the most threads there are."""
    while True:
        most[0] = max(most[0], threading.active_count())
        await asyncio.sleep(0.005)


async def measure(
    engine: FakeEngine, programs: int, how: str
) -> tuple[float, list[tuple[float, float]], int]:
    """Seconds, gaps between turns, and the most threads."""
    gaps: list[tuple[float, float]] = []
    most = [0]
    watchers = [asyncio.create_task(turns(gaps)), asyncio.create_task(watch_threads(most))]
    await asyncio.sleep(0.05)
    gaps.clear()
    start = time.perf_counter()
    if how == "gather":
        await asyncio.gather(*(three_branches.run(i, transport=engine) for i in range(programs)))
    else:
        await three_branches.run_batch(
            range(programs), concurrency=programs, on_error="raise", transport=engine
        )
    seconds = time.perf_counter() - start
    for watcher in watchers:
        watcher.cancel()
    return seconds, gaps, most[0]


def quantile_ms(values: list[float], share: float) -> float:
    """The quantile of that share, in milliseconds."""
    ordered = sorted(values)
    return 1000 * ordered[min(len(ordered) - 1, math.ceil(share * len(ordered)) - 1)]


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--programs", type=int, nargs="+", default=[100, 500, 1000])
    parser.add_argument("--tokens", type=int, default=16, help="of each generation")
    arguments = parser.parse_args()
    engine = FakeEngine(Tokenizer.from_folder(resolve_model("smollm2-135m")), arguments.tokens)
    await measure(engine, 10, "gather")
    before = threading.active_count()
    table = Table(
        "programs", "started by", "s", "threads more", "turn ms p99", "max", "CPU ms p99", "max"
    )
    for programs in arguments.programs:
        for how in ("gather", "run_batch"):
            gc.collect()
            seconds, gaps, threads = await measure(engine, programs, how)
            table.add_row(
                str(programs),
                how,
                f"{seconds:.2f}",
                str(threads - before),
                *(
                    f"{quantile_ms(list(values), share):.2f}"
                    for values in zip(*gaps, strict=True)
                    for share in (0.99, 1)
                ),
            )
    console.print(table)
    console.print(f"Wanted: no threads more, and a p99 of at most {LIMIT_MS:g} ms.")


if __name__ == "__main__":
    asyncio.run(main())
