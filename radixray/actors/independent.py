"""Work that serves many requests must not belong to one of them.

Ray knows from the context which task makes a call. A call made while one HTTP request is served
is that request's child, and is cancelled with it when its client goes away.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from contextvars import Context
from typing import Any


def independent_task(coroutine: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
    """A task of the running loop in an empty context."""
    return asyncio.get_running_loop().create_task(coroutine, context=Context())


def independent_call(function: Callable[..., object], *args: object) -> None:
    """Calls `function` soon in the running loop, in an empty context."""
    asyncio.get_running_loop().call_soon(function, *args, context=Context())
