"""Images in programs: from files, bytes, Pillow's images and URLs."""

from __future__ import annotations

import asyncio
import base64
import binascii
import hashlib
import io
import os
import sys
import warnings
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote_to_bytes

from radixray.client.expressions import Expression
from radixray.errors import InvalidRequestError, UnsupportedInputError
from radixray.images import IMAGE_FORMATS, MAX_IMAGE_BYTES, Image, check_image_bytes

if TYPE_CHECKING:
    import PIL.Image

FETCH_TIMEOUT_S = 30.0


@dataclass(frozen=True)
class Picture:
    """An image and its bytes."""

    image: Image
    data: bytes = field(repr=False)


@dataclass(frozen=True)
class ImageExpression(Expression):
    """An image; one at a URL is fetched when it is appended."""

    source: Picture | str

    async def load(self) -> Picture:
        """The image.

        Raises:
            InvalidRequestError: it cannot be fetched, or read.
        """
        if isinstance(self.source, Picture):
            return self.source
        return _picture(await asyncio.to_thread(_fetch, self.source))


def image(source: str | os.PathLike[str] | bytes | PIL.Image.Image) -> ImageExpression:
    """An image, for a model that sees.

    Where the model takes none, the state fails with UnsupportedInputError.

    Args:
        source: a file's path, encoded bytes (png, jpeg, webp, gif or bmp), an image of Pillow's,
            or a URL that begins with ``data:``, ``http://`` or ``https://``. The last two are
            fetched when the image is appended, and what fails then fails the state.

    Raises:
        InvalidRequestError: none of these, not readable, or too large.
        UnsupportedInputError: Pillow is not installed.
    """
    if isinstance(source, str) and source.startswith(("http://", "https://")):
        return ImageExpression(source)
    return ImageExpression(_picture(_bytes_of(source)))


def _bytes_of(source: Any) -> bytes:
    if isinstance(source, bytes | bytearray | memoryview):
        return bytes(source)
    if isinstance(source, str) and source.startswith("data:"):
        return _data_url(source)
    if isinstance(source, str | os.PathLike):
        return _file(source)
    pillow = sys.modules.get("PIL.Image")
    if pillow is not None and isinstance(source, pillow.Image):
        encoded = io.BytesIO()
        try:
            source.save(encoded, "PNG")
        except (OSError, ValueError) as error:
            raise _refusal(f"cannot be encoded: {error}") from error
        return encoded.getvalue()
    raise _refusal(f"must be a path, bytes, an image of Pillow's, or a URL, not {source!r:.80}")


def _file(path: str | os.PathLike[str]) -> bytes:
    try:
        check_image_bytes(os.path.getsize(path), "image")
        with open(path, "rb") as file:
            return file.read(MAX_IMAGE_BYTES + 1)
    except (OSError, ValueError) as error:
        raise _refusal(f"cannot be read from {str(path)!r:.200}: {error}") from error


def _data_url(url: str) -> bytes:
    head, comma, body = url.partition(",")
    if not comma:
        raise _refusal("is a data: URL without a comma")
    if not head.endswith(";base64"):
        return unquote_to_bytes(body)
    try:
        return base64.b64decode(unquote_to_bytes(body), validate=True)
    except binascii.Error as error:
        raise _refusal(f"is no base64: {error}") from error


def _fetch(url: str) -> bytes:
    import urllib.request  # here, as few programs need it and it takes long to load
    from http.client import HTTPException

    try:
        with urllib.request.urlopen(url, timeout=FETCH_TIMEOUT_S) as answer:
            return answer.read(MAX_IMAGE_BYTES + 1)
    except (OSError, ValueError, HTTPException) as error:
        raise _refusal(f"cannot be fetched from {url!r:.200}: {error}") from error


def _picture(data: bytes) -> Picture:
    """Checks type and size; the pixels are read where the model is."""
    check_image_bytes(len(data), "image")
    try:
        from PIL import Image as pillow
    except ImportError as error:
        raise UnsupportedInputError(
            "image needs Pillow: install radixray[images]", param="image"
        ) from error
    formats = tuple(name.upper() for name in IMAGE_FORMATS)
    try:
        with warnings.catch_warnings():
            # Our own limit on pixels is lower than the one that Pillow warns of.
            warnings.simplefilter("ignore", pillow.DecompressionBombWarning)
            with pillow.open(io.BytesIO(data), formats=formats) as opened:
                width, height = opened.size
                kind: Any = str(opened.format).lower()
    except pillow.DecompressionBombError as error:
        raise _refusal(f"has too many pixels: {error}") from error
    except (OSError, SyntaxError, ValueError) as error:
        raise _refusal(f"cannot be read as one of {', '.join(IMAGE_FORMATS)}") from error
    found = Image(hashlib.sha256(data).hexdigest(), kind, width, height)
    found.validate("image")
    return Picture(found, data)


def _refusal(message: str) -> InvalidRequestError:
    return InvalidRequestError(f"image {message}", param="image")
