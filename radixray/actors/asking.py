"""A question to an actor, from a thread that may wait."""

from __future__ import annotations

import time
from typing import Any

import ray
from ray.exceptions import ActorUnavailableError, GetTimeoutError, RayError, RayTaskError

from radixray.errors import DeploymentError, RadixRayError

AGAIN_S = 0.1


def ask(method: Any, *arguments: object, timeout_s: float = 60.0) -> Any:
    """What an actor answers. One that is being started again is asked again.

    Args:
        method: of an actor's handle; to call it twice must do no harm.

    Raises:
        RadixRayError: what the actor raises.
        DeploymentError: it does not answer in time, or is no more.
    """
    end = time.monotonic() + timeout_s
    while True:
        try:
            return ray.get(method.remote(*arguments), timeout=max(0.0, end - time.monotonic()))
        except RayTaskError as error:
            if isinstance(error.cause, RadixRayError):
                raise error.cause from None
            raise DeploymentError(f"an actor failed: {error}") from error
        except ActorUnavailableError as error:
            if time.monotonic() >= end:
                raise DeploymentError(f"an actor does not answer: {error}") from error
            time.sleep(AGAIN_S)
        except (RayError, GetTimeoutError) as error:
            raise DeploymentError(f"an actor does not answer: {error}") from error
