"""How far the event loops fall behind while many chats stream.

The server's loops are measured from outside: by how long small requests take that only the ingress
answers (`/v1/models`), or that it must ask the model actor about (`/health`), a hundred a second.
"""

from __future__ import annotations

import argparse
import asyncio
import math
import os
import random
import sys
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

import aiohttp
from rich.console import Console
from rich.table import Table
from servers import Server
from workloads import prose

PERIOD_S = 0.01
LIMIT_MS = 20.0
"""The p99 lag that streaming 32 chats may cause on two quiet cores."""

console = Console(width=100, highlight=False)


@dataclass
class Samples:
    """Times in seconds."""

    name: str
    values: list[float] = field(default_factory=list)

    def ms(self, share: float) -> float:
        """The quantile of that share, in milliseconds."""
        if not self.values:
            return math.nan
        ordered = sorted(self.values)
        return 1000 * ordered[min(len(ordered) - 1, math.ceil(share * len(ordered)) - 1)]


async def loop_lag(samples: Samples) -> None:
    """How much later than asked this loop wakes."""
    while True:
        due = time.perf_counter() + PERIOD_S
        await asyncio.sleep(PERIOD_S)
        samples.values.append(time.perf_counter() - due)


async def round_trips(session: aiohttp.ClientSession, url: str, samples: Samples) -> None:
    """Asks every PERIOD_S, or as soon as the last answer is there."""
    while True:
        started = time.perf_counter()
        async with session.get(url) as response:
            await response.read()
        took = time.perf_counter() - started
        samples.values.append(took)
        await asyncio.sleep(max(0.0, PERIOD_S - took))


async def stream_chat(
    session: aiohttp.ClientSession, server: Server, rng: random.Random, tokens: int, gaps: Samples
) -> None:
    """One streamed chat after another; the gaps between pieces of an answer are kept."""
    while True:
        body = {
            "model": server.model,
            "messages": [{"role": "user", "content": prose(rng, 60)}],
            "max_tokens": tokens,
            "temperature": 0,
            "ignore_eos": True,
            "stream": True,
        }
        async with session.post(f"{server.url}/v1/chat/completions", json=body) as response:
            response.raise_for_status()
            last = 0.0
            async for _ in response.content.iter_any():
                now = time.perf_counter()
                if last:
                    gaps.values.append(now - last)
                last = now


async def measure(
    server: Server, streams: int, tokens: int, seconds: float
) -> tuple[list[Samples], Samples]:
    """Lags and round trips while so many chats stream, and the gaps in their answers."""
    lag, gaps = Samples("client's loop, late by"), Samples("between two pieces of an answer")
    models, health = Samples("ingress: GET /v1/models"), Samples("model actor: GET /health")
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
        works: list[Callable[[], Awaitable[None]]] = [
            lambda: loop_lag(lag),
            lambda: round_trips(session, f"{server.url}/v1/models", models),
            lambda: round_trips(session, f"{server.url}/health", health),
        ]
        tasks = [
            asyncio.ensure_future(
                stream_chat(session, server, random.Random(f"chat {i}"), tokens, gaps)
            )
            for i in range(streams)
        ]
        if streams:
            await asyncio.sleep(2.0)  # prefills are over, all stream
            gaps.values.clear()
        tasks += [asyncio.ensure_future(work()) for work in works]
        try:
            done, _ = await asyncio.wait(
                tasks, timeout=seconds, return_when=asyncio.FIRST_EXCEPTION
            )
            for task in done:
                task.result()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
    return [lag, models, health], gaps


async def run(options: argparse.Namespace) -> None:
    command = f"{sys.executable} -m radixray.cli serve --port {{port}} {options.radixray_args}"
    server = Server("radixray", command)
    try:
        await server.start()
        await measure(server, options.streams, 16, 1.0)  # warm-up
        quiet, _ = await measure(server, 0, 0, options.seconds / 2)
        busy, gaps = await measure(server, options.streams, options.tokens, options.seconds)
    finally:
        await server.stop()
    shown = Table(
        title=f"{options.streams} streams, {len(gaps.values) / options.seconds:.0f} pieces/s; "
        f"load average {os.getloadavg()[0]:.1f}"
    )
    shown.add_column("ms")
    for column in ("idle p50", "idle p99", "streaming p50", "streaming p99", "added p99"):
        shown.add_column(column, justify="right")
    for before, after in zip(quiet, busy, strict=True):
        added = after.ms(0.99) - before.ms(0.5)
        numbers = before.ms(0.5), before.ms(0.99), after.ms(0.5), after.ms(0.99), added
        shown.add_row(after.name, *(f"{number:.1f}" for number in numbers))
    shown.add_row(gaps.name, "", "", f"{gaps.ms(0.5):.1f}", f"{gaps.ms(0.99):.1f}", "")
    console.print(shown)
    worst = max(after.ms(0.99) - before.ms(0.5) for before, after in zip(quiet, busy, strict=True))
    verdict = "met" if worst <= LIMIT_MS else "not met"
    console.print(f"worst added p99: {worst:.1f} ms; at most {LIMIT_MS:g} ms wanted: {verdict}")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    add = parser.add_argument
    add("--streams", type=int, default=32)
    add("--tokens", type=int, default=256, help="of each answer")
    add("--seconds", type=float, default=15.0)
    add("--radixray-args", default="", help="more arguments of `radixray serve`")
    asyncio.run(run(parser.parse_args()))


if __name__ == "__main__":
    main()
