"""Images as requests carry them: what they are, and once their bytes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal, get_args

import msgspec

from radixray.checks import check_int
from radixray.errors import InvalidRequestError, UnsupportedInputError
from radixray.namespaces import ImageKey

ImageFormat = Literal["png", "jpeg", "webp", "gif", "bmp"]
IMAGE_FORMATS: tuple[str, ...] = get_args(ImageFormat)

MAX_IMAGES = 64
MAX_IMAGE_BYTES = 20 * 2**20
MAX_IMAGES_BYTES = 128 * 2**20
"""Of one request."""
MAX_IMAGE_SIDE = 2**15
MAX_IMAGE_PIXELS = 2**26


class Image(msgspec.Struct, frozen=True):
    """What an image is; its bytes travel apart, so that they need to only once.

    Attributes:
        sha256: of the encoded bytes.
        format: how they encode it.
        width, height: in pixels.
    """

    sha256: str
    format: ImageFormat
    width: int
    height: int

    @property
    def key(self) -> ImageKey:
        """What separates KV that depends on it; models see three channels."""
        return ImageKey(self.sha256, (self.height, self.width, 3))

    def validate(self, param: str = "images") -> None:
        """Raises InvalidRequestError, naming `param` and the limit."""
        if self.format not in IMAGE_FORMATS:
            raise InvalidRequestError(
                f"{param} must be of format {', '.join(IMAGE_FORMATS)}, not {self.format!r:.80}",
                param=param,
            )
        for side in (self.width, self.height):
            check_int(param, side, 1, MAX_IMAGE_SIDE)
        if self.width * self.height > MAX_IMAGE_PIXELS:
            raise InvalidRequestError(
                f"{param} must have at most {MAX_IMAGE_PIXELS} pixels, not "
                f"{self.width} x {self.height}",
                param=param,
            )
        self.key  # noqa: B018  (it checks the hash)


def check_images(
    images: Sequence[Image], data: Mapping[str, bytes], model: str, placeholder: str | None
) -> None:
    """Checks what a request carries.

    Args:
        images: in the order of the prompt.
        data: the bytes of some of them, by `sha256`.
        model: its name.
        placeholder: what stands for an image in the model's prompts; None where it takes none.

    Raises:
        UnsupportedInputError: the model takes none.
        InvalidRequestError: too many, too large, or bytes of none of them.
    """
    if not images and not data:
        return
    if placeholder is None:
        raise no_images_error(model, "images")
    if len(images) > MAX_IMAGES:
        raise InvalidRequestError(
            f"images must hold at most {MAX_IMAGES} items, not {len(images)}", param="images"
        )
    for image in images:
        image.validate()
    unknown = set(data) - {image.sha256 for image in images}
    if unknown:
        raise InvalidRequestError(
            f"image_data holds bytes of {min(unknown)!r:.80}, which is no image of the request",
            param="image_data",
        )
    for each in data.values():
        check_image_bytes(len(each), "image_data")
    total = sum(map(len, data.values()))
    if total > MAX_IMAGES_BYTES:
        raise InvalidRequestError(
            f"image_data must have at most {MAX_IMAGES_BYTES} bytes in all, not {total}",
            param="image_data",
        )


def check_image_bytes(length: int, param: str) -> None:
    """Raises InvalidRequestError: no image has so few, or so many, bytes."""
    if not 1 <= length <= MAX_IMAGE_BYTES:
        raise InvalidRequestError(
            f"{param} must have from 1 to {MAX_IMAGE_BYTES} bytes, not {length}", param=param
        )


def no_images_error(model: str, param: str) -> UnsupportedInputError:
    """The error for an image given to a model that takes none."""
    return UnsupportedInputError(
        f"{param} cannot be used: model {model!r} takes no images, only text", param=param
    )
