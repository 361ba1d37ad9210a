"""How the HTTP application behaves."""

from __future__ import annotations

import msgspec

from radixray.errors import InvalidRequestError
from radixray.serve.keys import ApiKey, KeyLimits


class HttpConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Who may send what to the HTTP application, and what it tells of it.

    Attributes:
        keys: one of them must come with each request; none lets everyone in.
        anonymous: the limits that all share where there are no keys.
        fair_slots: sequences that run at once, as shared out evenly between the keys; further
            ones wait for their turn. None shares out nothing.
        cors_origins: web pages of these origins may send requests; ``*`` is all.
        max_body_bytes: of a request.
        body_timeout_s: within which a request's body must have come.
        send_timeout_s: within which a client must take each piece of its answer; None waits.
        access_log: file to which a line of JSON is added for each request; ``-`` is stderr.
        answers_request_id: add ``x-request-id`` to answers; False where a server in front does.
        replicas: processes that answer, each with limits and shares of its own.
    """

    keys: tuple[ApiKey, ...] = ()
    anonymous: KeyLimits = KeyLimits()
    fair_slots: int | None = None
    cors_origins: tuple[str, ...] = ()
    max_body_bytes: int = 32 * 2**20
    body_timeout_s: float = 60.0
    send_timeout_s: float | None = 60.0
    access_log: str | None = None
    answers_request_id: bool = True
    replicas: int = 1

    def __post_init__(self) -> None:
        for name in (
            "max_body_bytes",
            "body_timeout_s",
            "send_timeout_s",
            "fair_slots",
            "replicas",
        ):
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise InvalidRequestError(f"{name} must be above 0, not {value}", param=name)
