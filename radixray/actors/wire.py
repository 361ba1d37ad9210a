"""msgpack on the wire between actors and their callers.

Ray would pickle these structs; msgpack is smaller and quicker, and one call can carry many.
"""

from __future__ import annotations

import msgspec

from radixray.config import DeploymentConfig, EngineConfig
from radixray.errors import InvalidRequestError
from radixray.protocol import Delta, Handle, ModelInfo, Request, TokenizerFiles
from radixray.reports import CacheSnapshot, CacheTree, PinReport, Placement, StepReport


class PlaceRequest(msgspec.Struct, frozen=True, array_like=True):
    """What the scheduler actor must know of a request.

    Attributes:
        request_id: unique among live requests.
        namespace: of the request (`radixray.namespaces`).
        tokens: little-endian int32 prompt ids.
        session: as in GenerateRequest.
    """

    request_id: str
    namespace: str
    tokens: bytes
    session: str = ""


class CohortHint(msgspec.Struct, frozen=True, array_like=True):
    """Requests with one prefix that are yet to come, for the scheduler actor.

    Attributes:
        cohort_id: to end it by.
        namespace, tokens: the prefix, as in PlaceRequest.
        requests: how many; 0 ends the cohort: no more will come.
        at_once: most of them under way at a time.
        own_tokens: of each prompt, beyond the prefix.
    """

    cohort_id: str
    namespace: str = ""
    tokens: bytes = b""
    requests: int = 0
    at_once: int = 0
    own_tokens: int = 0


class Membership(msgspec.Struct, frozen=True):
    """What a deployment is now.

    Attributes:
        config: as it is now, after all scaling and reloading.
        actors: by name of each model actor, in order: how often it was started again.
    """

    config: DeploymentConfig
    actors: dict[str, int]


class HotPrefix(msgspec.Struct, frozen=True, array_like=True):
    """A prefix that many requests to a model actor began with.

    Attributes:
        cache_salt: of these requests.
        tokens: little-endian int32 ids.
        hits: how many.
    """

    cache_salt: str
    tokens: bytes
    hits: int


class ServedModel(msgspec.Struct, frozen=True, kw_only=True):
    """What a consumer fetches once: the model's limits and its tokenizer."""

    info: ModelInfo
    tokenizer: TokenizerFiles


encode = msgspec.msgpack.Encoder().encode
decode_request = msgspec.msgpack.Decoder(Request).decode
decode_handle = msgspec.msgpack.Decoder(Handle).decode
decode_deltas = msgspec.msgpack.Decoder(list[Delta]).decode
decode_place_request = msgspec.msgpack.Decoder(PlaceRequest).decode
decode_cohort_hint = msgspec.msgpack.Decoder(CohortHint).decode
decode_placements = msgspec.msgpack.Decoder(list[Placement]).decode
decode_report = msgspec.msgpack.Decoder(StepReport).decode
decode_snapshot = msgspec.msgpack.Decoder(CacheSnapshot).decode
decode_served_model = msgspec.msgpack.Decoder(ServedModel).decode
decode_membership = msgspec.msgpack.Decoder(Membership).decode
decode_engine_config = msgspec.msgpack.Decoder(EngineConfig).decode
decode_hot_prefixes = msgspec.msgpack.Decoder(list[HotPrefix]).decode
decode_pin_report = msgspec.msgpack.Decoder(PinReport).decode
decode_cache_tree = msgspec.msgpack.Decoder(CacheTree).decode


def encode_request(request: Request | PlaceRequest | CohortHint) -> bytes:
    """One request for the wire; apart from others, so that one that has no form harms no other.

    Raises:
        InvalidRequestError: it holds a value that has no msgpack form; validation lets none pass
            that it knows of.
    """
    try:
        return encode(request)
    except (OverflowError, TypeError, ValueError) as error:
        raise InvalidRequestError(f"the request cannot be sent: {error}") from error
