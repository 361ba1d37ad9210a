"""Finding actors by name."""

from __future__ import annotations

from typing import Any

import ray

from radixray.config import NAMESPACE


def actor_handle(name: str) -> Any:
    """The handle of a named actor of this project.

    Raises:
        ValueError: no such actor lives.
    """
    # Always with the namespace: inside a Serve replica the default one is random.
    return ray.get_actor(name, namespace=NAMESPACE)
