"""How much of their prompts requests find cached, and how long they wait, by load balancing policy.

    python benchmarks/routing.py [--actors 8 64] [--requests-per-actor 100] [--policies prefix ...]
    python benchmarks/routing.py --router-only --actors 64 1000

A simulation of discrete events: the router, its index and its policies are the real ones, and so is
the prefix cache of each model actor; only the computing is simulated. One unit of time computes one
prompt token. A model actor computes prompts one after the other, which takes longer the more
requests generate beside; at most SEATS are under way. Each trace comes as fast as keeps the actors
busy for LOAD of the time under ``least_loaded``.

The oracle is one cache as large as all together, which every request finds and nothing waits for.
No policy can reach it where a prefix is wanted by more requests than one actor can serve. A wait
ends when a request's prompt is begun, "token" when it is computed.
"""

from __future__ import annotations

import argparse
import heapq
import itertools
import random
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple, get_args

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table

from radixray.cache.prefix_cache import Lease, PrefixCache
from radixray.config import LoadBalancingPolicy
from radixray.reports import CacheEvent, CacheSnapshot, StepReport
from radixray.scheduler.policies import policy_of
from radixray.scheduler.router import Router

Tokens = NDArray[np.int32]

PAGE = 16
CACHE_TOKENS = 65_536
"""Of each model actor."""

SEATS = 64
SLOWED_BY = 0.02
"""Of a prompt's time, for each request that generates beside it."""

TOKEN_TIME = 8
"""Units of time that a generated token takes: decoding is slow, but done for many at once."""

LOAD = 0.9


@dataclass(eq=False)
class Turn:
    """A request, and what follows when it is done.

    Attributes:
        output: how many tokens it generates.
        then: the next ones, each after a pause.
    """

    prompt: Tokens
    output: int
    session: str = ""
    then: list[tuple[int, Turn]] = field(default_factory=list)

    def walk(self) -> Iterator[Turn]:
        """This one and all after it."""
        waiting: deque[Turn] = deque([self])
        while waiting:
            turn = waiting.popleft()
            yield turn
            waiting.extend(after for _, after in turn.then)


class Writer:
    """Makes texts that nobody else has."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self._numpy = np.random.default_rng(seed)

    def text(self, tokens: int) -> Tokens:
        """So many random tokens."""
        return self._numpy.integers(0, 50_000, tokens, dtype=np.int32)


def multi_turn(write: Writer, requests: int) -> list[Turn]:
    """Conversations of 8 turns behind one of 4 system prompts."""
    systems = [write.text(256) for _ in range(4)]
    roots = []
    for number in range(requests // 8):
        history = write.random.choice(systems)
        turns = []
        for _ in range(8):
            prompt = np.concatenate([history, write.text(write.random.randint(40, 200))])
            turn = Turn(prompt, write.random.randint(40, 160), f"talk-{number}")
            history = np.concatenate([prompt, write.text(turn.output)])
            turns.append(turn)
        for earlier, later in itertools.pairwise(turns):
            earlier.then.append((write.random.randint(2000, 20_000), later))
        roots.append(turns[0])
    return roots


def few_shot(write: Writer, requests: int) -> list[Turn]:
    """Questions of 32 tasks, some asked very often, each behind the same 1,200 tokens."""
    tasks = [write.text(1200) for _ in range(32)]
    weights = [1 / (rank + 1) for rank in range(len(tasks))]
    chosen = write.random.choices(tasks, weights, k=requests)
    return [Turn(np.concatenate([task, write.text(60)]), 32) for task in chosen]


def agent_tree(write: Writer, requests: int) -> list[Turn]:
    """Programs of 13 requests: each of two levels forks into three."""
    roots = []
    shared = write.text(512)
    for number in range(requests // 13):
        root = Turn(np.concatenate([shared, write.text(400)]), 64, f"agent-{number}")
        level = [root]
        for _ in range(2):
            below = []
            for parent in level:
                ends = np.concatenate([parent.prompt, write.text(parent.output)])
                for _ in range(3):
                    child = Turn(np.concatenate([ends, write.text(80)]), 64, parent.session)
                    parent.then.append((100, child))
                    below.append(child)
            level = below
        roots.append(root)
    return roots


def long_tail(write: Writer, requests: int) -> list[Turn]:
    """A third of prompts nobody else has, the rest about documents, few of them popular."""
    documents = [write.text(write.random.randint(300, 2500)) for _ in range(max(64, requests // 8))]
    weights = [1 / (rank + 1) ** 0.8 for rank in range(len(documents))]
    turns = []
    for _ in range(requests):
        if write.random.random() < 1 / 3:
            prompt = write.text(min(6000, int(write.random.lognormvariate(6.3, 0.9)) + 20))
        else:
            [document] = write.random.choices(documents, weights)
            prompt = np.concatenate([document, write.text(50)])
        turns.append(Turn(prompt, write.random.randint(16, 200)))
    return turns


TRACES: dict[str, Callable[[Writer, int], list[Turn]]] = {
    "multi-turn": multi_turn,
    "few-shot": few_shot,
    "agent tree": agent_tree,
    "long tail": long_tail,
}


class Result(NamedTuple):
    """What came of one run.

    Attributes:
        hit_rate: part of the prompts' tokens found cached.
        waits: of each request, from its arrival until its prompt is begun.
        first_tokens: of each request, from its arrival until its prompt is computed.
        imbalance: the busiest actor's time over the mean.
        computed: prompt tokens.
        placements_per_s: of the router alone, in processor time.
    """

    hit_rate: float
    waits: NDArray[np.float64]
    first_tokens: NDArray[np.float64]
    imbalance: float
    computed: float
    placements_per_s: float


@dataclass
class Actor:
    """A model actor: its queue, its cache and what it did."""

    cache: PrefixCache
    queue: deque[tuple[str, Turn, float]] = field(default_factory=deque)
    computing: bool = False
    running: int = 0
    sequence: int = 0
    busy: float = 0.0


class Simulation:
    """One trace on some actors under one policy."""

    def __init__(self, policy: LoadBalancingPolicy, actors: int) -> None:
        pages = CACHE_TOKENS // PAGE
        self._actors = {f"m{n}": Actor(PrefixCache(pages, PAGE)) for n in range(actors)}
        self._router = Router(
            self._actors, policy_of(policy, seed=0), policy_name=policy, page_size=PAGE
        )
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._ids = itertools.count()
        self._now = 0.0
        self._waits: list[float] = []
        self._first_tokens: list[float] = []
        self._prompt = self._cached = 0
        self._placing_ns = self._placed = 0

    def run(self, starts: list[tuple[float, Turn]]) -> Result:
        """Runs all that begins at `starts`, and what follows."""
        for actor in self._actors:
            self._report(actor)
        for at, turn in starts:
            self._at(at, lambda turn=turn: self._arrive(turn))
        while self._events:
            self._now, _, do = heapq.heappop(self._events)
            do()
        busy = [actor.busy for actor in self._actors.values()]
        return Result(
            self._cached / self._prompt,
            np.array(self._waits),
            np.array(self._first_tokens),
            max(busy) / (sum(busy) / len(busy)),
            self._prompt - self._cached,
            self._placed / (self._placing_ns / 1e9),
        )

    def _at(self, at: float, do: Callable[[], None]) -> None:
        heapq.heappush(self._events, (at, next(self._ids), do))

    def _arrive(self, turn: Turn) -> None:
        request_id = f"r{next(self._ids)}"
        began = time.thread_time_ns()
        placement = self._router.place(request_id, "", turn.prompt, turn.session)
        self._placing_ns += time.thread_time_ns() - began
        self._placed += 1
        self._actors[placement.actor].queue.append((request_id, turn, self._now))
        self._start(placement.actor)

    def _start(self, name: str) -> None:
        actor = self._actors[name]
        if actor.computing or actor.running == SEATS or not actor.queue:
            return
        request_id, turn, came = actor.queue.popleft()
        self._waits.append(self._now - came)
        lease = actor.cache.acquire("", turn.prompt[:-1])
        uncached = len(turn.prompt) - lease.cached_tokens
        self._prompt += len(turn.prompt)
        self._cached += lease.cached_tokens
        lease.extend(len(turn.prompt))
        took = uncached * (1 + SLOWED_BY * actor.running)
        self._first_tokens.append(self._waits[-1] + took)
        actor.computing = True
        actor.running += 1
        actor.busy += took
        self._at(self._now + took, lambda: self._computed(name, request_id, turn, lease))

    def _computed(self, name: str, request_id: str, turn: Turn, lease: Lease) -> None:
        actor = self._actors[name]
        found = lease.cached_tokens
        lease.release(turn.prompt)
        self._report(name, prefilled=[request_id])
        actor.computing = False
        self._start(name)
        end = self._now + TOKEN_TIME * turn.output
        self._at(end, lambda: self._finished(name, request_id, turn, found))

    def _finished(self, name: str, request_id: str, turn: Turn, found: int) -> None:
        actor = self._actors[name]
        actor.running -= 1
        if turn.then:  # its output is wanted again
            whole = turn.then[0][1].prompt[: len(turn.prompt) + turn.output]
            lease = actor.cache.acquire("", whole)
            lease.extend(len(whole))
            lease.release(whole)
        self._report(name, finished=[request_id], found=[found])
        for pause, after in turn.then:
            self._at(self._now + pause, lambda after=after: self._arrive(after))
        self._start(name)

    def _report(self, name: str, **news: list[Any]) -> None:
        actor = self._actors[name]
        actor.sequence += 1
        report = StepReport(
            actor=name,
            incarnation="1",
            sequence=actor.sequence,
            events=actor.cache.drain_events(),
            **{"finished": [], **news},
        )
        if not self._router.report(report):  # its first one
            number, events = actor.sequence, actor.cache.snapshot()
            self._router.restore(
                CacheSnapshot(actor=name, incarnation="1", sequence=number, events=events)
            )


def starts_of(roots: list[Turn], span: float, seed: int) -> list[tuple[float, Turn]]:
    """When each of `roots` begins: any time within `span`."""
    rng = random.Random(seed)
    return sorted(((rng.uniform(0, span), turn) for turn in roots), key=lambda each: each[0])


def oracle(starts: list[tuple[float, Turn]], actors: int) -> float:
    """The hit rate of one cache for all, in which nothing takes time."""
    cache = PrefixCache(actors * CACHE_TOKENS // PAGE, PAGE)
    prompt = cached = 0
    events = [(at, number, turn) for number, (at, turn) in enumerate(starts)]
    numbers = itertools.count(len(events))
    heapq.heapify(events)
    while events:
        at, _, turn = heapq.heappop(events)
        lease = cache.acquire("", turn.prompt[:-1])
        prompt += len(turn.prompt)
        cached += lease.cached_tokens
        lease.extend(len(turn.prompt))
        whole = turn.prompt
        if turn.then:
            whole = turn.then[0][1].prompt[: len(turn.prompt) + turn.output]
            lease.extend(len(whole))
        lease.release(whole)
        for pause, after in turn.then:
            end = at + pause + TOKEN_TIME * turn.output
            heapq.heappush(events, (end, next(numbers), after))
    return cached / prompt


def router_alone(actors: int, placements: int = 10_000) -> tuple[int, float]:
    """Tokens of an index, and placements a second of processor time with 1,000-token prompts."""
    write = Writer(1)
    router = Router(f"m{n}" for n in range(actors))
    for n in range(actors):
        router.restore(CacheSnapshot(actor=f"m{n}", incarnation="1", sequence=0, events=[]))
    prefixes = [write.text(800) for _ in range(200)]
    paths = [np.concatenate([prefixes[n % 200], write.text(100)]) for n in range(8400)]
    for n in range(actors):
        events = [CacheEvent(kind="insert", tokens=path.tobytes()) for path in paths[n::actors]]
        news = StepReport(actor=f"m{n}", incarnation="1", sequence=1, events=events, finished=[])
        router.report(news)
    prompts = [
        np.concatenate([write.random.choice(paths), write.text(100)]) for _ in range(placements)
    ]
    live: deque[str] = deque()
    began = time.thread_time()
    for number, prompt in enumerate(prompts):
        router.place(f"r{number}", "", prompt)
        live.append(f"r{number}")
        if len(live) > 10 * actors:
            router.finished(live.popleft())
    took = time.thread_time() - began
    return 200 * 800 + len(paths) * 100, placements / took


def main() -> None:
    """Prints a table for each number of actors."""
    policies: tuple[LoadBalancingPolicy, ...] = get_args(LoadBalancingPolicy)
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--actors", type=int, nargs="+", default=[8, 64])
    parser.add_argument("--requests-per-actor", type=int, default=100)
    parser.add_argument("--traces", nargs="+", default=list(TRACES), choices=list(TRACES))
    parser.add_argument("--policies", nargs="+", default=policies, choices=policies)
    parser.add_argument("--router-only", action="store_true")
    asked = parser.parse_args()
    console = Console(width=130)
    for actors in asked.actors if asked.router_only else ():
        tokens, rate = router_alone(actors)
        console.print(f"{actors} model actors, {tokens:,} tokens: {rate:,.0f} placements/s")
    if asked.router_only:
        return
    for actors in asked.actors:
        table = Table(title=f"{actors} model actors")
        for column in (
            "trace",
            "policy",
            "hit rate",
            "of oracle's",
            "wait p50",
            "wait p99",
            "token p99",
            "to least_loaded's",
            "imbalance",
            "placements/s",
        ):
            table.add_column(column, justify="left" if column in ("trace", "policy") else "right")
        for trace in asked.traces:
            roots = TRACES[trace](Writer(1), actors * asked.requests_per_actor)
            total = sum(len(turn.prompt) for root in roots for turn in root.walk())
            span = total / (actors * LOAD)
            probe = Simulation("least_loaded", actors).run(starts_of(roots, span, 2))
            starts = starts_of(roots, probe.computed / (actors * LOAD), 2)
            best = oracle(starts, actors)
            base = Simulation("least_loaded", actors).run(starts)
            usual = float(np.percentile(base.first_tokens, 99))
            table.add_section()
            table.add_row(trace, "oracle", f"{best:.1%}")
            for policy in asked.policies:
                result = base
                if policy != "least_loaded":
                    result = Simulation(policy, actors).run(starts)
                middle, late = np.percentile(result.waits, [50, 99])
                token = float(np.percentile(result.first_tokens, 99))
                table.add_row(
                    "",
                    policy,
                    f"{result.hit_rate:.1%}",
                    f"{result.hit_rate / best:.1%}",
                    f"{middle:,.0f}",
                    f"{late:,.0f}",
                    f"{token:,.0f}",
                    f"{token / usual:.2f}",
                    f"{result.imbalance:.2f}",
                    f"{result.placements_per_s:,.0f}",
                )
        console.print(table)


if __name__ == "__main__":
    main()
