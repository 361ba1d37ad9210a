"""Which line of a program appended an operation."""

from __future__ import annotations

import os
import sys

_OURS = ("radixray.", "asyncio.", "contextlib")


def program_line() -> tuple[str, int] | None:
    """File and line of the nearest caller outside this package; None in a task of its own."""
    frame = sys._getframe(1)
    while frame is not None and f"{frame.f_globals.get('__name__')}".startswith(_OURS):
        frame = frame.f_back
    return None if frame is None else (frame.f_code.co_filename, frame.f_lineno)


def in_short(line: tuple[str, int] | None) -> str:
    """It, at the end of a message."""
    return "" if line is None else f" ({os.path.basename(line[0])}:{line[1]})"
