"""Changing a deployment while requests run: more model actors, fewer, or others, one by one.

A model actor that is to end is drained first: nothing new is placed there, its requests finish, or
go on elsewhere after a grace time, as they do when an actor dies.
"""

from __future__ import annotations

import itertools
import threading
import uuid
from collections.abc import Generator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import msgspec
import ray
from ray.exceptions import RayError

from radixray.actors import model_actors
from radixray.actors.asking import ask
from radixray.actors.handles import actor_handle
from radixray.actors.members import in_order
from radixray.actors.warming import hottest
from radixray.actors.wire import (
    HotPrefix,
    Membership,
    decode_hot_prefixes,
    decode_membership,
    decode_served_model,
    encode,
)
from radixray.checks import check_int, check_number
from radixray.config import DeploymentConfig, EngineConfig
from radixray.errors import DeploymentError, RadixRayError
from radixray.protocol import ModelInfo

GRACE_S = 30.0
MAX_GRACE_S = 86_400.0
MAX_MODEL_ACTORS = 10_000

ANSWER_S = 10.0
WARM_TIMEOUT_S = 60.0
CLAIM_S = 15.0
DRAIN_EXTRA_S = 30.0
"""Beyond the grace time; who has not drained by then is ended all the same, and replay helps."""


class Lifecycle:
    """Changes one deployment; one such change at a time, from whichever process.

    Args:
        config: of the deployment, as far as names go.
        owned: whether new actors may be children of this process; else they are detached, and end
            with the scheduler actor.
        handles: by name, those that this process holds; kept up to date.

    Raises:
        DeploymentError: the scheduler actor is gone.
    """

    def __init__(self, config: DeploymentConfig, *, owned: bool, handles: dict[str, Any]) -> None:
        self._name = config.name
        self._owned = owned
        self._handles = handles
        try:
            self._scheduler = actor_handle(config.scheduler_actor)
        except ValueError as error:
            raise DeploymentError(f"deployment {config.name!r} is no more: {error}") from error

    def scale(self, count: int, grace_s: float) -> DeploymentConfig:
        """See `Deployment.scale`; the configuration then."""
        check_int("model_actors", count, 1, MAX_MODEL_ACTORS)
        check_number("grace_s", grace_s, 0.0, MAX_GRACE_S)
        with self._claimed():
            now = self._membership()
            names = in_order(now.actors)
            if count > len(names):
                self._grow(now.config, names, count)
            else:
                self._shrink(names[count:], grace_s)
            return self._membership().config

    def reload(self, engine: EngineConfig | None, grace_s: float) -> DeploymentConfig:
        """See `Deployment.reload`; the configuration then."""
        check_number("grace_s", grace_s, 0.0, MAX_GRACE_S)
        with self._claimed():
            now = self._membership()
            engine = engine or now.config.engine
            names = in_order(now.actors)
            for handle in self._found(names):
                self._check_successor(handle, engine)
            for done, name in enumerate(names):
                try:
                    self._replace(name, now.config, engine, grace_s)
                except RadixRayError as error:
                    error.message += f" ({done} of {len(names)} model actors had been reloaded)"
                    error.args = (error.message,)
                    raise
            ask(self._scheduler.configure, encode(engine))
            return self._membership().config

    def _grow(self, config: DeploymentConfig, names: Sequence[str], count: int) -> None:
        config = msgspec.structs.replace(config, model_actors=count)
        free = (n for n in map(config.model_actor, itertools.count()) if n not in names)
        new = list(itertools.islice(free, count - len(names)))
        hot = self._hottest(names)
        handles = [self._start(name, config, config.engine) for name in new]
        try:
            model_actors.wait_until_ready(handles)
        except BaseException:
            self._end(new)
            raise
        self._warm(handles, hot)

    def _shrink(self, names: Sequence[str], grace_s: float) -> None:
        self._drain(names, grace_s)
        self._end(names)

    def _replace(
        self, name: str, config: DeploymentConfig, engine: EngineConfig, grace_s: float
    ) -> None:
        hot = self._hottest(in_order(self._membership().actors))
        running = model_actors.find(name)
        before = None if running is None else self._served(running)
        self._drain([name], grace_s)
        model_actors.end([name])
        handle = self._start(name, config, engine)
        try:
            model_actors.wait_until_ready([handle])
            if before is not None:
                check_same(before, self._served(handle))
        except BaseException:
            # As it was: requests may be waiting for it.
            model_actors.end([name])
            model_actors.wait_until_ready([self._start(name, config, config.engine)])
            raise
        self._warm([handle], hot)

    def _start(self, name: str, config: DeploymentConfig, engine: EngineConfig) -> Any:
        handle = model_actors.start(name, config, engine, detached=not self._owned)
        self._handles[name] = handle
        return handle

    def _drain(self, names: Sequence[str], grace_s: float) -> None:
        calls = [handle.drain.remote(grace_s) for handle in self._found(names)]
        ray.wait(calls, num_returns=len(calls), timeout=grace_s + DRAIN_EXTRA_S)

    def _end(self, names: Sequence[str]) -> None:
        model_actors.end(names)
        for name in names:
            self._handles.pop(name, None)
            ask(self._scheduler.removed, name)

    def _hottest(self, names: Sequence[str]) -> list[HotPrefix]:
        calls = [handle.hot_prefixes.remote() for handle in self._found(names)]
        held: list[list[HotPrefix]] = []
        for call in ray.wait(calls, num_returns=len(calls), timeout=ANSWER_S)[0]:
            with suppress(RayError):  # no news of an actor that is down
                held.append(decode_hot_prefixes(ray.get(call)))
        return hottest(held)

    def _warm(self, handles: Sequence[Any], hot: list[HotPrefix]) -> None:
        # A cold cache is slower, and nothing worse.
        calls = [handle.warm.remote(encode(hot)) for handle in handles]
        ray.wait(calls, num_returns=len(calls), timeout=WARM_TIMEOUT_S)

    def _found(self, names: Sequence[str]) -> list[Any]:
        """Handles, but for those that Ray has given up."""
        return [handle for handle in map(model_actors.find, names) if handle is not None]

    def _check_successor(self, handle: Any, engine: EngineConfig) -> None:
        ask(
            handle.check_successor,
            encode(engine),
            timeout_s=model_actors.START_TIMEOUT_S,  # it may be downloaded
        )

    def _served(self, handle: Any) -> ModelInfo:
        return decode_served_model(ask(handle.describe)).info

    def _membership(self) -> Membership:
        return decode_membership(ask(self._scheduler.members))

    @contextmanager
    def _claimed(self) -> Generator[None, None, None]:
        me = uuid.uuid4().hex
        if not ask(self._scheduler.claim, me, CLAIM_S):
            raise DeploymentError(
                f"deployment {self._name!r} is being scaled or reloaded by another process"
            )
        done = threading.Event()

        def renew() -> None:
            while not done.wait(CLAIM_S / 3):
                with suppress(RayError):
                    self._scheduler.claim.remote(me, CLAIM_S)

        threading.Thread(target=renew, name="radixray-claim", daemon=True).start()
        try:
            yield
        finally:
            done.set()
            with suppress(RayError):
                self._scheduler.claim.remote(me, 0.0)


def check_same(before: ModelInfo, after: ModelInfo) -> None:
    """Raises DeploymentError: requests that were valid before would not be any more."""
    if after.vocab_size != before.vocab_size or after.eos_token_ids != before.eos_token_ids:
        raise DeploymentError("the new model has another vocabulary", param="model")
    if after.max_sequence_tokens < before.max_sequence_tokens:
        raise DeploymentError(
            f"the new model actors would take {after.max_sequence_tokens} tokens in a sequence, "
            f"those that run take {before.max_sequence_tokens}",
            param="context_length",
        )
