"""The scheduler's state: the prefix index, loads, and how fresh the news of each actor is."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from radixray.cache.radix_tree import TokenArray
from radixray.explanation import PlacementNote
from radixray.reports import CacheEvent, CacheSnapshot, Placement, Predictions, StepReport
from radixray.scheduler.cohorts import Cohort, Cohorts
from radixray.scheduler.fleet import Fleet
from radixray.scheduler.index import PrefixIndex, token_array
from radixray.scheduler.journal import Journal
from radixray.scheduler.policies import Ask, Policy, Prefix
from radixray.scheduler.routing import (
    ACTIVE_REQUEST_COST,
    ActorLoad,
    CohortWork,
    homes_of,
    share_out,
)
from radixray.scheduler.sessions import Sessions

FORGET_AFTER_S = 600.0
"""A placement nobody reported on for so long is taken for lost with its caller."""


@dataclass(slots=True)
class _Underway:
    actor: int
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

    Args:
        policy: chooses among the actors; by default the least work.
        policy_name: to be told in explanations.
        sticky: a session's requests go where its last one went.
        page_size: tokens of a page of the actors' caches.
    """

    def __init__(
        self,
        actors: Iterable[str],
        policy: Policy | None = None,
        *,
        policy_name: str = "prefix",
        sticky: bool = False,
        page_size: int = 1,
    ) -> None:
        self._fleet = Fleet(actors)
        self._policy = policy or Prefix(0.0)
        self._page_size = page_size
        self._index = PrefixIndex()
        self._journal = Journal(self._fleet, policy_name)
        self._sessions = Sessions() if sticky else None
        self._predictions = {name: Predictions() for name in self._fleet.names}
        self._news: dict[str, tuple[str, int]] = {}
        self._newest: dict[str, tuple[str, int]] = {}
        self._underway: OrderedDict[str, _Underway] = OrderedDict()
        self._left: set[str] = set()
        self._cohorts = Cohorts()

    @property
    def loads(self) -> dict[str, ActorLoad]:
        """Load of each actor, by name."""
        fleet = self._fleet
        return {
            name: fleet.load(number)
            for number, name in enumerate(fleet.names)
            if fleet.members[number]
        }

    @property
    def predictions(self) -> dict[str, Predictions]:
        """How right the placements on each actor were, by name."""
        return self._predictions

    def explain(self, request_id: str) -> PlacementNote | None:
        """The last placement of a request, if it is remembered."""
        return self._journal.note(request_id)

    def join(self, actor: str) -> int:
        """Requests can go to `actor`, too, from now on; its number."""
        self._predictions.setdefault(actor, Predictions())
        return self._fleet.join(actor)

    def place(
        self, request_id: str, namespace: str, tokens: TokenArray, session: str = ""
    ) -> Placement:
        """Chooses an actor and counts the request as its load until it finishes."""
        self._forget_lost()
        found = self._index.find(namespace, tokens)
        matched = found.lengths(len(self._fleet))
        member = self._cohorts.of(namespace, tokens)
        actor, reason = self._choose(
            tokens, session, matched, member and member[1], found.shared_end()
        )
        predicted = int(matched[actor])
        if member is not None:
            owed = self._take_seat(*member, actor)
            predicted = max(0, predicted - owed)
        self._journal.add(
            request_id,
            tokens,
            actor=actor,
            reason=reason,
            session=session,
            predicted=predicted,
            matched=matched,
            parting=found.parting,
        )
        self.finished(request_id)  # an earlier attempt of it
        prefill = len(tokens) - predicted
        self._underway[request_id] = _Underway(actor, namespace, tokens, prefill, time.monotonic())
        self._index.add(actor, namespace, tokens)
        self._fleet.add(actor, 1, prefill)
        if self._sessions is not None and session:
            self._sessions.went(session, actor)
        return Placement(actor=self._fleet.names[actor], matched=predicted, reason=reason)

    def _choose(
        self,
        tokens: TokenArray,
        session: str,
        matched: NDArray[np.int64],
        cohort: Cohort | None,
        shared: int,
    ) -> tuple[int, str]:
        """The number of an actor, and why that one."""
        fleet = self._fleet
        numbers = fleet.candidates()
        if len(numbers) == 1:
            return int(numbers[0]), "only"
        if self._sessions is not None and session:
            actor = self._sessions.actor_of(session)
            if actor is not None and actor in numbers:
                return actor, "session"
        costs, requests = fleet.costs(), fleet.requests
        if cohort is not None:
            # Its homes are as many as it needs, and those to come after it are no work ahead of it.
            shared = 0
            requests = requests.copy()
            for name, seats in cohort.seats.items():
                number = self._number(name)
                requests[number] -= seats
                costs[number] -= ACTIVE_REQUEST_COST * seats
        if len(numbers) < len(fleet):
            matched, costs, requests = matched[numbers], costs[numbers], requests[numbers]
        ask = Ask(tokens, session, shared, numbers, matched, costs, requests, self._index.held)
        row, reason = self._policy.choose(ask)
        return int(numbers[row]), reason

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
        names = self._fleet.names
        loads = {names[n]: self._fleet.load(n) for n in self._fleet.candidates()}
        held = self._index.match(namespace, tokens)
        matches = {names[number]: length for number, length in held.items()}
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
            number = self._number(actor)
            self._index.add(number, namespace, tokens)
            self._fleet.add(number, cohort.seats[actor], cohort.owed[actor])
        self._forget_lost()

    def unexpect(self, cohort_id: str) -> None:
        """What is still to come of a cohort will not; an unknown one is ignored."""
        cohort = self._cohorts.pop(cohort_id)
        if cohort is None:
            return
        for actor, seats in cohort.seats.items():
            number = self._number(actor)
            self._index.remove(number, cohort.namespace, cohort.tokens)
            self._fleet.add(number, -seats, -cohort.owed.get(actor, 0))

    def finished(self, request_id: str) -> None:
        """The request ended; an unknown one is ignored."""
        underway = self._underway.pop(request_id, None)
        if underway is None:
            return
        self._index.remove(underway.actor, underway.namespace, underway.tokens)
        self._fleet.add(underway.actor, -1, -underway.prefill_tokens)

    def unreachable(self, actor: str) -> None:
        """A caller could not reach `actor`: nothing goes there until it reports again."""
        number = self._fleet.number(actor)
        if number is not None and self._fleet.mark(number, up=False):
            self._forget(number)

    def leave(self, actor: str) -> None:
        """`actor` is no more. What it reported last may still arrive, and is ignored."""
        number = self._fleet.number(actor)
        if number is not None:
            self._forget(number)
            self._fleet.leave(number)
            self._left.add(self._newest.pop(actor, ("", 0))[0])
            self._news.pop(actor, None)

    def report(self, report: StepReport) -> bool:
        """Applies a report; False asks for a snapshot, because news was missed.

        Whoever reports for the first time takes requests from now on.
        """
        if report.incarnation in self._left:
            return True
        number = self._fleet.number(report.actor)
        if number is None:
            number = self.join(report.actor)
        self._fleet.mark(number, up=True)
        self._fleet.drain(number, draining=report.draining)
        this = (report.incarnation, report.sequence)
        known = self._news.get(report.actor)
        if known == (report.incarnation, report.sequence - 1):
            known = self._news[report.actor] = this
            for event in report.events:
                self._apply(number, event)
        self._newest[report.actor] = this
        for request_id in report.prefilled:
            self._prefilled(request_id, number)
        for request_id, tokens in zip(report.finished, report.found, strict=False):
            self._compare(request_id, number, tokens)
        for request_id in report.finished:
            self.finished(request_id)
        # A report older than the last snapshot holds no news.
        return known is not None and known[0] == this[0] and known[1] >= this[1]

    def restore(self, snapshot: CacheSnapshot) -> bool:
        """Replaces all that is known of an actor's cache; False asks for a newer snapshot.

        Requests placed on an earlier incarnation died with it.
        """
        actor = snapshot.actor
        number = self._fleet.number(actor)
        if number is None:
            return True
        known = self._news.get(actor)
        if known is not None and known[0] != snapshot.incarnation:
            self._forget(number)
        else:
            self._index.clear(number)
            self._add_underway(number)
        self._news[actor] = (snapshot.incarnation, snapshot.sequence)
        held = PrefixIndex()
        for event in snapshot.events:
            # Leaves of one tree share their upper parts: count each position once.
            tokens = token_array(event.tokens)
            start = max(held.find(event.namespace, tokens).ends, default=0)
            held.add(number, event.namespace, tokens, start)
            self._index.add(number, event.namespace, tokens, start)
        return self._newest.get(actor, self._news[actor]) <= self._news[actor]

    def matches(self, namespace: str, tokens: TokenArray) -> dict[str, int]:
        """Tokens of the prompt each actor holds or is about to hold."""
        names = self._fleet.names
        return {names[n]: length for n, length in self._index.match(namespace, tokens).items()}

    def _number(self, actor: str) -> int:
        number = self._fleet.number(actor)
        assert number is not None
        return number

    def _prefilled(self, request_id: str, actor: int) -> None:
        underway = self._underway.get(request_id)
        if underway is not None and underway.actor == actor:
            self._fleet.add(actor, 0, -underway.prefill_tokens)
            underway.prefill_tokens = 0

    def _compare(self, request_id: str, actor: int, found: int) -> None:
        record = self._journal.get(request_id)
        if record is None or record.found is not None or record.actor != actor or found < 0:
            return
        record.found = found
        counts = self._predictions[self._fleet.names[actor]]
        counts.requests += 1
        counts.predicted_tokens += record.predicted
        counts.found_tokens += found
        # The last token of a prompt is computed in any case, and only whole pages are found.
        reusable = min(record.predicted, record.prompt_tokens - 1)
        counts.too_many += reusable - found >= self._page_size
        counts.too_few += found - reusable >= self._page_size

    def _take_seat(self, cohort_id: str, cohort: Cohort, actor: int) -> int:
        """One of the cohort goes to `actor`; tokens of its prefix that it must compute there."""
        name = self._fleet.names[actor]
        owed = cohort.owed.pop(name, 0)
        seat = cohort.seats.get(name, 0) > 0
        if seat:
            cohort.seats[name] -= 1
        self._fleet.add(actor, -seat, -owed)
        cohort.to_come -= 1
        if cohort.to_come == 0:
            self.unexpect(cohort_id)
        return owed

    def _apply(self, actor: int, event: CacheEvent) -> None:
        if event.kind == "insert":
            self._index.add(actor, event.namespace, token_array(event.tokens), event.start)
        elif event.kind == "evict":
            self._index.remove(actor, event.namespace, token_array(event.tokens), event.start)
        else:
            self._index.clear(actor)
            self._add_underway(actor)

    def _add_underway(self, actor: int) -> None:
        for underway in self._underway.values():
            if underway.actor == actor:
                self._index.add(actor, underway.namespace, underway.tokens)
        for cohort in self._cohorts:
            if self._fleet.names[actor] in cohort.seats:
                self._index.add(actor, cohort.namespace, cohort.tokens)

    def _forget(self, actor: int) -> None:
        """The actor's cache, and the requests placed on it, died with it; no cohort lives there."""
        for cohort in self._cohorts:
            cohort.seats.pop(self._fleet.names[actor], None)
            cohort.owed.pop(self._fleet.names[actor], None)
        self._index.clear(actor)
        self._fleet.reset(actor)
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
