"""Checks of parameters. Their errors name the parameter and its limit."""

from __future__ import annotations

import math
from collections.abc import Sequence

from radixray.errors import InvalidRequestError


def check_int(name: str, value: object, low: int, high: int | None = None) -> None:
    """Raises InvalidRequestError unless `value` is an integer from `low` to `high`."""
    limit = f"at least {low}" if high is None else f"from {low} to {high}"
    if isinstance(value, bool) or not isinstance(value, int):
        raise InvalidRequestError(f"{name} must be an integer {limit}, not {value!r}", param=name)
    if value < low or (high is not None and value > high):
        raise InvalidRequestError(f"{name} must be {limit}, not {value}", param=name)


def check_number(name: str, value: object, low: float, high: float) -> None:
    """Raises InvalidRequestError unless `value` is a finite number from `low` to `high`."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise InvalidRequestError(
            f"{name} must be a number from {low:g} to {high:g}, not {value!r}", param=name
        )
    if not math.isfinite(value) or not low <= value <= high:
        raise InvalidRequestError(
            f"{name} must be from {low:g} to {high:g}, not {value}", param=name
        )


def check_sequence(name: str, value: object, most: int) -> None:
    """Raises InvalidRequestError unless `value` is a list or tuple of at most `most` items."""
    if not isinstance(value, tuple | list):
        raise InvalidRequestError(f"{name} must be a list, not {value!r}", param=name)
    if len(value) > most:
        raise InvalidRequestError(
            f"{name} must hold at most {most} items, not {len(value)}", param=name
        )


def check_text(name: str, value: object, most: int) -> None:
    """Raises InvalidRequestError unless `value` is a string of Unicode characters, not too long."""
    if not isinstance(value, str):
        raise InvalidRequestError(f"{name} must be a string, not {value!r}", param=name)
    if len(value) > most:
        raise InvalidRequestError(
            f"{name} must have at most {most} characters, not {len(value)}", param=name
        )
    try:
        value.encode()
    except UnicodeEncodeError as error:
        # Python strings may hold half of a surrogate pair, which is no character.
        raise InvalidRequestError(
            f"{name} holds a lone surrogate at character {error.start}", param=name
        ) from None


def check_choice(name: str, value: object, choices: Sequence[str]) -> None:
    """Raises InvalidRequestError unless `value` is one of `choices`."""
    if value not in choices:
        raise InvalidRequestError(
            f"{name} must be one of {', '.join(choices)}, not {value!r}", param=name
        )
