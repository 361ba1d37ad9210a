"""The scheduler's state: the prefix index, loads, and how fresh the news of each actor is."""

from __future__ import annotations

import time
from collections import OrderedDict
from dataclasses import dataclass

import msgspec

from radixray.cache.radix_tree import TokenArray
from radixray.reports import CacheEvent, CacheSnapshot, Placement, StepReport
from radixray.scheduler.cohorts import Cohort, Cohorts
from radixray.scheduler.index import PrefixIndex, token_array
from radixray.scheduler.routing import ActorLoad, CohortWork, homes_of, place, share_out

FORGET_AFTER_S = 600.0
"""A placement nobody reported on for so long is taken for lost with its caller."""


@dataclass(slots=True)
class _Underway:
    actor: str
    namespace: str
    tokens: TokenArray
    prefill_tokens: int
    since: float


class Router:
    """Places requests by longest prefix and load, and follows the model actors' caches.

    A placement counts at once as held by its actor, so that the next request with that prefix
    follows it; when the request finishes, only what the cache events said remains.

    So does an announced cohort at its homes, where room is kept for it. It is no more than that:
    each of its requests goes where it is best off when it comes.
    """

    def __init__(self, actors: list[str]) -> None:
        self._index = PrefixIndex()
        self._loads = {actor: ActorLoad() for actor in actors}
        self._news: dict[str, tuple[str, int]] = {}
        self._newest: dict[str, tuple[str, int]] = {}
        self._underway: OrderedDict[str, _Underway] = OrderedDict()
        self._down: set[str] = set()
        self._draining: set[str] = set()
        self._left: set[str] = set()
        self._cohorts = Cohorts()

    @property
    def loads(self) -> dict[str, ActorLoad]:
        """Load of each actor, by name."""
        return self._loads

    def place(self, request_id: str, namespace: str, tokens: TokenArray) -> Placement:
        """Chooses an actor and counts the request as its load until it finishes."""
        self._forget_lost()
        loads = self._candidates()
        if (found := self._cohorts.of(namespace, tokens)) is not None:
            # Those to come after it are no work ahead of it.
            loads = {actor: found[1].without_seats(actor, load) for actor, load in loads.items()}
        placement = place(len(tokens), self._index.match(namespace, tokens), loads)
        if found is not None:
            owed = self._take_seat(*found, placement.actor)
            matched = max(0, placement.matched - owed)
            placement = msgspec.structs.replace(placement, matched=matched)
        prefill = len(tokens) - placement.matched
        self.finished(request_id)
        self._underway[request_id] = _Underway(
            placement.actor, namespace, tokens, prefill, time.monotonic()
        )
        self._index.add(placement.actor, namespace, tokens)
        load = self._loads[placement.actor]
        load.requests += 1
        load.prefill_tokens += prefill
        return placement

    def expect(
        self,
        cohort_id: str,
        namespace: str,
        tokens: TokenArray,
        requests: int,
        *,
        at_once: int,
        own_tokens: int = 0,
    ) -> None:
        """Requests that begin with `tokens` will come: chooses where, and keeps room.

        Until they have come, `unexpect` is called, or nothing is heard of them for long.

        Args:
            requests: how many.
            at_once: most of them under way at a time.
            own_tokens: of each prompt, beyond `tokens`.
        """
        self.unexpect(cohort_id)
        loads = self._candidates()
        matches = self._index.match(namespace, tokens)
        work = CohortWork(len(tokens), own_tokens, matches)
        homes = homes_of(work, requests, loads)
        cohort = Cohort(
            namespace,
            tokens,
            requests,
            seats=share_out(work, min(requests, at_once), homes, loads),
            owed={actor: work.uncached(actor) for actor in homes},
        )
        self._cohorts.add(cohort_id, cohort)
        for actor in homes:
            self._index.add(actor, namespace, tokens)
            self._loads[actor].requests += cohort.seats[actor]
            self._loads[actor].prefill_tokens += cohort.owed[actor]
        self._forget_lost()

    def unexpect(self, cohort_id: str) -> None:
        """What is still to come of a cohort will not; an unknown one is ignored."""
        cohort = self._cohorts.pop(cohort_id)
        if cohort is None:
            return
        for actor, seats in cohort.seats.items():
            self._index.remove(actor, cohort.namespace, cohort.tokens)
            self._loads[actor].requests -= seats
            self._loads[actor].prefill_tokens -= cohort.owed.get(actor, 0)

    def finished(self, request_id: str) -> None:
        """The request ended; an unknown one is ignored."""
        underway = self._underway.pop(request_id, None)
        if underway is None:
            return
        self._index.remove(underway.actor, underway.namespace, underway.tokens)
        load = self._loads[underway.actor]
        load.requests -= 1
        load.prefill_tokens -= underway.prefill_tokens

    def unreachable(self, actor: str) -> None:
        """A caller could not reach `actor`: nothing goes there until it reports again."""
        if actor in self._loads and actor not in self._down:
            self._down.add(actor)
            self._forget(actor)

    def leave(self, actor: str) -> None:
        """`actor` is no more. What it reported last may still arrive, and is ignored."""
        if actor in self._loads:
            self._forget(actor)
            del self._loads[actor]
            self._down.discard(actor)
            self._draining.discard(actor)
            self._left.add(self._newest.pop(actor, ("", 0))[0])
            self._news.pop(actor, None)

    def report(self, report: StepReport) -> bool:
        """Applies a report; False asks for a snapshot, because news was missed.

        Whoever reports for the first time takes requests from now on.
        """
        if report.incarnation in self._left:
            return True
        self._loads.setdefault(report.actor, ActorLoad())
        self._down.discard(report.actor)
        (self._draining.add if report.draining else self._draining.discard)(report.actor)
        this = (report.incarnation, report.sequence)
        known = self._news.get(report.actor)
        if known == (report.incarnation, report.sequence - 1):
            known = self._news[report.actor] = this
            for event in report.events:
                self._apply(report.actor, event)
        self._newest[report.actor] = this
        for request_id in report.finished:
            self.finished(request_id)
        # A report older than the last snapshot holds no news.
        return known is not None and known[0] == this[0] and known[1] >= this[1]

    def restore(self, snapshot: CacheSnapshot) -> bool:
        """Replaces all that is known of an actor's cache; False asks for a newer snapshot.

        Requests placed on an earlier incarnation died with it.
        """
        actor = snapshot.actor
        if actor not in self._loads:
            return True
        known = self._news.get(actor)
        if known is not None and known[0] != snapshot.incarnation:
            self._forget(actor)
        else:
            self._index.clear(actor)
            self._add_underway(actor)
        self._news[actor] = (snapshot.incarnation, snapshot.sequence)
        held = PrefixIndex()
        for event in snapshot.events:
            # Leaves of one tree share their upper parts: count each position once.
            tokens = token_array(event.tokens)
            start = held.match(event.namespace, tokens).get(actor, 0)
            held.add(actor, event.namespace, tokens, start)
            self._index.add(actor, event.namespace, tokens, start)
        return self._newest.get(actor, self._news[actor]) <= self._news[actor]

    def matches(self, namespace: str, tokens: TokenArray) -> dict[str, int]:
        """Tokens of the prompt each actor holds or is about to hold."""
        return self._index.match(namespace, tokens)

    def _candidates(self) -> dict[str, ActorLoad]:
        # With all of them down, one may be back by the time the request gets there.
        out = self._down | self._draining
        up = {actor: load for actor, load in self._loads.items() if actor not in out}
        return up or self._loads

    def _take_seat(self, cohort_id: str, cohort: Cohort, actor: str) -> int:
        """One of the cohort goes to `actor`; tokens of its prefix that it must compute there."""
        load = self._loads[actor]
        if cohort.seats.get(actor, 0) > 0:
            cohort.seats[actor] -= 1
            load.requests -= 1
        owed = cohort.owed.pop(actor, 0)
        load.prefill_tokens -= owed
        cohort.to_come -= 1
        if cohort.to_come == 0:
            self.unexpect(cohort_id)
        return owed

    def _apply(self, actor: str, event: CacheEvent) -> None:
        if event.kind == "insert":
            self._index.add(actor, event.namespace, token_array(event.tokens), event.start)
        elif event.kind == "evict":
            self._index.remove(actor, event.namespace, token_array(event.tokens), event.start)
        else:
            self._index.clear(actor)
            self._add_underway(actor)

    def _add_underway(self, actor: str) -> None:
        for underway in self._underway.values():
            if underway.actor == actor:
                self._index.add(actor, underway.namespace, underway.tokens)
        for cohort in self._cohorts:
            if actor in cohort.seats:
                self._index.add(actor, cohort.namespace, cohort.tokens)

    def _forget(self, actor: str) -> None:
        """The actor's cache, and the requests placed on it, died with it; no cohort lives there."""
        for cohort in self._cohorts:
            cohort.seats.pop(actor, None)
            cohort.owed.pop(actor, None)
        self._index.clear(actor)
        self._loads[actor] = ActorLoad()
        for request_id in [i for i, u in self._underway.items() if u.actor == actor]:
            del self._underway[request_id]

    def _forget_lost(self) -> None:
        while (stale := self._cohorts.stale()) is not None:
            self.unexpect(stale)
        horizon = time.monotonic() - FORGET_AFTER_S
        while self._underway:
            request_id, oldest = next(iter(self._underway.items()))
            if oldest.since > horizon:
                break
            self.finished(request_id)
