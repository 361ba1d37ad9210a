"""Starting model actors, waiting for them, and ending them for good."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterable, Sequence
from typing import Any

import ray
from ray.exceptions import GetTimeoutError, RayError, RayTaskError

from radixray.actors import model_actor
from radixray.actors.handles import actor_handle
from radixray.config import NAMESPACE, DeploymentConfig, EngineConfig
from radixray.errors import DeploymentError, RadixRayError

START_TIMEOUT_S = 600.0
"""Loading a model may include downloading and converting it."""

STOP_TIMEOUT_S = 10.0


def neighbours(model_actors: int) -> int:
    """Model actors on one machine, when so many are spread over all of them."""
    machines = sum(node["Alive"] for node in ray.nodes())
    return -(-model_actors // max(1, machines))


def start(
    name: str, config: DeploymentConfig, engine: EngineConfig, *, detached: bool = False
) -> Any:
    """Starts a model actor, and does not wait for it; its handle.

    Args:
        config: of its deployment.
        detached: it lives as long as the scheduler actor; else also no longer than this process.
    """
    model_class: Any = ray.remote(**model_actor.OPTIONS)(model_actor.ModelActor)
    options: dict[str, Any] = {"lifetime": "detached"} if detached else {}
    if engine.num_gpus:
        options["num_gpus"] = engine.num_gpus
    return model_class.options(
        name=name, namespace=NAMESPACE, scheduling_strategy="SPREAD", **options
    ).remote(name, config.scheduler_actor, engine, neighbours(config.model_actors), detached)


def wait_until_ready(handles: Sequence[Any]) -> None:
    """Returns when these actors have loaded what they need.

    Raises:
        DeploymentError: one cannot be started, or not in time.
        ModelNotFoundError, UnsupportedModelError, InvalidRequestError: from loading the model.
    """
    try:
        ray.get([h.describe.remote() for h in handles], timeout=START_TIMEOUT_S)
    except RayTaskError as error:
        cause = error.cause
        raise cause if isinstance(cause, RadixRayError) else DeploymentError(str(error)) from None
    except GetTimeoutError as error:
        raise DeploymentError(
            f"the model actors did not start within {START_TIMEOUT_S:g} s"
        ) from error
    except RayError as error:
        raise DeploymentError(f"an actor did not start: {error}") from error


def end(names: Iterable[str]) -> None:
    """Ends actors for good, and returns when Ray has let go of their names.

    Until then they can be neither found reliably nor given again.
    """
    left = list(names)
    for name in left:
        with contextlib.suppress(ValueError):
            ray.kill(actor_handle(name))
    until = time.monotonic() + STOP_TIMEOUT_S
    while (left := [name for name in left if find(name) is not None]) and time.monotonic() < until:
        time.sleep(0.02)


def find(name: str) -> Any | None:
    """The handle of an actor, or None where Ray knows none of that name."""
    try:
        return actor_handle(name)
    except ValueError:
        return None
