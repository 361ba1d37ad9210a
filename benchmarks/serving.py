"""Six loads over HTTP: RadixRay beside a peer, each with its prefix cache on and off, in one run.

One system at a time is under load, in rounds with new prompts. See README.md in this folder.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import shlex
import signal
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from load import client_of
from rich.console import Console
from servers import Server, ServerError
from serving_report import machine, medians, plot, save, table, verdicts
from workloads import WORKLOADS, Workload, warm_up

RESULTS = Path(__file__).parent / "results" / "serving.json"
TABLE_WIDTH = 150
SYSTEMS = ("radixray", "radixray-off", "peer", "peer-off")

console = Console()


@dataclass
class System:
    """A row of the table: a server, and whether each request is made a stranger to the others."""

    name: str
    server: Server
    salted: bool = False


def make_systems(options: argparse.Namespace) -> list[System]:
    """The systems asked for; both of RadixRay's are one server."""
    command = (
        f"{shlex.quote(sys.executable)} -m radixray.cli serve --port {{port}} "
        f"--model {shlex.quote(options.model)} {options.radixray_args}"
    )
    ours = Server("radixray", command)
    systems = [System("radixray", ours), System("radixray-off", ours, salted=True)]
    if options.peer_url:
        systems.append(System("peer", Server("peer", url=options.peer_url.removesuffix("/v1"))))
    elif options.peer_command:
        peer = options.peer_command.replace("{model}", shlex.quote(model_folder(options.model)))
        systems += [
            System("peer", Server("peer", peer)),
            System("peer-off", Server("peer-off", f"{peer} {options.peer_off_args}")),
        ]
    return [system for system in systems if system.name in options.systems]


def model_folder(name: str) -> str:
    """Where the model's Hugging Face folder is, for the peer."""
    from radixray.models.resolve import resolve_model

    return str(resolve_model(name))


async def measure(system: System, workload: Workload, number: int) -> dict[str, Any]:
    """One round of one load on one system, as numbers."""
    salt = f"round {number} {workload.name}" if system.salted else None
    numbers: dict[str, Any] = {"system": system.name, "workload": workload.name, "round": number}
    async with client_of(system.server.url, system.server.model, salt) as client:
        loop = asyncio.get_running_loop()
        started = loop.time()
        await workload.run(client, random.Random(f"{workload.name} {number}"))
        client.tally.seconds = loop.time() - started
    return numbers | ({"refused": True} if client.tally.refused else client.tally.numbers())


async def run_block(
    system: System, workloads: list[Workload], number: int, rounds: list[dict[str, Any]]
) -> None:
    """All loads on one system, once; appends to `rounds`."""
    server = system.server
    with console.status(f"round {number}: starting {system.name}"):
        await server.start()
    server.wake()
    with console.status(f"round {number}: {system.name}: warm-up"):
        async with client_of(server.url, server.model) as client:
            await warm_up(client, random.Random(f"warm-up {system.name} {number}"))
    for workload in workloads:
        with console.status(f"round {number}: {system.name}: {workload.title}"):
            done = await measure(system, workload, number)
        rounds.append(done)
        result = "refused" if "refused" in done else f"{done['seconds']:.2f} s"
        bad = f", bad: {done['bad']}" if done.get("bad") else ""
        console.print(f"round {number}: {system.name}: {workload.title}: {result}{bad}")
    server.rest()


async def run(options: argparse.Namespace) -> None:
    """All rounds, then the report; whatever happens, no server is left."""
    systems = make_systems(options)
    servers = list({id(system.server): system.server for system in systems}.values())
    workloads = [WORKLOADS[name] for name in options.workloads]
    rounds: list[dict[str, Any]] = []
    try:
        for number in range(1, options.rounds + 1):
            # Every second round goes backwards, so that none always comes first.
            order = systems if number % 2 else systems[::-1]
            for system in order:
                for other in servers:
                    if other is not system.server and other.name not in options.keep_running:
                        await other.stop()
                await run_block(system, workloads, number, rounds)
    except ServerError as error:
        console.print(f"[bold red]error:[/] {error}", highlight=False)
        raise SystemExit(1) from None
    finally:
        for server in servers:
            server.wake()
        await asyncio.gather(*(server.stop() for server in servers))
    report(options, rounds, servers)


def report(
    options: argparse.Namespace, rounds: list[dict[str, Any]], servers: list[Server]
) -> None:
    """The table on the screen; JSON and plot in files."""
    names = {"peer": options.peer_name, "peer-off": f"{options.peer_name}, cache off"}
    names |= {"radixray": "RadixRay", "radixray-off": "RadixRay, cache off"}
    rows = medians(rounds)
    checks = verdicts(rounds)
    # Also where the terminal is narrower, or there is none: numbers must not be cut.
    Console(width=max(console.width, TABLE_WIDTH)).print(table(rows, checks, names))
    for server in servers:
        if server.idle_cores:
            idle = sum(server.idle_cores) / len(server.idle_cores)
            console.print(f"{server.name} took {idle:.3f} cores while others were measured")
        if server.command:
            console.print(f"{server.name} needed {server.start_s:.1f} s to start")
    settings = {name: value for name, value in vars(options).items() if name != "save"}
    content = {
        "settings": settings,
        "machine": machine(),
        "servers": {s.name: {"start_s": s.start_s, "idle_cores": s.idle_cores} for s in servers},
        "requirements": checks,
        "medians": rows,
        "rounds": rounds,
    }
    save(options.save, content)
    plot(options.save.with_suffix(".png"), rows, names)
    console.print(f"saved to {options.save} and {options.save.with_suffix('.png')}")


def parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    add = parser.add_argument

    def names(allowed: tuple[str, ...]) -> Any:
        def parse(text: str) -> list[str]:
            given = [name for name in text.split(",") if name]
            if unknown := set(given) - set(allowed):
                raise argparse.ArgumentTypeError(f"no such: {', '.join(sorted(unknown))}")
            return given

        return parse

    known = tuple(WORKLOADS)
    add("--workloads", type=names(known), default=list(known), help=",".join(known))
    add("--systems", type=names(SYSTEMS), default=list(SYSTEMS), help=",".join(SYSTEMS))
    add("--rounds", type=int, default=3)
    add("--quick", action="store_true", help="one round, and only the systems with a cache")
    add("--model", default="smollm2-135m", help="what RadixRay serves")
    add("--radixray-args", default="", help="more arguments of `radixray serve`")
    add("--peer-command", default="", help="starts the peer; {port} and {model} are filled in")
    add("--peer-off-args", default="--no-enable-prefix-caching", help="turn its cache off")
    add("--peer-url", default="", help="a peer that runs already, instead of a command")
    add("--peer-name", default="vLLM", help="its name in the table")
    add(
        "--keep-running",
        type=names(("radixray", "peer", "peer-off")),
        default=["peer", "peer-off"],
        help="servers not stopped while others are measured: those that are slow to start and "
        "take next to nothing when idle (default: peer,peer-off)",
    )
    add("--save", type=Path, default=RESULTS, help=f"JSON; the plot goes beside it ({RESULTS})")
    options = parser.parse_args()
    if options.rounds < 1:
        parser.error("--rounds must be at least 1")
    if options.quick:
        options.rounds = 1
        options.systems = [name for name in options.systems if not name.endswith("-off")]
    return options


def main() -> None:
    # Whoever ends us by SIGTERM wants no servers left either.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        asyncio.run(run(parse_options()))
    except KeyboardInterrupt:
        console.print("interrupted; all servers are stopped")
        raise SystemExit(130) from None


if __name__ == "__main__":
    main()
