"""API keys: who may send requests, and how much."""

from __future__ import annotations

import hashlib
import hmac
import re
import tomllib
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import msgspec

from radixray.errors import InvalidRequestError

_NAME = re.compile(r"[\w.@-]{1,64}")


class KeyLimits(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What one key may ask of one process of the ingress; None is no limit.

    Attributes:
        max_concurrent: HTTP requests under way at once.
        requests_per_minute: HTTP requests begun.
        tokens_per_minute: tokens of prompts and outputs together, cached ones included.
    """

    max_concurrent: int | None = None
    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None

    def __post_init__(self) -> None:
        for name in KeyLimits.__struct_fields__:
            value = getattr(self, name)
            if value is not None and value < 1:
                raise InvalidRequestError(f"{name} must be at least 1, not {value}", param=name)


class ApiKey(msgspec.Struct, frozen=True):
    """A key by its digest: the key itself is kept nowhere.

    Attributes:
        name: says in logs whose it is.
        digest: SHA-256 of the key.
    """

    name: str
    digest: bytes
    limits: KeyLimits = KeyLimits()

    @classmethod
    def of(cls, name: str, key: str, limits: KeyLimits | None = None) -> ApiKey:
        """The ApiKey for `key`.

        Raises:
            InvalidRequestError: an empty key, or one with spaces, which no client could send.
        """
        if not key or key != "".join(key.split()):
            raise InvalidRequestError(
                f"the API key {name!r} is empty or has spaces in it", param="api_key"
            )
        return cls(name, digest_of(key.encode()), limits or KeyLimits())


def digest_of(key: bytes) -> bytes:
    """What is kept of a key."""
    return hashlib.sha256(key).digest()


def find_key(keys: Iterable[ApiKey], given: bytes) -> ApiKey | None:
    """The key that was `given`, in a time that says nothing about the keys."""
    digest, found = digest_of(given), None
    for key in keys:
        if hmac.compare_digest(digest, key.digest):
            found = key
    return found


class _KeyEntry(KeyLimits, frozen=True, kw_only=True, forbid_unknown_fields=True):
    key: str | None = None
    sha256: str | None = None


class _KeyFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    keys: dict[str, _KeyEntry]


def read_keys(given: Sequence[str], file: Path | None, limits: KeyLimits) -> tuple[ApiKey, ...]:
    """All keys of a server.

    Args:
        given: keys without a name; they are called ``key-1`` and so on.
        file: TOML with a table ``[keys.NAME]`` for each key. It has ``key``, or ``sha256`` with
            the key's digest in hexadecimal, and may have limits of its own.
        limits: where a key has none of its own.

    Raises:
        InvalidRequestError: a file that cannot be read, a bad key, or one that is there twice.
    """
    keys = [ApiKey.of(f"key-{i}", key, limits) for i, key in enumerate(given, start=1)]
    if file is not None:
        keys += [_key_of(name, entry, limits) for name, entry in _read(file).keys.items()]
    for i, key in enumerate(keys):
        for other in keys[:i]:
            if key.digest == other.digest or key.name == other.name:
                raise InvalidRequestError(
                    f"the API keys {other.name!r} and {key.name!r} are the same", param="api_key"
                )
    return tuple(keys)


def _read(file: Path) -> _KeyFile:
    try:
        entries: dict[str, Any] = tomllib.loads(file.read_text(encoding="utf-8"))
        return msgspec.convert(entries, _KeyFile)
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise InvalidRequestError(
            f"the API key file {file} cannot be read: {error}", param="api_key_file"
        ) from error
    except msgspec.ValidationError as error:
        raise InvalidRequestError(
            f"the API key file {file}: {error}", param="api_key_file"
        ) from error


def _key_of(name: str, entry: _KeyEntry, defaults: KeyLimits) -> ApiKey:
    if not _NAME.fullmatch(name):
        raise InvalidRequestError(
            f"an API key's name must be 1 to 64 letters, digits and '_.@-', not {name!r:.80}",
            param="api_key_file",
        )
    own = {field: getattr(entry, field) for field in KeyLimits.__struct_fields__}
    given = {field: value for field, value in own.items() if value is not None}
    limits = msgspec.structs.replace(defaults, **given)
    if (entry.key is None) == (entry.sha256 is None):
        raise InvalidRequestError(
            f"the API key {name!r} needs one of key and sha256", param="api_key_file"
        )
    if entry.key is not None:
        return ApiKey.of(name, entry.key, limits)
    try:
        digest = bytes.fromhex(entry.sha256 or "")
    except ValueError:
        digest = b""
    if len(digest) != hashlib.sha256().digest_size:
        raise InvalidRequestError(
            f"sha256 of the API key {name!r} must be 64 hexadecimal digits", param="api_key_file"
        )
    return ApiKey(name, digest, limits)
