"""The model actors that requests can go to, by number, and what each has to do."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from radixray.scheduler.routing import ACTIVE_REQUEST_COST, ActorLoad


class Fleet:
    """A column for each thing to know of an actor; an actor's number is its row.

    Attributes:
        names: of the actors, by number.
        requests: under way on each, or room kept for requests to come.
        prefill_tokens: of their prompts that were not expected in its cache.
        up: whether it is believed to answer.
        draining: whether it wants nothing new.
        members: whether it is one of the fleet; a number stays that of one name.
    """

    def __init__(self, names: Iterable[str]) -> None:
        self.names = list(names)
        self._numbers = {name: number for number, name in enumerate(self.names)}
        self.requests = np.zeros(len(self.names), np.int64)
        self.prefill_tokens = np.zeros(len(self.names), np.int64)
        self.up = np.ones(len(self.names), np.bool_)
        self.draining = np.zeros(len(self.names), np.bool_)
        self.members = np.ones(len(self.names), np.bool_)
        self._candidates: NDArray[np.int64] | None = None

    def __len__(self) -> int:
        return len(self.names)

    def number(self, name: str) -> int | None:
        """Of a member; None where it is none."""
        number = self._numbers.get(name)
        return number if number is not None and self.members[number] else None

    def join(self, name: str) -> int:
        """The number of an actor, which is a member from now on."""
        self._candidates = None
        number = self._numbers.get(name)
        if number is None:
            self._numbers[name] = number = len(self.names)
            self.names.append(name)
            self.requests = np.append(self.requests, 0)
            self.prefill_tokens = np.append(self.prefill_tokens, 0)
            self.up = np.append(self.up, True)
            self.draining = np.append(self.draining, False)
            self.members = np.append(self.members, True)
        self.members[number] = True
        return number

    def leave(self, number: int) -> None:
        """It is no member any more, and has nothing to do."""
        self._candidates = None
        self.reset(number)
        self.members[number] = self.draining[number] = False
        self.up[number] = True

    def mark(self, number: int, *, up: bool) -> bool:
        """Notes whether an actor answers; False where that is no news."""
        if bool(self.up[number]) == up:
            return False
        self._candidates = None
        self.up[number] = up
        return True

    def drain(self, number: int, *, draining: bool) -> None:
        """Notes whether it wants nothing new."""
        if bool(self.draining[number]) != draining:
            self._candidates = None
            self.draining[number] = draining

    def add(self, number: int, requests: int, prefill_tokens: int) -> None:
        """So much more, or less, is to be done by an actor."""
        self.requests[number] += requests
        self.prefill_tokens[number] += prefill_tokens

    def reset(self, number: int) -> None:
        """An actor has nothing to do."""
        self.requests[number] = self.prefill_tokens[number] = 0

    def load(self, number: int) -> ActorLoad:
        """What one actor has to do."""
        return ActorLoad(int(self.requests[number]), int(self.prefill_tokens[number]))

    def costs(self) -> NDArray[np.int64]:
        """[actors]: `ActorLoad.cost` of each."""
        return self.prefill_tokens + ACTIVE_REQUEST_COST * self.requests

    def candidates(self) -> NDArray[np.int64]:
        """Numbers of those that a request can go to."""
        if self._candidates is None:
            found = np.flatnonzero(self.members & self.up & ~self.draining)
            # With all of them down, one may be back by the time the request gets there.
            self._candidates = found if len(found) else np.flatnonzero(self.members)
        return self._candidates
