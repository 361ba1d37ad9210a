"""What must be equal, besides the tokens, for two requests to share cached KV.

KV depends on the model, on an adapter's weights, and on the pixels behind image placeholders,
none of which the token ids show; and callers may ask not to share with others. Each combination is
a namespace: separate trees, from the root down.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import msgspec

from radixray.errors import InvalidRequestError

_SHA256 = re.compile("[0-9a-f]{64}")


class ImageKey(msgspec.Struct, frozen=True):
    """An image as the model sees it.

    Attributes:
        sha256: of the encoded bytes, all 64 hexadecimal digits in lower case: a shortened hash
            would let one image answer for another.
        shape: height, width, channels after decoding.
        options: how it was decoded and resized, in any fixed spelling.

    Raises:
        InvalidRequestError: `sha256` is anything else.
    """

    sha256: str
    shape: tuple[int, ...]
    options: str = ""

    def __post_init__(self) -> None:
        if not _SHA256.fullmatch(self.sha256):
            raise InvalidRequestError(
                f"sha256 must be 64 hexadecimal digits in lower case, not {self.sha256!r}",
                param="sha256",
            )


def namespace_of(
    model: str, cache_salt: str = "", *, adapter: str = "", images: Sequence[ImageKey] = ()
) -> str:
    """The namespace of requests with these properties; different ones never give the same.

    Args:
        model: name of the served model.
        cache_salt: the caller's own separation.
        adapter: name and version of an adapter on the model.
        images: in the order of the prompt.
    """
    parts: list[object] = [
        model,
        cache_salt,
        adapter,
        *([i.sha256, i.shape, i.options] for i in images),
    ]
    return msgspec.json.encode(parts).decode()


def salt_of(namespace: str) -> str | None:
    """The cache salt, where the namespace stands for a model and a salt alone; else None."""
    _, cache_salt, *others = msgspec.json.decode(namespace, type=list[object])
    return cache_salt if isinstance(cache_salt, str) and others == [""] else None
