"""Model actors and their HTTP ingress as one Ray Serve application, e.g. of a config file."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from radixray.config import DeploymentConfig, EngineConfig
from radixray.errors import DeploymentError, InvalidRequestError
from radixray.serve.deploy import LOGGING, ingress_bound, ray_serve
from radixray.serve.http_config import HttpConfig
from radixray.serve.keys import KeyLimits, read_keys

T = TypeVar("T", bound=msgspec.Struct)

KEY, KEY_FILE = "RADIXRAY_API_KEY", "RADIXRAY_API_KEY_FILE"

_OF_DEPLOYMENT = ("model_actors", "name")
_OF_HTTP = (
    "fair_slots",
    "cors_origins",
    "max_body_bytes",
    "body_timeout_s",
    "access_log",
    "replicas",
)


def build(arguments: dict[str, Any]) -> Any:
    """The Serve Application, for ``serve run radixray.serve.app:build model=smollm2-135m``.

    It has two deployments: ``http``, and ``models``, which starts the model actors and ends with
    them. API keys come from the environment, since Ray shows the arguments to everyone.

    Args:
        arguments: those of `EngineConfig`, `DeploymentConfig`, `KeyLimits` and `HttpConfig`, by
            name; and ``allow_unauthenticated``, which is needed where the environment has no keys.
            Serve decides who can reach the port, not this function.

    Raises:
        InvalidRequestError: an unknown or bad argument, or no key.
        DeploymentError: Ray Serve is not installed.
    """
    given = dict(arguments)
    engine = _taken(EngineConfig, given, EngineConfig.__struct_fields__)
    deployment = msgspec.structs.replace(
        _taken(DeploymentConfig, given, _OF_DEPLOYMENT), engine=engine
    )
    limits = _taken(KeyLimits, given, KeyLimits.__struct_fields__)
    http = _taken(HttpConfig, given, _OF_HTTP)
    is_open = _converted(given.pop("allow_unauthenticated", False), bool, "allow_unauthenticated")
    if given:
        raise InvalidRequestError(f"unknown argument {min(given)!r}", param=min(given))
    http = msgspec.structs.replace(http, keys=_keys(limits), anonymous=limits)
    if not http.keys and not is_open:
        raise InvalidRequestError(
            f"set an API key ({KEY} or {KEY_FILE} in the environment of Ray), or give "
            "allow_unauthenticated=true to let everyone in",
            param="allow_unauthenticated",
        )
    if http.fair_slots is None:
        slots = 2 * engine.max_num_seqs * deployment.model_actors // http.replicas
        http = msgspec.structs.replace(http, fair_slots=max(1, slots))
    models = ray_serve().deployment(
        Models, name="models", ray_actor_options={"num_cpus": 0}, logging_config=LOGGING
    )
    return ingress_bound(deployment.name, http, models.bind(deployment))


class Models:
    """Owns the actors of a deployment: they start and end with this replica of Serve's."""

    async def __init__(self, config: DeploymentConfig) -> None:
        from radixray.actors.deployment import deploy

        # It waits for the models, which would hold up this loop.
        self._deployment = await asyncio.to_thread(deploy, config)

    async def check_health(self) -> None:
        """Raises DeploymentError if Ray has given up on an actor; Serve then starts all anew."""
        # One that is being reloaded is not missed: Serve asks several times before it acts.
        gone = await asyncio.to_thread(self._deployment.gone)
        if gone:
            raise DeploymentError(f"actors are gone for good: {', '.join(gone)}")

    def __del__(self) -> None:
        if hasattr(self, "_deployment"):
            self._deployment.shutdown()


def _keys(limits: KeyLimits) -> Any:
    file = os.environ.get(KEY_FILE)
    return read_keys(os.environ.get(KEY, "").split(), Path(file) if file else None, limits)


def _taken(kind: type[T], given: dict[str, Any], names: tuple[str, ...]) -> T:
    """A `kind` of those of the arguments that are its."""
    fields = {field.name: field.type for field in msgspec.structs.fields(kind)}
    mine = {
        name: _converted(given.pop(name), fields[name], name) for name in names if name in given
    }
    return kind(**mine)


def _converted(value: object, kind: Any, name: str) -> Any:
    """From a command line all arguments are text."""
    try:
        return msgspec.convert(value, kind, strict=False)
    except msgspec.ValidationError as error:
        raise InvalidRequestError(f"{name}: {error}", param=name) from error
