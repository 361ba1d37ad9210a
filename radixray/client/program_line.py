"""Which line of a program appended an operation."""

from __future__ import annotations

import os
import sys

_BETWEEN = ("radixray.", "contextlib")


def program_line() -> tuple[str, int] | None:
    """File and line of the nearest caller outside this package; None where the loop called."""
    frame = sys._getframe(1)
    while frame is not None:
        module = str(frame.f_globals.get("__name__"))
        if module.startswith("asyncio."):
            return None
        if not module.startswith(_BETWEEN):
            return frame.f_code.co_filename, frame.f_lineno
        frame = frame.f_back
    return None


def in_short(line: tuple[str, int] | None) -> str:
    """It, at the end of a message."""
    return "" if line is None else f" ({os.path.basename(line[0])}:{line[1]})"
