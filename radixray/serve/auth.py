"""The API keys and their limits, in front of every route but /health and /ready."""

from __future__ import annotations

from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Receive, Scope, Send

from radixray.errors import RateLimitError
from radixray.serve.admission import Admission
from radixray.serve.errors import error_response

OPEN_PATHS = ("/health", "/ready")
"""For those who watch over the server, and have no key."""


class KeyCheck:
    """ASGI middleware: a request without ``Authorization: Bearer KEY`` is refused with a 401, one
    beyond the limits of its key with a 429. Neither's body is read.
    """

    def __init__(self, app: ASGIApp, admission: Admission) -> None:
        self._app = app
        self._admission = admission

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] in OPEN_PATHS:
            await self._app(scope, receive, send)
            return
        given = _bearer(Headers(scope=scope))
        tenant = self._admission.tenant_of(given)
        if tenant is None:
            problem = (
                "an API key is required: send 'Authorization: Bearer KEY'"
                if given is None
                else "the API key is not valid"
            )
            error = HTTPException(401, problem, {"WWW-Authenticate": "Bearer"})
            await error_response(error)(scope, receive, send)
            return
        scope.setdefault("state", {})["tenant"] = tenant
        try:
            tenant.enter()
        except RateLimitError as error:
            await error_response(error)(scope, receive, send)
            return
        try:
            await self._app(scope, receive, send)
        finally:
            tenant.leave()


def _bearer(headers: Headers) -> bytes | None:
    scheme, _, given = headers.get("authorization", "").partition(" ")
    if scheme.lower() != "bearer" or not given.strip():
        return None
    # Starlette decodes headers as latin-1, so this restores the bytes that were sent.
    return given.strip().encode("latin-1")
