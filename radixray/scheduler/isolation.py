"""Requests that may have killed model actors run in batches of their own, until they have not.

An actor that dies takes all requests of its batch along, and their callers send them elsewhere.
Together again, the one that is to blame, if one is, would take the innocent along once more; alone,
it convicts itself.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from radixray.scheduler.plan import BatchLimits, BatchPlan, RequestView, plan_batch


def plan_apart(
    waiting: Sequence[RequestView],
    running: Sequence[RequestView],
    available_pages: int,
    limits: BatchLimits,
    *,
    growth: float,
    turn: bool,
) -> BatchPlan:
    """`plan_batch` for requests that may stand together; or, by turns, for one that may not.

    Args:
        turn: it is the turn of those that are to be alone; they also get it if nobody else runs.
    """

    def plan(waiting: list[RequestView], running: list[RequestView]) -> BatchPlan:
        return plan_batch(waiting, running, available_pages, limits, growth=growth)

    if not any(view.alone for view in (*running, *waiting)):
        return plan(list(waiting), list(running))
    others = plan([v for v in waiting if not v.alone], [v for v in running if not v.alone])
    if others.extend and not turn:
        return others
    begun = [view for view in running if view.alone]
    # Where others run on, it needs room beside them.
    room = available_pages * limits.page_size if others.extend else sys.maxsize
    next_up = [view for view in waiting if view.alone and view.num_tokens < room]
    lone = plan([], begun[:1]) if begun else plan(next_up[:1], [])
    return lone if lone.extend else others
