"""Bounds of numbers, so stated that all decimals within them can be written.

llguidance 1.9.1 refuses the beginning of a bound as a number of its own: with `maximum` 2.25 it
takes 2.20 but not 2.2. Adding those beginnings as alternatives gives them back; which values are
valid stays the same.
"""

from __future__ import annotations

from decimal import ROUND_DOWN, Decimal
from typing import Any

_NUMERIC = {"number", "integer", "null", "boolean"}
_KEYWORDS = {"type", "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"}
_MOST_DIGITS = 12


def split_bounds(schema: dict[str, Any]) -> dict[str, Any]:
    """`schema`, or the alternatives that together mean the same."""
    types = schema.get("type", [])
    types = {types} if isinstance(types, str) else set(types)
    if "number" not in types or not types <= _NUMERIC or not schema.keys() <= _KEYWORDS:
        return schema
    options = [schema]
    # Cut off, a bound moves towards zero: for these two sides that is inside.
    for keyword, exclusive, sign in (
        ("maximum", "exclusiveMaximum", 1),
        ("minimum", "exclusiveMinimum", -1),
    ):
        given = [name for name in (keyword, exclusive) if name in schema]
        if len(given) == 1:
            rest = {name: value for name, value in schema.items() if name != given[0]}
            options += [{**rest, keyword: cut} for cut in _beginnings(schema[given[0]], sign)]
    return schema if len(options) == 1 else {"anyOf": options}


def _beginnings(bound: float, sign: int) -> list[float]:
    """The decimals that `bound`, of that sign, begins with, but for those without a fraction."""
    exact = Decimal(str(bound))
    exponent = exact.as_tuple().exponent
    digits = -exponent if isinstance(exponent, int) else 0
    if exact * sign <= 0 or digits > _MOST_DIGITS:
        return []
    return [
        float(exact.quantize(Decimal(1).scaleb(-kept), rounding=ROUND_DOWN))
        for kept in range(1, digits)
    ]
