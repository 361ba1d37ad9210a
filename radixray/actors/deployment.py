"""Starting, finding and stopping the actors of a deployment."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Any

import ray

from radixray.actors import model_actors, scheduler_actor
from radixray.actors.asking import ask
from radixray.actors.engine_client import EngineClient, fetch_served_model
from radixray.actors.interrupts import interrupts_held
from radixray.actors.lifecycle import GRACE_S, Lifecycle
from radixray.actors.members import living_model_actors
from radixray.actors.model_actors import find
from radixray.actors.wire import decode_membership
from radixray.config import NAMESPACE, DeploymentConfig, EngineConfig
from radixray.errors import DeploymentError, NotInitializedError
from radixray.protocol import ModelInfo
from radixray.tokenizer.tokenizer import Tokenizer

log = logging.getLogger("radixray")


@dataclass(slots=True)
class Deployment:
    """A running scheduler actor and its model actors.

    Attributes:
        config: what they were started with.
        owned: whether this process started them; only then does `shutdown` stop them.
        started_ray: whether this process started Ray for them.
        identity: differs from that of a later deployment of the same name.
    """

    config: DeploymentConfig
    owned: bool
    started_ray: bool = False
    identity: str = ""
    _served: tuple[ModelInfo, Tokenizer] | None = None

    async def connect(self) -> EngineClient:
        """A transport for the running event loop.

        Raises:
            EngineDiedError: the actors cannot be reached.
        """
        if self._served is None:
            self._served = await fetch_served_model(self.config)
        return EngineClient(self.config, *self._served)

    def wait_until_ready(self) -> None:
        """Returns when every actor has loaded what it needs.

        Raises:
            DeploymentError: an actor cannot be started, or not in time.
            ModelNotFoundError, UnsupportedModelError, InvalidRequestError: from loading the model.
        """
        if self.owned:
            model_actors.wait_until_ready(list(_HANDLES[self.config.name].values()))

    def scale(self, count: int, *, grace_s: float = GRACE_S) -> None:
        """Returns when the deployment has `count` model actors; requests run on meanwhile.

        New ones start with what is asked for most in their caches. Those that go are drained: their
        requests finish, or go on on others after `grace_s` seconds. Whoever is connected learns of
        it.

        Raises:
            InvalidRequestError: a number is out of its limits.
            DeploymentError: a new model actor cannot be started, and none is then; or another
                process changes the deployment.
            RadixRayError: from loading the model.
        """
        self.config = self._lifecycle().scale(count, grace_s)

    def reload(self, engine: EngineConfig | None = None, *, grace_s: float = GRACE_S) -> None:
        """Starts all model actors anew, one after another; requests run on meanwhile.

        Each is drained first, as by `scale`. A request that waits longer goes on from the tokens
        it has, also with other weights.

        Args:
            engine: for the new ones, with the same tokenizer and no shorter sequences; by default
                the one that they have, whose model is read again.

        Raises:
            InvalidRequestError: `grace_s` is out of its limits.
            DeploymentError: `engine` is not of this kind, and nothing is changed; or an actor
                cannot be started, which is then as it was; or another process changes the
                deployment.
            RadixRayError: from loading the model; likewise.
        """
        self.config = self._lifecycle().reload(engine, grace_s)
        self._served = None

    def gone(self) -> list[str]:
        """Names of its actors that Ray has given up; for a moment also those that are reloaded.

        Raises:
            DeploymentError: the scheduler actor does not answer.
        """
        scheduler = find(self.config.scheduler_actor)
        if scheduler is None:
            return [self.config.scheduler_actor]
        members = decode_membership(ask(scheduler.members))
        return [name for name in members.actors if find(name) is None]

    def _lifecycle(self) -> Lifecycle:
        handles = _HANDLES.setdefault(self.config.name, {})
        return Lifecycle(self.config, owned=self.owned, handles=handles)

    def shutdown(self) -> None:
        """Stops what this process started; a deployment it only attached to lives on."""
        self.stop_actors()
        if self.started_ray:
            ray.shutdown()

    def stop_actors(self) -> None:
        """Stops the actors that this process started; Ray runs on."""
        if self.owned and ray.is_initialized():
            _stop_actors(self.config)


def deploy(
    config: DeploymentConfig,
    *,
    address: str | None = None,
    dashboard: bool = False,
    wait: bool = True,
) -> Deployment:
    """Starts the deployment, or attaches to the running one of that name.

    Args:
        address: of a Ray cluster; None takes the running one, or starts Ray on this machine.
        dashboard: whether a Ray that is started here has its dashboard: ten more processes.
        wait: False returns while the actors still load; `Deployment.wait_until_ready` waits.

    Raises:
        DeploymentError: Ray or the actors cannot be started, or a deployment of this name runs
            with another configuration.
        ModelNotFoundError, UnsupportedModelError, InvalidRequestError: from loading the model.
    """
    started_ray = _ensure_ray(address, dashboard)
    running = find(config.scheduler_actor)
    if running is not None:
        theirs = ask(running.describe)
        if theirs != config:
            raise DeploymentError(
                f"deployment {config.name!r} already runs as {theirs}; attach to it, or choose "
                f"another name",
                param="name",
            )
        return Deployment(theirs, False, started_ray, _identity(running))
    deployment = Deployment(config, True, started_ray)
    try:
        deployment.identity = _start_actors(config)
        if wait:
            deployment.wait_until_ready()
    except BaseException:
        deployment.shutdown()
        raise
    return deployment


def attach(name: str = "default", *, address: str | None = None) -> Deployment:
    """Finds the running deployment of that name.

    Raises:
        NotInitializedError: there is none.
        DeploymentError: no Ray cluster can be reached.
    """
    started_ray = _ensure_ray(address or "auto") if not ray.is_initialized() else False
    scheduler = find(DeploymentConfig(name=name).scheduler_actor)
    if scheduler is None:
        raise NotInitializedError(f"no RadixRay deployment named {name!r} runs on this cluster")
    return Deployment(ask(scheduler.describe), False, started_ray, _identity(scheduler))


def _ensure_ray(address: str | None, dashboard: bool = False) -> bool:
    """Connects to Ray; True if this call did it."""
    if ray.is_initialized():
        return False
    # It warns each user that a cluster of this machine's own needs a token, which it then makes.
    logging.getLogger("ray._private.authentication").setLevel(logging.ERROR)
    try:
        with interrupts_held():
            ray.init(
                address=address,
                namespace=NAMESPACE,
                logging_level=logging.WARNING,
                include_dashboard=None if address else dashboard,
            )
    except Exception as error:  # Ray raises many kinds, plain Exception among them
        raise DeploymentError(f"Ray cannot be reached or started: {error}") from error
    return True


def _start_actors(config: DeploymentConfig) -> str:
    """Starts all actors, and does not wait for them; returns the deployment's identity."""
    # Held for as long as this process lives: the actors end with the one who started them.
    _HANDLES[config.name] = handles = {}
    # Left by a deployment whose owner died; nobody answers for them any more.
    model_actors.end(living_model_actors(config.name))
    scheduler_class: Any = ray.remote(**scheduler_actor.OPTIONS)(scheduler_actor.SchedulerActor)
    scheduler = scheduler_class.options(name=config.scheduler_actor, namespace=NAMESPACE).remote(
        config
    )
    handles[config.scheduler_actor] = scheduler
    for name in map(config.model_actor, range(config.model_actors)):
        handles[name] = model_actors.start(name, config, config.engine)
    return _identity(scheduler)


def _identity(scheduler: Any) -> str:
    return scheduler._actor_id.hex()


def _stop_actors(config: DeploymentConfig) -> None:
    model_actors.end([*living_model_actors(config.name), config.scheduler_actor])
    _HANDLES.pop(config.name, None)


_HANDLES: dict[str, dict[str, Any]] = {}
"""Handles of the actors this process started, by deployment and name."""
