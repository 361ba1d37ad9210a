"""Who may run what, and when: limits of keys, and fair shares between them."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing

import msgspec
from starlette.requests import Request

from radixray.actors.transport import Generates
from radixray.errors import InvalidRequestError, OverloadedError
from radixray.protocol import MAX_ID_LENGTH, Delta, GenerateRequest
from radixray.serve.fair import FairShares
from radixray.serve.http_config import HttpConfig
from radixray.serve.keys import find_key
from radixray.serve.tenants import Tenant

MAX_WAITING = 1024
"""Sequences of one key that may wait for their turn."""


class Admission:
    """Those who may send requests to this process, and what they have under way."""

    def __init__(self, config: HttpConfig) -> None:
        self._keys = config.keys
        self._tenants = {key.name: Tenant(key.name, key.limits) for key in config.keys}
        self._anonymous = Tenant("anonymous", config.anonymous)
        # With nobody to share with, a queue here would only hide requests from the engine's.
        self.shares = FairShares(config.fair_slots if len(config.keys) > 1 else None)

    def tenant_of(self, given: bytes | None) -> Tenant | None:
        """Who sends the key that was `given`; None if one is wanted, and this is none."""
        if not self._keys:
            return self._anonymous
        key = None if given is None else find_key(self._keys, given)
        return None if key is None else self._tenants[key.name]


def admit(
    request: Request, transport: Generates, sequences: Sequence[GenerateRequest]
) -> Generates:
    """`transport`, as far as the sender of `request` may use it for `sequences`.

    What they use counts against the limits of the sender's key, and each begins to run when the
    key has its turn. Nothing is queued yet.

    Raises:
        RateLimitError: the prompts have more tokens than the key may use now.
        InvalidRequestError: its session's name is too long.
        OverloadedError: too many sequences of this key wait.
    """
    tenant: Tenant = request.state.tenant
    shares: FairShares = request.app.state.admission.shares
    waiting = shares.waiting(tenant.name)
    if waiting and waiting + len(sequences) > MAX_WAITING:
        raise OverloadedError(
            f"{waiting} sequences of this API key wait already, of at most {MAX_WAITING}"
        )
    # The choices of a prompt share it.
    prompts = {id(each.prompt_ids): len(each.prompt_ids) for each in sequences}
    tenant.ask(sum(prompts.values()))
    return _AdmittedTransport(transport, tenant, shares, _session_of(request))


def _session_of(request: Request) -> str:
    session = request.headers.get("x-session-id", "")
    if len(session) > MAX_ID_LENGTH:
        raise InvalidRequestError(
            f"x-session-id must have at most {MAX_ID_LENGTH} characters, not {len(session)}",
            param="x-session-id",
        )
    return session


class _AdmittedTransport:
    def __init__(
        self, transport: Generates, tenant: Tenant, shares: FairShares, session: str
    ) -> None:
        self._session = session
        self._transport = transport
        self._tenant = tenant
        self._shares = shares

    async def generate(self, request: GenerateRequest) -> AsyncGenerator[Delta, None]:
        """See `Generates.generate`."""
        if self._session and not request.session:
            request = msgspec.structs.replace(request, session=self._session)
        async with (
            self._shares.slot(self._tenant.name),
            aclosing(self._transport.generate(request)) as deltas,
        ):
            async for delta in deltas:
                self._tenant.spend(len(delta.token_ids))
                yield delta
