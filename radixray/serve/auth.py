"""The API key check, in front of every route but /health and /ready."""

from __future__ import annotations

import hmac

from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Receive, Scope, Send

from radixray.serve.errors import error_response


class BearerAuth:
    """ASGI middleware: refuses requests without ``Authorization: Bearer KEY`` with a 401."""

    def __init__(self, app: ASGIApp, api_key: str) -> None:
        self._app = app
        self._key = api_key.encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["path"] not in ("/health", "/ready"):
            problem = self._problem(Headers(scope=scope))
            if problem is not None:
                error = HTTPException(401, problem, {"WWW-Authenticate": "Bearer"})
                await error_response(error)(scope, receive, send)
                return
        await self._app(scope, receive, send)

    def _problem(self, headers: Headers) -> str | None:
        scheme, _, given = headers.get("authorization", "").partition(" ")
        if scheme.lower() != "bearer" or not given.strip():
            return "an API key is required: send 'Authorization: Bearer KEY'"
        # Starlette decodes headers as latin-1, so this restores the bytes that were sent.
        if not hmac.compare_digest(given.strip().encode("latin-1"), self._key):
            return "the API key is not valid"
        return None
