"""`rr.connect` and its kin: programs that run on a server over HTTP."""

from __future__ import annotations

from radixray.client.runtime import Runtime, use
from radixray.errors import InvalidRequestError


def connect(url: str, *, api_key: str | None = None) -> Runtime:
    """Uses a RadixRay server, e.g. one started by ``radixray serve``, over HTTP.

    Programs can do there what they can on Ray, but for constraints by Python code, and for pins.
    The server is asked at the first use. Leaves the place used before, if any.

    Args:
        url: e.g. ``http://127.0.0.1:8000``.
        api_key: what the server wants, if it does.

    Raises:
        InvalidRequestError: no such URL, or a runtime that this process started is in use.
    """
    from radixray.transports.radixray_server import RadixRayServer

    check_url("url", url)
    return use(RadixRayServer(url, api_key))


def check_url(name: str, url: object) -> None:
    """Raises InvalidRequestError: no URL of an HTTP server."""
    if not isinstance(url, str) or not url.startswith(("http://", "https://")):
        raise InvalidRequestError(f"{name} must begin with http:// or https://", param=name)
