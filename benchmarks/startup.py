"""How long `radixray serve` takes to its first answer, and what it does meanwhile.

Watched from outside: when each process appears, what it has cost by the end, and when HTTP answers.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import aiohttp
from rich.console import Console
from rich.table import Table
from servers import TICKS_PER_S, Server, pids_of_session, stat_of

LIMIT_S = 15.0
"""What a start may take on two quiet cores, once installed and cached."""

PARTS = """
import time
started = time.perf_counter()
def done(what):
    global started
    now = time.perf_counter()
    print(f"{what}\\t{now - started:.2f}")
    started = now
import ray; done("import ray")
import torch; done("import torch")
from radixray.engine import build; from radixray.config import EngineConfig; done("import engine")
from radixray.kernels.cpu.select import cpu_kernels
cpu_kernels(); done("check native kernels")
from radixray.models.loader import load_model; from radixray.models.resolve import resolve_model
folder = resolve_model("MODEL"); model = load_model(folder, torch.bfloat16)
done("load and pack weights")
from radixray.tokenizer.tokenizer import Tokenizer
Tokenizer.from_folder(folder); done("tokenizer")
build.build_engine(EngineConfig(model="MODEL")); done("all of the engine, once more")
"""
"""Run in a process of its own; the stages of a model actor, one after the other."""

console = Console(width=100, highlight=False)


@dataclass
class Process:
    """One process of the server: when it began, and its CPU time when the first answer came."""

    name: str
    began_s: float
    cpu_s: float


@dataclass
class Start:
    """One start. All times are seconds from the start of the command."""

    healthy_s: float
    answered_s: float
    processes: list[Process]


async def start_once(command: str) -> Start:
    """Starts a server, asks it for one token, and stops it."""
    server = Server("radixray", command)
    began, began_boot = time.perf_counter(), _since_boot()
    try:
        await server.start()
        healthy = time.perf_counter() - began
        body = {"model": server.model, "prompt": "Once", "max_tokens": 1}
        async with (
            aiohttp.ClientSession() as session,
            session.post(f"{server.url}/v1/completions", json=body) as response,
        ):
            await response.read()
            response.raise_for_status()
        answered = time.perf_counter() - began
        return Start(healthy, answered, _processes(server.pid, began_boot))
    finally:
        await server.stop()


def _processes(session: int, began_boot: float) -> list[Process]:
    found: list[Process] = []
    for pid in pids_of_session(session):
        stat = stat_of(pid)
        if stat:
            cpu, born = int(stat[11]) + int(stat[12]), int(stat[19])
            found.append(Process(_name(pid), born / TICKS_PER_S - began_boot, cpu / TICKS_PER_S))
    return sorted(found, key=lambda process: process.began_s)


def _name(pid: int) -> str:
    try:
        words = Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ").split()
    except OSError:
        return "gone"
    scripts = [word for word in words if word.endswith(".py")] or words
    return Path(scripts[0] if scripts else "?").name if "-m" not in words else "radixray serve"


def _since_boot() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def show(number: int, start: Start) -> None:
    """One start as a table."""
    shown = Table(title=f"start {number}; load average {os.getloadavg()[0]:.1f}", padding=(0, 1))
    shown.add_column("process")
    shown.add_column("begins, s", justify="right")
    shown.add_column("CPU s by then", justify="right")
    for process in start.processes:
        shown.add_row(process.name, f"{process.began_s:.2f}", f"{process.cpu_s:.2f}")
    shown.add_section()
    total = sum(process.cpu_s for process in start.processes)
    shown.add_row("healthy", f"{start.healthy_s:.2f}", "")
    shown.add_row("first answer", f"{start.answered_s:.2f}", f"{total:.2f}")
    console.print(shown)


def show_parts(model: str) -> None:
    """The stages of a model actor in a process of their own."""
    done = subprocess.run(
        [sys.executable, "-c", PARTS.replace("MODEL", model)],
        capture_output=True,
        text=True,
        check=True,
    )
    shown = Table(title="a model actor, stage by stage, alone", padding=(0, 1))
    shown.add_column("stage")
    shown.add_column("s", justify="right")
    for line in done.stdout.splitlines():
        shown.add_row(*line.split("\t"))
    console.print(shown)


async def run(options: argparse.Namespace) -> None:
    command = f"{sys.executable} -m radixray.cli serve --port {{port}} --model {options.model}"
    times: list[float] = []
    for number in range(1, options.starts + 1):
        start = await start_once(f"{command} {options.radixray_args}")
        show(number, start)
        times.append(start.answered_s)
    listed = ", ".join(f"{seconds:.1f}" for seconds in times)
    verdict = "met" if min(times) <= LIMIT_S else "not met"
    console.print(f"first answers after {listed} s; at most {LIMIT_S:g} s wanted: {verdict}")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--starts", type=int, default=3)
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--radixray-args", default="", help="more arguments of `radixray serve`")
    options = parser.parse_args()
    show_parts(options.model)
    asyncio.run(run(options))


if __name__ == "__main__":
    main()
