"""How long an actor that has died should wait before it starts again."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

FIRST_PAUSE_S = 0.5
LONGEST_PAUSE_S = 60.0

STEADY_S = 30.0
"""An actor that lived so long, once it was ready, did not die of its start."""


@dataclass(slots=True)
class _Life:
    restarts: int = 0
    early_deaths: int = 0
    ready_at: float | None = None


class Restarts:
    """Counts how often each actor was started again, and spaces out those that die soon.

    The first restart comes at once: most deaths have nothing to do with the start. An actor that
    dies again soon after waits, each time twice as long, up to a limit.

    Args:
        now: a clock, in seconds.
    """

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._lives: dict[str, _Life] = {}

    @property
    def counts(self) -> dict[str, int]:
        """By actor: how often it was started again."""
        return {actor: life.restarts for actor, life in self._lives.items()}

    def starting(self, actor: str, *, again: bool) -> float:
        """The actor starts; for how many seconds it should wait before it does.

        Args:
            again: whether it ran before, and died.
        """
        life = self._lives.setdefault(actor, _Life())
        if not again:  # another one of this name
            life.early_deaths, life.ready_at = 0, None
            return 0.0
        life.restarts += 1
        if life.ready_at is not None and self._now() - life.ready_at >= STEADY_S:
            life.early_deaths = 0
        life.early_deaths += 1
        life.ready_at = None
        if life.early_deaths == 1:
            return 0.0
        # No power of two this big is needed, and a bigger one is no float.
        doublings = min(life.early_deaths - 2, 32)
        return min(LONGEST_PAUSE_S, FIRST_PAUSE_S * 2**doublings)

    def ready(self, actor: str) -> None:
        """The actor has started, and works."""
        life = self._lives.setdefault(actor, _Life())
        if life.ready_at is None:
            life.ready_at = self._now()

    def leave(self, actor: str) -> None:
        """Forgets an actor that is no more."""
        self._lives.pop(actor, None)
