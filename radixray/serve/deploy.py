"""Run the ASGI app as a Ray Serve application, beside a deployment of model actors."""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import logging
import os
import threading
from types import ModuleType
from typing import Any

import msgspec
from starlette.types import ASGIApp

from radixray.actors.transport import Transport
from radixray.errors import DeploymentError
from radixray.serve.address import listens_everywhere
from radixray.serve.http_config import HttpConfig

MAX_ONGOING_REQUESTS = 10_000
SHUTDOWN_TIMEOUT_S = 2.0
LOGGING = {"log_level": "WARNING", "enable_access_log": False}


def prepare_http() -> None:
    """To be called before Ray is started; makes HTTP quicker to start, and to answer."""
    # Ray's processes inherit these. Serve gives its router a thread and a loop of its own in each
    # process, to keep it apart from blocking user code, which we have none of; and it passes
    # answers from the ingress to the proxy as items of a Ray stream. A bare request costs a third
    # of the CPU without the one and with gRPC for the other, a piece of a streamed answer half.
    os.environ.setdefault("RAY_SERVE_RUN_ROUTER_IN_SEPARATE_LOOP", "0")
    os.environ.setdefault("RAY_SERVE_USE_GRPC_BY_DEFAULT", "1")
    # While Ray starts its processes, this one has nothing else to do.
    threading.Thread(target=_import_serve, name="radixray-import", daemon=True).start()


def _import_serve() -> None:
    # If it cannot be imported, `serve_http` says so.
    with contextlib.suppress(ImportError):
        importlib.import_module("ray.serve")


def serve_http(deployment_name: str, host: str, port: int, config: HttpConfig) -> None:
    """Answer HTTP on every node that runs a replica; returns when the replicas run.

    Ray must be initialised, and the deployment of model actors be up.

    Args:
        deployment_name: of the model actors (`DeploymentConfig.name`).
        host: the interface to listen on.
        port: likewise.
        config: who may send what; its replicas need no CPU of their own.

    Raises:
        DeploymentError: Ray Serve is not installed, listens elsewhere already, or cannot start.
    """
    serve = ray_serve()

    try:
        serve.start(
            http_options={"host": host, "port": port},
            logging_config=LOGGING,
        )
        _check_address(host, port)
        ingress = ingress_bound(deployment_name, config)
        serve.run(ingress, name=_app_name(deployment_name), route_prefix="/")
    except DeploymentError:
        raise
    except Exception as error:  # Serve raises many kinds, all of which mean it did not start
        # An error from Serve's controller comes wrapped in its whole remote traceback.
        cause = getattr(error, "cause", None) or error
        raise DeploymentError(f"Ray Serve cannot start on {host}:{port}: {cause}") from error


def ingress_bound(deployment_name: str, config: HttpConfig, *needs: object) -> Any:
    """The ingress, as the Serve Application that answers for a deployment of model actors.

    Args:
        needs: other Applications that are to run beside it.
    """
    serve = ray_serve()
    # Serve's proxy adds the ids to answers, and takes them without making the ingress wait.
    config = msgspec.structs.replace(config, answers_request_id=False, send_timeout_s=None)

    # The keys stay inside this closure: as an argument of the deployment, or in its environment,
    # Ray would show even their digests in its configuration dump and dashboard.
    def build() -> ASGIApp:
        from radixray.serve.app import build_app

        async def connect() -> Transport:
            from radixray.actors.deployment import attach

            # It asks an actor and waits, which would hold up this loop.
            deployment = await asyncio.to_thread(attach, deployment_name)
            return await deployment.connect()

        return build_app(connect, config=config)

    class Ingress:
        def __init__(self, *needs: object) -> None:
            pass

    ingress = serve.deployment(
        serve.ingress(build)(Ingress),
        name="http",
        num_replicas=config.replicas,
        ray_actor_options={"num_cpus": 0},
        max_ongoing_requests=MAX_ONGOING_REQUESTS,
        graceful_shutdown_wait_loop_s=0.1,
        graceful_shutdown_timeout_s=SHUTDOWN_TIMEOUT_S,
        logging_config=LOGGING,
    )
    return ingress.bind(*needs)


def stop_http(deployment_name: str) -> None:
    """Stop answering HTTP for the deployment; Ray Serve itself too when nothing else uses it."""
    serve = ray_serve()
    name = _app_name(deployment_name)
    applications = serve.status().applications
    if set(applications) <= {name}:
        serve.shutdown()
    else:
        serve.delete(name)


def _app_name(deployment_name: str) -> str:
    return f"radixray-{deployment_name}"


def _check_address(host: str, port: int) -> None:
    # Serve's address is fixed when it first starts in a cluster; a later one is ignored silently.
    from ray.serve.context import _get_global_client

    client = _get_global_client()
    assert client is not None  # Serve has just been started
    options = client.http_config
    if not listens_everywhere() and (options.host, options.port) != (host, port):
        raise DeploymentError(
            f"Ray Serve already listens on {options.host}:{options.port} in this cluster; use "
            "that address, or stop the other Serve applications first"
        )


def ray_serve() -> ModuleType:
    """Ray Serve.

    Raises:
        DeploymentError: it is not installed.
    """
    try:
        from ray import serve
    except ImportError as error:
        raise DeploymentError(
            f"HTTP needs Ray Serve ({error}): pip install 'radixray[serve]'"
        ) from error
    # Serve tells of every step of its start and stop in this process.
    logging.getLogger("ray.serve").setLevel(logging.WARNING)
    return serve
