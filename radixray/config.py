"""Configuration of a model actor and of a deployment: plain data, checked where it is made."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Literal, get_args

import msgspec

from radixray.checks import check_choice, check_int, check_number
from radixray.errors import InvalidRequestError

DEFAULT_MODEL = "smollm2-135m"
NAMESPACE = "radixray"
"""The Ray namespace of all RadixRay actors."""

Dtype = Literal["bfloat16", "float32"]
SchedulePolicy = Literal["lpm", "fcfs", "dfs-weight", "lof", "random", "priority"]
LoadBalancingPolicy = Literal[
    "prefix", "round_robin", "least_loaded", "power_of_two", "consistent_hash", "random"
]
EvictionPolicy = Literal["lru", "lfu", "fifo", "mru", "slru", "priority"]


def home() -> Path:
    """The folder for caches: `$RADIXRAY_HOME`, by default ``~/.cache/radixray``."""
    return Path(os.environ.get("RADIXRAY_HOME") or Path.home() / ".cache" / "radixray")


class EngineConfig(msgspec.Struct, frozen=True, kw_only=True):
    """What one model actor needs to know.

    Attributes:
        model: an embedded name, a local folder, or a Hub id, in Hugging Face format.
        dtype: of weights, activations and KV cache.
        page_size: tokens a KV page holds; prefixes are shared in whole pages.
        max_total_tokens: tokens the KV pool holds; None takes what `mem_fraction_static` allows.
        mem_fraction_static: part of the memory free before loading that weights and KV pool may
            take together; None takes a pool of 65,536 tokens, or of a quarter of the free memory
            where that is less.
        context_length: most tokens in one sequence; None takes the model's own limit.
        chunked_prefill_size: most tokens one step computes; longer prompts take several steps.
        max_num_seqs: most requests that run at once.
        max_queued_requests: most requests that wait; more are refused with `OverloadedError`.
        prefix_cache: False makes every request compute its whole prompt.
        schedule_policy: in which order waiting requests start (`radixray.scheduler.order`).
        eviction_policy: which cached prefixes go first (`radixray.cache.eviction`).
        pin_budget: most pages that pins may hold; None allows a quarter of the pool.
        cpu_threads: threads for the CPU kernels; None shares the cores of a machine among the model
            actors on it (`radixray.kernels.cpu.threads`).
        fsm_debug: log and report, for every constrained output, how each token came to be: what
            was allowed, what was forced, and why.
        overlap: make text of a step's tokens, and prepare what comes next, while the model
            computes; False does one after the other.
        num_gpus: GPUs that Ray is to give each model actor; it starts where so many are free.
        check_invariants: check the page ledger after every step (slow; for tests).
    """

    model: str = DEFAULT_MODEL
    dtype: Dtype = "bfloat16"
    page_size: int = 1
    max_total_tokens: int | None = None
    context_length: int | None = None
    chunked_prefill_size: int = 512
    max_num_seqs: int = 64
    max_queued_requests: int = 4096
    prefix_cache: bool = True
    schedule_policy: SchedulePolicy = "lpm"
    eviction_policy: EvictionPolicy = "lru"
    pin_budget: int | None = None
    mem_fraction_static: float | None = None
    cpu_threads: int | None = None
    fsm_debug: bool = False
    overlap: bool = True
    num_gpus: float = 0.0
    check_invariants: bool = False

    def __post_init__(self) -> None:
        for name, choices in (
            ("dtype", Dtype),
            ("schedule_policy", SchedulePolicy),
            ("eviction_policy", EvictionPolicy),
        ):
            check_choice(name, getattr(self, name), get_args(choices))
        if self.mem_fraction_static is not None:
            check_number("mem_fraction_static", self.mem_fraction_static, 0.01, 1.0)
            if self.max_total_tokens is not None:
                raise InvalidRequestError(
                    "give max_total_tokens or mem_fraction_static, not both",
                    param="mem_fraction_static",
                )
        check_number("num_gpus", self.num_gpus, 0.0, 64.0)
        if not isinstance(self.model, str) or not self.model:
            raise InvalidRequestError("model must be a non-empty string", param="model")
        for name in ("page_size", "chunked_prefill_size", "max_num_seqs", "max_queued_requests"):
            check_int(name, getattr(self, name), 1)
        for name in ("max_total_tokens", "context_length", "cpu_threads", "pin_budget"):
            if getattr(self, name) is not None:
                check_int(name, getattr(self, name), 1)


class DeploymentConfig(msgspec.Struct, frozen=True, kw_only=True):
    """A whole deployment: the engine of each model actor, and how many there are.

    Attributes:
        engine: the configuration every model actor gets.
        model_actors: number of model actors; each owns a replica of the model and a radix tree.
        name: prefix of the actors' names, so that several deployments can share a cluster.
        max_replays: how often a request may lose its model actor and go on on another; 0 lets it
            fail the first time.
        replay_timeout_s: how long a request that lost its actor may go without a new token; then
            it fails. Starting an actor again takes as long as loading its model.
        load_balancing_policy: which model actor a request goes to (`radixray.scheduler.policies`).
        tree_cache_threshold: for ``prefix``: where less than this part of a prompt is cached, it
            goes where least is to be done.
        sticky_sessions: requests of one session go where its last one went, as long as that actor
            can be reached, whatever the policy.
        poisoned_after: a request that lost its actor is computed alone until its next token; when
            so many actors in a row die while they do that, it is given up.
    """

    engine: EngineConfig = EngineConfig()
    model_actors: int = 1
    name: str = "default"
    max_replays: int = 1000
    replay_timeout_s: float = 120.0
    poisoned_after: int = 2
    load_balancing_policy: LoadBalancingPolicy = "prefix"
    tree_cache_threshold: float = 0.0
    sticky_sessions: bool = False

    def __post_init__(self) -> None:
        check_int("model_actors", self.model_actors, 1)
        check_int("max_replays", self.max_replays, 0)
        check_int("poisoned_after", self.poisoned_after, 1)
        policies = get_args(LoadBalancingPolicy)
        check_choice("load_balancing_policy", self.load_balancing_policy, policies)
        check_number("tree_cache_threshold", self.tree_cache_threshold, 0.0, 1.0)
        if not isinstance(self.sticky_sessions, bool):
            raise InvalidRequestError(
                f"sticky_sessions must be true or false, not {self.sticky_sessions!r}",
                param="sticky_sessions",
            )
        check_number("replay_timeout_s", self.replay_timeout_s, 0.0, 86_400.0)
        if not isinstance(self.name, str) or not self.name:
            raise InvalidRequestError("name must be a non-empty string", param="name")

    @property
    def scheduler_actor(self) -> str:
        """The Ray name of the scheduler actor."""
        return f"{self.name}/scheduler"

    def model_actor(self, index: int) -> str:
        """The Ray name of model actor `index`."""
        return f"{self.name}/model-{index}"
