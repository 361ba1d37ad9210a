"""Configuration of a model actor and of a deployment: plain data, checked where it is made."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Literal, get_args

import msgspec

from radixray.checks import check_int
from radixray.errors import InvalidRequestError

DEFAULT_MODEL = "smollm2-135m"
NAMESPACE = "radixray"
"""The Ray namespace of all RadixRay actors."""

Dtype = Literal["bfloat16", "float32"]


def home() -> Path:
    """The folder for caches: `$RADIXRAY_HOME`, by default ``~/.cache/radixray``."""
    return Path(os.environ.get("RADIXRAY_HOME") or Path.home() / ".cache" / "radixray")


class EngineConfig(msgspec.Struct, frozen=True, kw_only=True):
    """What one model actor needs to know.

    Attributes:
        model: an embedded name, a local folder, or a Hub id, in Hugging Face format.
        dtype: of weights, activations and KV cache.
        page_size: tokens a KV page holds; prefixes are shared in whole pages.
        max_total_tokens: tokens the KV pool holds; None takes 65,536 or what a quarter of the
            free memory allows, whichever is less.
        context_length: most tokens in one sequence; None takes the model's own limit.
        chunked_prefill_size: most tokens one step computes; longer prompts take several steps.
        max_num_seqs: most requests that run at once.
        max_queued_requests: most requests that wait; more are refused with `OverloadedError`.
        prefix_cache: False makes every request compute its whole prompt.
        cpu_threads: threads for the CPU kernels; None shares the cores among the model actors.
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
    cpu_threads: int | None = None
    check_invariants: bool = False

    def __post_init__(self) -> None:
        if self.dtype not in get_args(Dtype):
            raise InvalidRequestError(
                f"dtype must be one of {list(get_args(Dtype))}, not {self.dtype!r}", param="dtype"
            )
        if not isinstance(self.model, str) or not self.model:
            raise InvalidRequestError("model must be a non-empty string", param="model")
        for name in ("page_size", "chunked_prefill_size", "max_num_seqs", "max_queued_requests"):
            check_int(name, getattr(self, name), 1)
        for name in ("max_total_tokens", "context_length", "cpu_threads"):
            if getattr(self, name) is not None:
                check_int(name, getattr(self, name), 1)


class DeploymentConfig(msgspec.Struct, frozen=True, kw_only=True):
    """A whole deployment: the engine of each model actor, and how many there are.

    Attributes:
        engine: the configuration every model actor gets.
        model_actors: number of model actors; each owns a replica of the model and a radix tree.
        name: prefix of the actors' names, so that several deployments can share a cluster.
    """

    engine: EngineConfig = EngineConfig()
    model_actors: int = 1
    name: str = "default"

    def __post_init__(self) -> None:
        check_int("model_actors", self.model_actors, 1)
        if not isinstance(self.name, str) or not self.name:
            raise InvalidRequestError("name must be a non-empty string", param="name")

    @property
    def scheduler_actor(self) -> str:
        """The Ray name of the scheduler actor."""
        return f"{self.name}/scheduler"

    def model_actor(self, index: int) -> str:
        """The Ray name of model actor `index`."""
        return f"{self.name}/model-{index}"
