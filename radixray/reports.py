"""What model actors report of their caches and counters, and the placements made from it."""

from __future__ import annotations

import msgspec


class Placement(msgspec.Struct, frozen=True, kw_only=True):
    """Where the scheduler actor sends a request, and why.

    Attributes:
        actor: Ray name of the model actor.
        matched: prompt tokens that actor is believed to hold.
        reason: ``prefix`` (holds the longest prefix), ``load`` (least to do), ``only``, ``session``
            (its session's last request went there), or the name of another policy.
    """

    actor: str
    matched: int
    reason: str


class CacheEvent(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """A change of one radix tree.

    Attributes:
        kind: ``insert``, ``evict`` or ``clear``.
        namespace: of the tree (`radixray.cache.radix_tree`).
        tokens: little-endian int32 token ids of the whole path from the root.
        start: tokens before `start` are still held; those from `start` on came or went.
    """

    kind: str
    namespace: str = ""
    tokens: bytes = b""
    start: int = 0


class StepReport(msgspec.Struct, frozen=True, kw_only=True):
    """What a model actor tells the scheduler actor after steps that changed something.

    Attributes:
        actor: Ray name of the model actor.
        incarnation: differs after each restart of the actor.
        sequence: one more than the last report's; a gap asks for a snapshot.
        events: changes of the radix tree, in order.
        finished: ids of requests that ended.
        found: of each of these, the tokens it found in the cache when it first started; -1 where it
            never did. May be empty: nothing is known.
        prefilled: ids of requests whose prompts are computed now.
        draining: it takes no new requests.
    """

    actor: str
    incarnation: str
    sequence: int
    events: list[CacheEvent]
    finished: list[str]
    found: list[int] = []
    prefilled: list[str] = []
    draining: bool = False


class Predictions(msgspec.Struct, kw_only=True):
    """What was predicted to be cached on one model actor, beside what requests found there.

    Attributes:
        requests: those that told what they found.
        predicted_tokens, found_tokens: their sums.
        too_many, too_few: requests for which more, or less, was predicted than was found, by at
            least a page.
    """

    requests: int = 0
    predicted_tokens: int = 0
    found_tokens: int = 0
    too_many: int = 0
    too_few: int = 0


class CacheSnapshot(msgspec.Struct, frozen=True, kw_only=True):
    """All that one model actor holds: an ``insert`` event for each leaf, as of `sequence`."""

    actor: str
    incarnation: str
    sequence: int
    events: list[CacheEvent]


class EngineStats(msgspec.Struct, kw_only=True):
    """Counters and gauges of one engine.

    Attributes:
        reachable: False where the actor did not answer; all else but `restarts` is 0 then.
        restarts: how often its actor died and was started again, where somebody counts.
        steps: engine steps run since start.
        heartbeat_age_s: seconds since the engine thread last showed life.
        running, waiting: requests now.
        prefill_tokens: prompt tokens computed since start.
        cached_tokens: prompt tokens of finished requests that were found in the cache instead.
        generated_tokens: output tokens since start.
        jumped_tokens: of these, tokens that a constraint forced, taken without asking the model.
        retractions: requests pushed back for want of pages.
        pages_total, pages_free, pages_tree, pages_leased: the page ledger; the last three sum
            to the first.
        pages_pinned: of the tree's pages, those that pins hold.
        ledger_violations: faults of the ledger found, and repaired, since start.
    """

    reachable: bool = True
    restarts: int = 0
    steps: int = 0
    heartbeat_age_s: float = 0.0
    running: int = 0
    waiting: int = 0
    prefill_tokens: int = 0
    cached_tokens: int = 0
    generated_tokens: int = 0
    jumped_tokens: int = 0
    retractions: int = 0
    pages_total: int = 0
    pages_free: int = 0
    pages_tree: int = 0
    pages_leased: int = 0
    pages_pinned: int = 0
    ledger_violations: int = 0


class PinReport(msgspec.Struct, frozen=True, kw_only=True):
    """A pin that was made.

    Attributes:
        pin_id: to end it early; 0 if nothing of the prefix was cached.
        tokens: how many of the asked tokens it holds.
        pages_pinned, pin_budget: pages pinned on that model actor now, and the most allowed.
    """

    pin_id: int
    tokens: int
    pages_pinned: int
    pin_budget: int


class CacheNode(msgspec.Struct, frozen=True, kw_only=True):
    """One node of a radix tree.

    Attributes:
        id: position in `CacheTree.nodes`.
        parent: id of the parent; None for the first node of a prefix.
        namespace: the cache salt it belongs to.
        start, length: the positions its tokens take in their prefix.
        pages, pages_below: pages it holds, and all below it.
        hits: matches that passed through it.
        age_s, idle_s: seconds since it was made, and since it was last used.
        priority: the highest priority of any request that used it.
        locks, pins: how many leases and pins, and how many pins, need it to stay.
        holders: requests and pins that end here.
        head: its first token ids.
    """

    id: int
    parent: int | None
    namespace: str
    start: int
    length: int
    pages: int
    pages_below: int
    hits: int
    age_s: float
    idle_s: float
    priority: int
    locks: int
    pins: int
    holders: list[str]
    head: list[int]


class CacheTree(msgspec.Struct, frozen=True, kw_only=True):
    """What a model actor caches, for people.

    Attributes:
        nodes: the nodes with most pages at or below them, parents before children.
        page_size: tokens a page holds.
        policy: of eviction.
        total_nodes: of which `nodes` may be a part.
        pages_total, pages_free, pages_tree, pages_leased: the page ledger.
        pages_evictable, pages_pinned: of the tree's pages, those nobody uses, and those pins hold.
    """

    nodes: list[CacheNode]
    page_size: int
    policy: str
    total_nodes: int
    pages_total: int
    pages_free: int
    pages_tree: int
    pages_evictable: int
    pages_pinned: int
    pages_leased: int
