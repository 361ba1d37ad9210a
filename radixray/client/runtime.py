"""The runtime of this process: where its programs run, and a transport per event loop."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from functools import partial
from types import TracebackType

from radixray.actors.transport import Client, ControlsCache, Explains, Place, Transport
from radixray.config import (
    DEFAULT_MODEL,
    DeploymentConfig,
    Dtype,
    EngineConfig,
    EvictionPolicy,
    LoadBalancingPolicy,
    SchedulePolicy,
)
from radixray.errors import InvalidRequestError, NotInitializedError, UnsupportedFeatureError
from radixray.explanation import Explanation
from radixray.reports import CacheTree, EngineStats, PinReport
from radixray.transports.in_process import InProcessEngine

ABANDON_TIMEOUT_S = 2.0
"""A loop that is busy for longer keeps its streams; Ray then ends them."""


class Runtime:
    """A place in use. Also an async context manager that shuts it down at the end."""

    def __init__(self, place: Place) -> None:
        self._place = place
        # A client's futures belong to one loop; programs may run in several.
        self._clients: dict[asyncio.AbstractEventLoop, asyncio.Task[Client]] = {}

    @property
    def config(self) -> DeploymentConfig:
        """What the deployment on Ray was started with.

        Raises:
            UnsupportedFeatureError: programs do not run on Ray here.
        """
        if self._place.config is None:
            raise UnsupportedFeatureError("this runtime is no deployment on Ray", param="config")
        return self._place.config

    async def transport(self) -> Client:
        """The transport of the running event loop.

        Raises:
            EngineDiedError: what it leads to cannot be reached.
        """
        self._forget_closed_loops()
        loop = asyncio.get_running_loop()
        connecting = self._clients.get(loop)
        if connecting is None or (connecting.done() and _result_of(connecting) is None):
            connecting = self._clients[loop] = loop.create_task(self._place.connect())
        # Shielded: many programs may wait for this, and one of them being cancelled is no reason.
        return await asyncio.shield(connecting)

    async def stats(self) -> dict[str, EngineStats]:
        """Counters of each engine by name; one that does not answer is not `reachable`."""
        return await (await self.transport()).stats()

    async def pin(
        self, prompt: str | list[int], ttl_s: float, *, cache_salt: str = ""
    ) -> dict[str, PinReport]:
        """Keeps what is cached of a prompt, text or token ids; see `ControlsCache.pin`.

        Raises:
            UnsupportedFeatureError: the caches are out of reach from here.
        """
        transport = await self.transport()
        ids = transport.tokenizer.encode(prompt) if isinstance(prompt, str) else prompt
        return await _cache_of(transport, "pin").pin(ids, ttl_s, cache_salt=cache_salt)

    async def flush(self) -> int:
        """Empties the caches of what no request uses; pages freed."""
        return await (await self.transport()).flush()

    async def cache_tree(self, limit: int = 100) -> dict[str, CacheTree]:
        """What each engine has cached, for people to look at; raises as `pin`."""
        return await _cache_of(await self.transport(), "cache_tree").cache_tree(limit)

    async def explain(self, request_id: str) -> Explanation:
        """Why one of the latest requests went where it went, and found what it found.

        Raises:
            InvalidRequestError: nothing is known of it.
            UnsupportedFeatureError: what runs it here cannot tell.
        """
        transport = await self.transport()
        if not isinstance(transport, Explains):
            raise UnsupportedFeatureError("explain is not possible over this transport")
        return await transport.explain(request_id)

    async def aclose(self) -> None:
        """Closes this loop's transport; what it leads to lives on."""
        connecting = self._clients.pop(asyncio.get_running_loop(), None)
        if connecting is not None:
            await asyncio.wait([connecting])
            client = _result_of(connecting)
            if client is not None:
                await client.close()

    def shutdown(self) -> None:
        """Stops the actors, the engine and Ray, as far as this process started them.

        Programs that still run fail with EngineDiedError.
        """
        global _current
        if _current is self:
            _current = None
        self.abandon()
        self._place.shutdown()

    def abandon(self) -> None:
        """Leaves the place: requests under way fail, in whichever loop they are."""
        clients, self._clients = self._clients, {}
        for loop, connecting in clients.items():
            if loop.is_closed():
                continue
            if loop.is_running() and loop is not _running_loop():
                done = threading.Event()
                loop.call_soon_threadsafe(_abandon, connecting, done)
                done.wait(ABANDON_TIMEOUT_S)
            else:
                _abandon(connecting)

    def runs(self, config: DeploymentConfig, in_process: bool) -> bool:
        """Whether `init` with these settings would start what is in use."""
        if in_process:
            return self._place.identity == InProcessEngine.identity_of(config.engine)
        return self._place.config == config

    def is_same(self, place: Place) -> bool:
        """Whether this uses the very place, not one that had its name before."""
        return self._place.identity == place.identity

    @property
    def owned(self) -> bool:
        """Whether this process started what runs there."""
        return self._place.owned

    async def __aenter__(self) -> Runtime:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            await self.aclose()
        finally:
            self.shutdown()

    def _forget_closed_loops(self) -> None:
        for loop in [loop for loop in self._clients if loop.is_closed()]:
            del self._clients[loop]


def _abandon(connecting: asyncio.Task[Client], done: threading.Event | None = None) -> None:
    client = _result_of(connecting) if connecting.done() else None
    if client is not None:
        client.abandon()
    connecting.cancel()
    if done is not None:
        done.set()


def _result_of(connecting: asyncio.Task[Client]) -> Client | None:
    if connecting.cancelled() or connecting.exception() is not None:
        return None
    return connecting.result()


def _cache_of(transport: Transport, asked: str) -> ControlsCache:
    if not isinstance(transport, ControlsCache):
        raise UnsupportedFeatureError(
            f"{asked} is not possible where this runtime's programs run", param=asked
        )
    return transport


def _running_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


_current: Runtime | None = None


def init(
    model: str = DEFAULT_MODEL,
    *,
    model_actors: int = 1,
    dtype: Dtype = "bfloat16",
    page_size: int = 1,
    max_total_tokens: int | None = None,
    context_length: int | None = None,
    chunked_prefill_size: int = 512,
    max_num_seqs: int = 64,
    max_running_requests: int | None = None,
    max_queued_requests: int = 4096,
    prefix_cache: bool = True,
    schedule_policy: SchedulePolicy = "lpm",
    eviction_policy: EvictionPolicy = "lru",
    pin_budget: int | None = None,
    mem_fraction_static: float | None = None,
    cpu_threads: int | None = None,
    load_balancing_policy: LoadBalancingPolicy = "prefix",
    tree_cache_threshold: float = 0.0,
    sticky_sessions: bool = False,
    num_gpus: float = 0.0,
    name: str = "default",
    address: str | None = None,
    in_process: bool = False,
) -> Runtime:
    """Starts RadixRay on Ray, or attaches to the deployment of that name, for this process.

    Ray is started on this machine unless it is initialised, `address` or ``RAY_ADDRESS`` names a
    cluster, or ``ray start`` has started one here; ``address="local"`` starts one all the same. The
    parameters are those of `EngineConfig` and `DeploymentConfig`; `max_running_requests` is
    SGLang's name for `max_num_seqs`.

    With `in_process`, one engine runs in a thread of this process instead, without Ray;
    `model_actors`, `name` and `address` say nothing then and must be left out.

    Raises:
        InvalidRequestError: a parameter is out of its limits, or a runtime is in use already.
        ModelNotFoundError, UnsupportedModelError: from loading the model.
        DeploymentError: Ray or an actor could not be started.
    """
    config = DeploymentConfig(
        engine=EngineConfig(
            model=model,
            dtype=dtype,
            page_size=page_size,
            max_total_tokens=max_total_tokens,
            context_length=context_length,
            chunked_prefill_size=chunked_prefill_size,
            max_num_seqs=max_num_seqs if max_running_requests is None else max_running_requests,
            max_queued_requests=max_queued_requests,
            prefix_cache=prefix_cache,
            schedule_policy=schedule_policy,
            eviction_policy=eviction_policy,
            pin_budget=pin_budget,
            mem_fraction_static=mem_fraction_static,
            cpu_threads=cpu_threads,
            num_gpus=num_gpus,
        ),
        model_actors=model_actors,
        name=name,
        load_balancing_policy=load_balancing_policy,
        tree_cache_threshold=tree_cache_threshold,
        sticky_sessions=sticky_sessions,
    )
    if in_process:
        for param, value, default in (
            ("model_actors", model_actors, 1),
            ("name", name, "default"),
            ("address", address, None),
        ):
            if value != default:
                raise InvalidRequestError(f"{param} does not go with in_process", param=param)
    if _current is not None:
        if _current.runs(config, in_process):
            return _current
        raise InvalidRequestError(
            "a runtime with another configuration is in use; call rr.shutdown() first"
        )
    if in_process:
        return _use(InProcessEngine(config.engine))
    from radixray.actors.deployment import deploy

    return _use(deploy(config, address=address))


def attach(name: str = "default", *, address: str | None = None) -> Runtime:
    """Uses a deployment that runs already, e.g. one started by ``radixray serve``.

    Leaves the one attached to before, if any.

    Raises:
        NotInitializedError: there is none of that name.
        DeploymentError: no Ray cluster can be reached.
        InvalidRequestError: a runtime that this process started is in use.
    """
    from radixray.actors import deployment

    return use(deployment.attach(name, address=address))


def use(place: Place) -> Runtime:
    """Makes `place` the one where programs of this process run, in place of the last.

    Raises:
        InvalidRequestError: a runtime that this process started is in use.
    """
    if _current is not None:
        if _current.is_same(place):
            return _current
        if _current.owned:
            raise InvalidRequestError(
                "a runtime that this process started is in use; call rr.shutdown() first",
                param="name",
            )
        _current.abandon()
    return _use(place)


def shutdown() -> None:
    """Shuts the current runtime down; without one, does nothing."""
    if _current is not None:
        _current.shutdown()


def current_runtime() -> Runtime:
    """The runtime of this process.

    Raises:
        NotInitializedError: none of `init`, `attach` and `connect` was called.
    """
    if _current is None:
        raise NotInitializedError("no runtime: call rr.init() first")
    return _current


async def current_transport() -> Transport:
    """The transport of the current runtime and the running event loop.

    Raises:
        NotInitializedError: none of `init`, `attach` and `connect` was called.
        EngineDiedError: what it leads to cannot be reached.
    """
    return await _transport_below(len(_diversions))


Connect = Callable[[], Awaitable[Transport]]


@contextmanager
def diverted(diversion: Callable[[Connect], Awaitable[Transport]]) -> Iterator[None]:
    """Inside, programs of this process that name no transport get the diversion's.

    Args:
        diversion: is given what connects to the transport they would have got.
    """
    _diversions.append(diversion)
    try:
        yield
    finally:
        _diversions.remove(diversion)


_diversions: list[Callable[[Connect], Awaitable[Transport]]] = []


async def _transport_below(depth: int) -> Transport:
    if not depth:
        return await current_runtime().transport()
    return await _diversions[depth - 1](partial(_transport_below, depth - 1))


def _use(place: Place) -> Runtime:
    global _current
    _current = Runtime(place)
    return _current
