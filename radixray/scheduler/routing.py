"""Where a request should run: a pure choice among model actors."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from radixray.reports import Placement

ACTIVE_REQUEST_COST = 16
"""Prefill tokens that a request under way is taken to cost a newcomer."""

RECOMPUTE_COST = 2
"""Each prompt token an actor must compute counts twice: it delays this request and those behind
it. Without that, the second of a burst would recompute on an idle actor the very prefix that the
first is computing, and be no sooner done."""


@dataclass(slots=True)
class ActorLoad:
    """What was placed on one model actor and has not finished.

    Attributes:
        requests: requests under way.
        prefill_tokens: tokens of their prompts that were not expected in its cache.
    """

    requests: int = 0
    prefill_tokens: int = 0

    @property
    def cost(self) -> int:
        """Work ahead of a newcomer, in prefill tokens."""
        return self.prefill_tokens + ACTIVE_REQUEST_COST * self.requests


def place(
    prompt_tokens: int, matches: Mapping[str, int], loads: Mapping[str, ActorLoad]
) -> Placement:
    """The actor with the least work: its queue, and the prompt's tokens it does not hold.

    So the longest prefix wins among equally loaded actors, and an overloaded holder loses to an
    idle one when recomputing the prefix is cheaper than waiting. Ties go to the longer match,
    then to fewer requests, then to the first name.

    Args:
        matches: tokens of the prompt each actor holds; missing means none.
        loads: every candidate's load; at least one.
    """

    def work(actor: str) -> tuple[int, int, int, str]:
        matched, load = matches.get(actor, 0), loads[actor]
        uncached = RECOMPUTE_COST * (prompt_tokens - matched)
        return uncached + load.cost, -matched, load.requests, actor

    chosen = min(loads, key=work)
    matched = matches.get(chosen, 0)
    if len(loads) == 1:
        reason = "only"
    elif matched > 0 and matched == max(matches.get(actor, 0) for actor in loads):
        reason = "prefix"
    else:
        reason = "load"
    return Placement(actor=chosen, matched=matched, reason=reason)
