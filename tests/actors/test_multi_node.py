"""Model actors on several machines (three nodes of Ray's here), one of which is lost under load."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

# A process of its own: this one may be connected to another Ray.
PROGRAM = """
import asyncio, logging, os
os.environ["RAY_health_check_initial_delay_ms"] = "1000"
os.environ["RAY_health_check_period_ms"] = "1000"
os.environ["RAY_health_check_failure_threshold"] = "3"
import ray
from ray.cluster_utils import Cluster
from radixray.actors.deployment import deploy
from radixray.actors.handles import actor_handle
from radixray.config import DeploymentConfig, EngineConfig
from radixray.protocol import GenerateRequest, SamplingParams, join_deltas

CONFIG = DeploymentConfig(
    name="nodes", model_actors=3,
    engine=EngineConfig(max_total_tokens=4096, cpu_threads=1, num_gpus=1, check_invariants=True),
)

async def outcome(client, name, number):
    request = GenerateRequest(
        request_id=f"{name}-{number}",
        prompt_ids=client.tokenizer.encode(f"Question {number}. Where is the"),
        sampling=SamplingParams(temperature=number % 2, seed=number, max_tokens=120,
                                ignore_eos=True))
    joined = join_deltas([delta async for delta in client.generate(request)])
    return joined.token_ids, joined.text

async def outcomes(client, name):
    return await asyncio.gather(*(outcome(client, name, n) for n in range(12)))

async def node_of(name):
    get = lambda _: ray.get_runtime_context().get_node_id()
    return await actor_handle(name).__ray_call__.remote(get)

async def check(cluster, nodes):
    deployment = deploy(CONFIG)
    client = await deployment.connect()
    names = [CONFIG.model_actor(n) for n in range(3)]
    homes = {name: await node_of(name) for name in names}
    gpus = await asyncio.gather(*(
        actor_handle(name).__ray_call__.remote(lambda _: len(ray.get_gpu_ids()))
        for name in names))
    assert gpus == [1, 1, 1], gpus
    assert len(set(homes.values())) == 3, homes
    calm = await outcomes(client, "calm")
    running = asyncio.create_task(outcomes(client, "disturbed"))
    while not (await client.stats())[names[1]].running:
        await asyncio.sleep(0.05)
    [lost] = [node for node in nodes if node.node_id == homes[names[1]]]
    cluster.remove_node(lost, allow_graceful=False)
    assert not running.done()
    assert await running == calm
    # Nobody has a GPU for it now.
    stats = await client.stats()
    assert [stats[name].reachable for name in names] == [True, False, True], stats
    cluster.add_node(num_cpus=1, num_gpus=1)
    async with asyncio.timeout(60):
        while not (await client.stats())[names[1]].reachable:
            await asyncio.sleep(0.2)
    assert await node_of(names[1]) not in homes.values()
    assert await outcomes(client, "again") == calm
    for each in (await client.stats()).values():
        assert (each.pages_leased, each.ledger_violations) == (0, 0)
        assert each.pages_free + each.pages_tree == each.pages_total
    assert (await client.stats())[names[1]].restarts >= 1
    await client.close()
    deployment.shutdown()

cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "num_gpus": 0})
try:
    nodes = [cluster.add_node(num_cpus=1, num_gpus=1) for _ in range(3)]
    ray.init(address=cluster.address, namespace="radixray", logging_level=logging.WARNING)
    asyncio.run(check(cluster, nodes))
finally:
    ray.shutdown()
    cluster.shutdown()
print("all is well")
"""


@pytest.mark.timeout(240)
def test_a_machine_is_lost_under_load(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    env = {name: value for name, value in os.environ.items() if name != "RAY_ADDRESS"}
    env["PYTHONPATH"] = str(Path(__file__).parents[2])
    done = subprocess.run(
        [sys.executable, str(program)], capture_output=True, text=True, timeout=230, env=env
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    assert "all is well" in done.stdout
