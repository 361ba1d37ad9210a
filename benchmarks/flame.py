"""A sampling profiler of one thread's Python stacks, and its flame graph as one SVG file."""

from __future__ import annotations

import sys
import threading
from collections import Counter
from collections.abc import Iterator
from html import escape
from types import FrameType

Stack = tuple[str, ...]
"""Functions from the outermost to the innermost."""

WIDTH, ROW, TOP = 1200.0, 17, 40
_LETTER = 6.6


class Sampler:
    """Looks at the thread that starts it, every few milliseconds.

    It sees the stack only when that thread lets go of the interpreter's lock, as kernels do, or is
    asked to: time in other C code counts for the Python function that called it.
    """

    def __init__(self, interval_s: float = 0.002) -> None:
        self._interval = interval_s
        self._stacks: Counter[Stack] = Counter()
        self._done = threading.Event()
        self._thread: threading.Thread | None = None
        self._outer = 0

    def start(self) -> None:
        """Begins, with the thread that calls this; stacks begin at its caller."""
        self._outer = len(_stack(sys._getframe(1))) - 1
        self._thread = threading.Thread(target=self._watch, args=(threading.get_ident(),))
        self._thread.start()

    def stop(self) -> Counter[Stack]:
        """Ends; how often each stack was seen."""
        self._done.set()
        if self._thread is not None:
            self._thread.join()
        return self._stacks

    def _watch(self, ident: int) -> None:
        while not self._done.wait(self._interval):
            self._stacks[_stack(sys._current_frames().get(ident))[self._outer :]] += 1


def _stack(frame: FrameType | None) -> Stack:
    names = []
    while frame is not None:
        names.append(f"{frame.f_code.co_qualname} ({_module(frame)})")
        frame = frame.f_back
    return tuple(reversed(names))


def _module(frame: FrameType) -> str:
    return str(frame.f_globals.get("__name__", "?")).removeprefix("radixray.")


def flame_graph(stacks: Counter[Stack], title: str) -> str:
    """An SVG image: width is time, and what a function calls stands above it."""
    total = max(1, sum(stacks.values()))
    boxes = list(_boxes(sorted(stacks.items()), 0, 0))
    depth = 1 + max((level for level, *_ in boxes), default=0)
    height = TOP + depth * ROW + 10
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH:.0f} {height}" '
        'font-family="monospace" font-size="11">',
        '<rect width="100%" height="100%" fill="#fffdf7"/>',
        f'<text x="10" y="24" font-size="15">{escape(title)}, {total} samples</text>',
    ]
    for level, start, count, name in boxes:
        x, width = start / total * WIDTH, count / total * WIDTH
        if width < 0.5:
            continue
        y = height - 10 - (level + 1) * ROW
        hue = 20 + sum(name.encode()) % 35
        label = escape(name[: int((width - 6) / _LETTER)]) if width > 20 else ""
        parts.append(
            f'<g><title>{escape(name)}: {count / total:.1%}</title><rect x="{x:.1f}" y="{y}" '
            f'width="{width:.1f}" height="{ROW - 1}" rx="2" fill="hsl({hue} 85% 65%)"/>'
            f'<text x="{x + 3:.1f}" y="{y + 12}">{label}</text></g>'
        )
    return "\n".join([*parts, "</svg>\n"])


def _boxes(
    stacks: list[tuple[Stack, int]], level: int, start: int
) -> Iterator[tuple[int, int, int, str]]:
    """(level, samples to the left, samples, name) of each box.

    Args:
        stacks: sorted; all the same below `level`.
    """
    index = 0
    while index < len(stacks):
        stack, count = stacks[index]
        end = index + 1
        if level < len(stack):
            while (
                end < len(stacks) and stacks[end][0][level : level + 1] == stack[level : level + 1]
            ):
                count += stacks[end][1]
                end += 1
            yield level, start, count, stack[level]
            yield from _boxes(stacks[index:end], level + 1, start)
        start += count
        index = end
