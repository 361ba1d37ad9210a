"""Which recorded call comes nearest to one that was not recorded, and where they part."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from radixray.testing.recording import Call

_AROUND = 32


def why_not(asked: Call, recorded: Sequence[Call]) -> str:
    """What to tell of a call that none of `recorded` is."""
    alike = [
        (number, call) for number, call in enumerate(recorded, start=2) if call.call == asked.call
    ]
    if not alike:
        return f"no {asked.call} call was recorded at all; asked: {_end(asked.prompt)!r}"
    line, nearest = max(alike, key=lambda numbered: _likeness(asked, numbered[1]))
    if nearest.prompt == asked.prompt:
        return f"the same prompt was recorded with other parameters (line {line}): " + "; ".join(
            _differences(asked, nearest)
        )
    at = _common(asked.prompt, nearest.prompt)
    return (
        f"the nearest recorded prompt (line {line}) differs from character {at} on:\n"
        f"  recorded: {_around(nearest.prompt, at)}\n"
        f"  asked:    {_around(asked.prompt, at)}"
    )


def _likeness(asked: Call, other: Call) -> tuple[int, int]:
    front = _common(asked.prompt, other.prompt)
    back = _common(asked.prompt[::-1], other.prompt[::-1])
    same = asked.prompt == other.prompt
    agreeing = sum(asked.params.get(name) == value for name, value in other.params.items())
    return (2 * len(asked.prompt) if same else front + back), agreeing


def _common(one: str, other: str) -> int:
    """How many characters both begin with."""
    pairs = enumerate(zip(one, other, strict=False))
    return next((i for i, (a, b) in pairs if a != b), min(len(one), len(other)))


def _differences(asked: Call, other: Call) -> list[str]:
    mine: dict[str, Any] = {**asked.params, "choices": asked.choices}
    theirs: dict[str, Any] = {**other.params, "choices": other.choices}
    return [
        f"{name} was {theirs.get(name, 'not given')!r:.200}, is "
        f"{mine.get(name, 'not given')!r:.200}"
        for name in sorted({*mine, *theirs})
        if mine.get(name) != theirs.get(name)
    ]


def _around(text: str, at: int) -> str:
    start = max(0, at - _AROUND)
    shown = repr(text[start : at + _AROUND])
    return ("..." if start else "") + shown + ("..." if at + _AROUND < len(text) else "")


def _end(text: str) -> str:
    return text if len(text) <= 2 * _AROUND else "..." + text[-2 * _AROUND :]
