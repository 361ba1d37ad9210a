"""Typed results: what an output is held to, and how it then reads as a Python value."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, get_args

from radixray.constraint import CONSTRAINT_KINDS
from radixray.errors import InvalidRequestError, OutputError
from radixray.json_schemas import type_adapter


@dataclass(frozen=True)
class Reading:
    """How an output is read.

    Attributes:
        what: the type, for errors.
        constraint: what the output is held to: one field of `Constraint`.
        parse: from its text to the value; raises ValueError.
        ends: characters of which one may follow, for the model to end with; not part of it.
        start_after: the value begins only after this text, "" for at once.
    """

    what: str
    constraint: Mapping[str, Any]
    parse: Callable[[str], Any]
    ends: str = ""
    start_after: str = ""

    def trim(self, text: str) -> str:
        """The output without the character that ended it."""
        return text.rstrip(self.ends) if self.ends else text

    def read(self, text: str, *, cut_off: bool = False) -> Any:
        """The value.

        Raises:
            OutputError: the output, which `max_tokens` may have `cut_off`, is not of the type.
        """
        value = text.partition(self.start_after)[2] if self.start_after else text
        try:
            return self.parse(value)
        except ValueError as error:
            why = "max_tokens cut it off" if cut_off else error
            raise OutputError(
                f"the output {text!r:.80} cannot be read as {self.what}: {why}", text=text
            ) from error


# A model puts a space before a word. A number may be followed by what would follow it in prose:
# with only digits and the end to choose from, a model that wants a full stop writes more digits.
_NUMBER_ENDS = " \n;)"
_READINGS: dict[type, Reading] = {
    int: Reading("int", {"regex": r" ?[-+]?[0-9]+[ \n;).]?"}, int, _NUMBER_ENDS + "."),
    float: Reading("float", {"regex": r" ?[-+]?[0-9]+(?:\.[0-9]+)?[ \n;)]?"}, float, _NUMBER_ENDS),
    bool: Reading("bool", {"regex": r" ?(?:True|False)"}, lambda text: text.strip() == "True"),
    str: Reading(
        "str", {"regex": r' ?"(?:[^"\\\x00-\x1f]|\\["\\/bfnrt])*"'}, lambda text: json.loads(text)
    ),
}


def reading_of(params: Mapping[str, Any]) -> Reading | None:
    """What `dtype` or `type` asks for, or None.

    Raises:
        InvalidRequestError: an unknown `dtype`, or several things to hold the output to.
        ConstraintError: a `type` that pydantic has no schema for.
    """
    asked = [name for name in ("dtype", "type") if params.get(name) is not None]
    if not asked:
        return None
    others = [kind for kind in CONSTRAINT_KINDS if params.get(kind) is not None]
    if len(asked + others) > 1:
        first, second = (asked + others)[:2]
        raise InvalidRequestError(
            f"{first} and {second} are in conflict: each says what the output must be", param=first
        )
    start_after = params.get("start_after") or ""
    if asked == ["dtype"]:
        return _with_start(_of_dtype(params["dtype"]), start_after)
    adapter = type_adapter(params["type"])
    # The name of a list[int] would be list.
    named = isinstance(params["type"], type) and not get_args(params["type"])
    what = params["type"].__name__ if named else str(params["type"])
    # pydantic's ValidationError is a ValueError.
    return _with_start(Reading(what, {"json_schema": adapter}, adapter.validate_json), start_after)


def _of_dtype(dtype: Any) -> Reading:
    reading = _READINGS.get(dtype) if isinstance(dtype, type) else None
    if reading is None:
        raise InvalidRequestError(
            f"dtype must be int, float, bool or str, not {dtype!r:.80}; for other types, type=...",
            param="dtype",
        )
    return reading


def _with_start(reading: Reading, start_after: str) -> Reading:
    return Reading(reading.what, reading.constraint, reading.parse, reading.ends, start_after)
