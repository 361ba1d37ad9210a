"""Schedule policies on few-shot groups that arrive shuffled, with a pool too small for all groups.

    python benchmarks/scheduling.py --groups 12 --per-group 10

Every policy gets the same requests, on the same loaded model, with an empty cache. The optimum is
offline: the same requests sorted so that groups come one after the other (depth-first order of
their radix tree, arXiv 2312.07104, theorem 3.1). The last table is the cost of the queue itself:
planning a step with thousands of requests waiting.
"""

from __future__ import annotations

import random
import time
from typing import Annotated, cast, get_args

import msgspec
import numpy as np
import typer
from rich.console import Console
from rich.table import Table

from radixray.cache.prefix_cache import PrefixCache
from radixray.cache.radix_tree import TokenArray
from radixray.config import EngineConfig, SchedulePolicy
from radixray.engine.build import build_engine
from radixray.engine.engine import Engine
from radixray.protocol import GenerateRequest, SamplingParams
from radixray.scheduler.order import in_order
from radixray.scheduler.plan import BatchLimits, plan_batch

console = Console()


def workload(groups: int, per_group: int, prefix: int, rng: random.Random) -> list[list[int]]:
    """Prompts, group by group: one long prefix a group, and an ending of its own for each."""
    prompts = []
    for _ in range(groups):
        shared = [rng.randrange(1000, 40_000) for _ in range(prefix)]
        prompts += [
            shared + [rng.randrange(1000, 40_000) for _ in range(20)] for _ in range(per_group)
        ]
    return prompts


def fresh(loaded: Engine, pool_tokens: int, policy: SchedulePolicy) -> Engine:
    """An engine with an empty cache on the loaded model."""
    return Engine(
        loaded._model,
        loaded._kv_pool,
        PrefixCache(pool_tokens),
        loaded.tokenizer,
        loaded.info,
        BatchLimits(max_num_seqs=8, max_batch_tokens=512),
        schedule_policy=policy,
    )


def run(engine: Engine, prompts: list[list[int]]) -> tuple[float, float]:
    """Seconds, and the part of all prompt tokens that was found in the cache."""
    sampling = SamplingParams(max_tokens=8, temperature=0, ignore_eos=True)
    for number, prompt in enumerate(prompts):
        engine.add(GenerateRequest(request_id=str(number), prompt_ids=prompt, sampling=sampling))
    started = time.perf_counter()
    while engine.has_work:
        engine.step()
    total = sum(map(len, prompts))
    return time.perf_counter() - started, 1 - engine.stats.prefill_tokens / total


def queue_cost(loaded: Engine, waiting: int, policy: SchedulePolicy) -> tuple[float, float]:
    """Milliseconds to order and plan one step with so many requests waiting, and to insert
    a prefix that one of them waits for."""
    engine = fresh(loaded, 65_536, policy)
    engine.info = msgspec.structs.replace(engine.info, max_queued_requests=waiting)
    rng = random.Random(0)
    shared = [rng.randrange(1000, 40_000) for _ in range(200)]
    lease = engine.cache.acquire("", as_tokens(shared))
    lease.extend(200)
    lease.release(as_tokens(shared))
    for number in range(waiting):
        prompt = shared[: rng.randrange(1, 200)] + [rng.randrange(1000, 40_000) for _ in range(40)]
        engine.add(GenerateRequest(request_id=str(number), prompt_ids=prompt))
    rounds = 5
    started = time.perf_counter()
    for _ in range(rounds):
        views = [s.waiting_view(0) for s in in_order(policy, engine.roster.waiting)[:256]]
        plan_batch(views, [], engine.cache.available_pages, engine.roster._limits, growth=0.5)
    planned = (time.perf_counter() - started) / rounds * 1000
    started = time.perf_counter()
    for number in range(rounds):
        tokens = as_tokens([*shared[:100], *range(number * 50, number * 50 + 50)])
        lease = engine.cache.acquire("", tokens)
        lease.extend(len(tokens))
        lease.release(tokens)
    return planned, (time.perf_counter() - started) / rounds * 1000


def as_tokens(ids: list[int]) -> TokenArray:
    """int32 array of token ids."""
    return np.array(ids, np.int32)


def main(
    groups: Annotated[int, typer.Option(help="Few-shot groups.")] = 12,
    per_group: Annotated[int, typer.Option(help="Requests in each.")] = 10,
    prefix: Annotated[int, typer.Option(help="Tokens that a group shares.")] = 400,
    fitting: Annotated[float, typer.Option(help="Groups whose prefix the pool can hold.")] = 4,
    seed: Annotated[int, typer.Option(help="Of prompts and their shuffling.")] = 1,
) -> None:
    """Measure and print."""
    rng = random.Random(seed)
    prompts = workload(groups, per_group, prefix, rng)
    shuffled = prompts.copy()
    rng.shuffle(shuffled)
    pool = int(fitting * prefix) + 8 * 28
    loaded = build_engine(EngineConfig(max_total_tokens=65_536))
    run(fresh(loaded, 4096, "fcfs"), prompts[:1])  # warm up
    optimum_s, optimum_hits = run(fresh(loaded, pool, "fcfs"), prompts)
    rows = {"offline optimum": (optimum_s, optimum_hits)}
    for policy in ("lpm", "dfs-weight", "fcfs", "random"):
        rows[policy] = run(fresh(loaded, pool, cast(SchedulePolicy, policy)), shuffled)
    table = Table(
        title=f"{groups} groups of {per_group}, {prefix} shared tokens, room for {fitting:g} groups"
    )
    for column in ("policy", "hit rate", "of optimum", "seconds", "requests/s", "vs fcfs"):
        table.add_column(column, justify="left" if column == "policy" else "right")
    for name, (seconds, hits) in rows.items():
        table.add_row(
            name,
            f"{hits:.1%}",
            f"{hits / optimum_hits:.1%}",
            f"{seconds:.1f}",
            f"{len(prompts) / seconds:.2f}",
            f"{rows['fcfs'][0] / seconds:.2f}x",
        )
    console.print(table)

    costs = Table(title="Cost of the queue, ms")
    costs.add_column("waiting", justify="right")
    policies = get_args(SchedulePolicy)
    for policy in policies:
        costs.add_column(f"plan, {policy}", justify="right")
    costs.add_column("insert", justify="right")
    for waiting in (10, 100, 1000, 10_000):
        measured = [queue_cost(loaded, waiting, policy) for policy in policies]
        costs.add_row(str(waiting), *(f"{p:.2f}" for p, _ in measured), f"{measured[0][1]:.2f}")
    console.print(costs)


if __name__ == "__main__":
    typer.run(main)
