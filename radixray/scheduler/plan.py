"""Which requests run in the next step, by how many tokens, and which are pushed back.

`plan_batch` is a pure function: the same views give the same plan, so plans can be printed,
replayed, and tested without a model. The engine carries a plan out; it decides nothing itself.

Ideas: chunked prefill in one token budget (Sarathi-Serve, arXiv 2403.02310), recompute on
retraction (vLLM, arXiv 2309.06180), admission by expected growth (SGLang).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import ceil

from radixray.cache.radix_tree import TokenArray

FOLLOW_TOKENS = 32
"""A request waits for another's prefill if that saves it at least this many tokens."""

STARVED_STEPS = 64
"""A request that waited so many steps and does not fit lets no other pass, so that pages gather
for it."""


@dataclass(frozen=True, slots=True)
class RequestView:
    """What the planner sees of one request.

    Attributes:
        request_id: whose.
        arrival: order of arrival; retracted requests keep theirs.
        num_tokens: prompt and output tokens so far.
        computed: of these, how many have their KV in pages. While waiting: how many would be
            found in the cache.
        pages: running: pages its lease holds. Waiting: 0.
        reclaimable: running: pages that free up if it is retracted. Waiting: matched pages that
            are evictable now and would not be once it runs.
        remaining: output tokens it may still generate.
        passed_over: steps it has waited.
        alone: it must not share a batch (`radixray.scheduler.isolation`).
        namespace, tokens: what it prefills, to find requests that share it; tokens is int32.
    """

    request_id: str
    arrival: int
    num_tokens: int
    computed: int
    pages: int = 0
    reclaimable: int = 0
    remaining: int = 0
    passed_over: int = 0
    alone: bool = False
    namespace: str = field(default="", repr=False)
    tokens: TokenArray | None = field(default=None, repr=False)

    @property
    def uncomputed(self) -> int:
        """Tokens still to be computed."""
        return self.num_tokens - self.computed


@dataclass(frozen=True, slots=True)
class BatchLimits:
    """Bounds of one step.

    Attributes:
        max_num_seqs: most requests that run at once.
        max_batch_tokens: most tokens one step computes (`chunked_prefill_size`).
        page_size: tokens a page holds.
        share_prefixes: whether waiting for another's prefill can pay (the cache is on).
    """

    max_num_seqs: int
    max_batch_tokens: int
    page_size: int = 1
    share_prefixes: bool = True


@dataclass(slots=True)
class BatchPlan:
    """The whole contract between the planner and the engine.

    Attributes:
        extend: (request id, tokens to compute) in the order of the batch; decodes are extends
            by one token. Holds admitted requests too.
        admit: waiting requests that start; they take their cached prefix first.
        retract: running requests that give their pages back and wait again.
        follow: waiting request -> the request whose prefill it waits for.
    """

    extend: list[tuple[str, int]] = field(default_factory=list)
    admit: list[str] = field(default_factory=list)
    retract: list[str] = field(default_factory=list)
    follow: dict[str, str] = field(default_factory=dict)


def plan_batch(
    waiting: Sequence[RequestView],
    running: Sequence[RequestView],
    available_pages: int,
    limits: BatchLimits,
    *,
    growth: float = 1.0,
) -> BatchPlan:
    """The next step's plan.

    Running requests go first, oldest first; when pages run out, the youngest is retracted, and
    nothing is admitted in that step. Waiting requests are admitted in the order given
    (`radixray.scheduler.order`) while their prompts and what all are expected to generate fit;
    one that does not fit is passed by others until it has waited STARVED_STEPS. A request that
    shares an uncomputed prefix with one being prefilled waits for it.

    Args:
        waiting: in the order they should start.
        available_pages: pages free or evictable.
        growth: the part of their `remaining` tokens that requests are expected to generate
            (`radixray.scheduler.admission`).
    """
    plan = BatchPlan()
    budget = _plan_running(plan, running, available_pages, limits)
    if plan.retract or not waiting:
        return plan
    # What running requests take in this step and still need to finish their prefill is spoken for.
    spoken_for = sum(
        max(0, _pages_for(r.num_tokens + ceil(growth * r.remaining), limits.page_size) - r.pages)
        for r in running
    )
    leaders = _Leaders(limits)
    for view in running:
        if view.uncomputed > 1:
            leaders.add(view)
    free_pages = available_pages - spoken_for
    seats = limits.max_num_seqs - len(running)
    for view in waiting:
        if seats == 0 or (budget == 0 and view.uncomputed > 0):
            break
        leader = leaders.worth_waiting_for(view)
        if leader is not None:
            plan.follow[view.request_id] = leader
            continue
        need = _pages_for(view.num_tokens + ceil(growth * view.remaining), limits.page_size)
        need += view.reclaimable - view.computed // limits.page_size
        if need > free_pages and (running or plan.admit):
            if view.passed_over >= STARVED_STEPS:
                break
            continue
        tokens = min(budget, view.uncomputed)
        plan.admit.append(view.request_id)
        plan.extend.append((view.request_id, tokens))
        leaders.add(view)
        free_pages -= need
        budget -= tokens
        seats -= 1
    return plan


def _plan_running(
    plan: BatchPlan, running: Sequence[RequestView], available_pages: int, limits: BatchLimits
) -> int:
    """Plans the running requests; returns the token budget that is left."""
    oldest_first = sorted(running, key=lambda view: view.arrival)
    decodes = sum(view.uncomputed == 1 for view in oldest_first)
    budget = max(limits.max_batch_tokens - decodes, 0 if decodes else 1)
    kept = len(oldest_first)
    at = 0
    while at < kept:
        view = oldest_first[at]
        tokens = 1 if view.uncomputed == 1 else min(budget, view.uncomputed)
        need = _pages_for(view.computed + tokens, limits.page_size) - view.pages
        if need > available_pages:
            kept -= 1
            youngest = oldest_first[kept]
            plan.retract.append(youngest.request_id)
            available_pages += youngest.reclaimable
            continue
        if tokens > 0:
            plan.extend.append((view.request_id, tokens))
            available_pages -= max(need, 0)
            if view.uncomputed != 1:
                budget -= tokens
        at += 1
    return budget


def _pages_for(tokens: int, page_size: int) -> int:
    return -(-tokens // page_size)


class _Leaders:
    """Requests being prefilled, found by the first tokens of what they prefill."""

    def __init__(self, limits: BatchLimits) -> None:
        self._enabled = limits.share_prefixes
        self._page_size = limits.page_size
        self._by_head: dict[tuple[str, bytes], list[RequestView]] = {}

    def add(self, view: RequestView) -> None:
        head = self._head(view)
        if head is not None:
            self._by_head.setdefault(head, []).append(view)

    def worth_waiting_for(self, view: RequestView) -> str | None:
        """The request whose prefill will give `view` FOLLOW_TOKENS more cached tokens."""
        head = self._head(view)
        for leader in self._by_head.get(head, ()) if head is not None else ():
            # Only whole pages are shared.
            common = _common_prefix(leader.tokens, view.tokens)
            if common // self._page_size * self._page_size - view.computed >= FOLLOW_TOKENS:
                return leader.request_id
        return None

    def _head(self, view: RequestView) -> tuple[str, bytes] | None:
        # A prefix worth waiting for covers the first FOLLOW_TOKENS, so these find all sharers.
        if not self._enabled or view.tokens is None or len(view.tokens) < FOLLOW_TOKENS:
            return None
        return view.namespace, view.tokens[:FOLLOW_TOKENS].tobytes()


def _common_prefix(a: TokenArray | None, b: TokenArray | None) -> int:
    if a is None or b is None:
        return 0
    size = min(len(a), len(b))
    differ = a[:size] != b[:size]
    return int(differ.argmax()) if differ.any() else size
