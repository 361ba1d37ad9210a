"""The address that HTTP is answered on, and who can reach it."""

from __future__ import annotations

import ipaddress
import logging
import os
import socket
import time
import urllib.error
import urllib.request

from radixray.errors import DeploymentError, InvalidRequestError

logger = logging.getLogger(__name__)

READY_WITHIN_S = 120.0


def check_exposure(host: str, *, authenticated: bool) -> None:
    """Refuses an address that other machines can reach where nobody is asked for a key.

    Raises:
        InvalidRequestError: no API key is asked for.
    """
    if authenticated:
        return
    if listens_everywhere():
        raise _open("RAY_SERVE_ENABLE_HA_PROXY=1 makes Ray Serve listen on all interfaces")
    if not _is_loopback(host):
        raise _open(f"{host} can be reached by other machines")


def check_ray(host: str) -> None:
    """Refuses such an address where Ray asks nobody for its token. To be called with Ray running.

    Ray's processes, those of Ray Serve among them, listen on ports of their own for each other, on
    all interfaces whatever `host` is, and run what they are told there.

    Raises:
        InvalidRequestError: the cluster's token authentication is off.
    """
    # Ray sets it itself where it starts a cluster, or finds a token.
    if os.environ.get("RAY_AUTH_MODE") == "token":
        return
    if _is_loopback(host) and not listens_everywhere():
        logger.warning(
            "this Ray cluster runs without token authentication: whoever reaches its ports can "
            "run code. RAY_AUTH_MODE=token turns it on"
        )
    else:
        raise InvalidRequestError(
            f"{host} can be reached by other machines, and this Ray cluster runs without token "
            "authentication, so that whoever reaches its ports can run code: start it with "
            "RAY_AUTH_MODE=token, or say --allow-unauthenticated if a firewall is before them",
            param="host",
        )


def check_port(host: str, port: int) -> None:
    """Raises DeploymentError if nothing can listen there; sooner than loading a model."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            raise DeploymentError(
                f"cannot listen on {host}:{port}: {error.strerror or error}", param="port"
            ) from error


def listens_everywhere() -> bool:
    """Whether Ray Serve is set to its HAProxy mode, which ignores the host it is given."""
    return os.environ.get("RAY_SERVE_ENABLE_HA_PROXY") == "1"


def url_of(host: str, port: int) -> str:
    """Where this machine reaches a server that listens there."""
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def wait_until_ready(url: str) -> None:
    """Raises DeploymentError if /ready does not answer 200 within READY_WITHIN_S."""
    # A proxy set in the environment must not come between us and our own server.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    deadline = time.monotonic() + READY_WITHIN_S
    problem = "no answer"
    while time.monotonic() < deadline:
        try:
            with opener.open(f"{url}/ready", timeout=10):
                return
        except urllib.error.HTTPError as error:
            problem = error.read().decode(errors="replace")
        except OSError as error:
            problem = str(error)
        time.sleep(0.2)
    raise DeploymentError(f"{url}/ready is not well after {READY_WITHIN_S:g} s: {problem}")


def _open(why: str) -> InvalidRequestError:
    return InvalidRequestError(
        f"{why}: set an API key (--api-key or RADIXRAY_API_KEY), or say "
        "--allow-unauthenticated to let everyone in",
        param="host",
    )


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:  # a name: where it leads can change
        return False
