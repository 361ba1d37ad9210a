"""Pins, flush and ledger repairs under a running engine."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import pytest
from engine_driver import EngineDriver, join

from radixray.cache.page_pool import TREE
from radixray.engine.thread import EngineThread
from radixray.errors import InvalidRequestError
from radixray.namespaces import namespace_of
from radixray.protocol import SamplingParams

PROMPT = list(range(100, 140))
NAMESPACE = namespace_of("smollm2-135m")
SHORT = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True)


def tokens(ids: list[int]) -> np.ndarray:
    return np.array(ids, np.int32)


@pytest.fixture
def driver(make_engine: Any) -> EngineDriver:
    return make_engine(pool_tokens=256)


def corrupt_shared(driver: EngineDriver) -> None:
    """Frees pages that a running request reads, as a bug would; another may then write there."""
    cache = driver.engine.cache
    lease = next(lease for lease in cache.leases.values() if lease.num_shared)
    cache.pool.release(lease.shared_pages()[:5].copy(), TREE)


def corrupt_private(driver: EngineDriver) -> None:
    cache = driver.engine.cache
    lease = next(iter(cache.leases.values()))
    cache.pool.release(lease.private_pages()[:1], lease.id)


def corrupt_owners(driver: EngineDriver) -> None:
    driver.engine.cache.pool.owner[:64] = 77


def corrupt_books(driver: EngineDriver) -> None:
    driver.engine.cache.tree.num_evictable += 5
    driver.engine.cache.pool.num_free -= 3


@pytest.mark.parametrize(
    "corrupt", [corrupt_shared, corrupt_private, corrupt_owners, corrupt_books]
)
def test_requests_survive_a_corrupt_ledger(driver: EngineDriver, corrupt: Any) -> None:
    prompts = [PROMPT, [*PROMPT[:20], 7, 8, 9], [5] * 12]
    expected = [driver.one(prompt, SHORT).token_ids for prompt in prompts]
    driver.engine.cache.flush()
    requests = [driver.request(prompt, SHORT) for prompt in prompts]
    for request in requests:
        driver.engine.add(request)
    deltas = [delta for _ in range(4) for delta in driver.engine.step().deltas]
    corrupt(driver)
    assert driver.engine.roster.repair_ledger() > 0
    for request_deltas in driver.drain().values():
        deltas += request_deltas
    for request, ids in zip(requests, expected, strict=True):
        mine = [delta for delta in deltas if delta.request_id == request.request_id]
        assert join(mine).token_ids == ids
    assert driver.engine.snapshot_stats().ledger_violations > 0
    driver.engine.cache.flush()
    assert driver.engine.cache.pool.num_free == 256


def test_a_ledger_fault_at_the_end_of_a_request_costs_it_nothing(driver: EngineDriver) -> None:
    expected = driver.one([5] * 12, SHORT).token_ids
    driver.engine.cache.flush()
    request = driver.request([5] * 12, SHORT)
    driver.engine.add(request)
    deltas = driver.engine.step().deltas
    (lease,) = driver.engine.cache.leases.values()
    driver.engine._check_invariants = False
    lease.extend(14)
    driver.engine.cache.pool.owner[lease.private_pages()] = 77
    deltas += driver.drain()[request.request_id]
    assert join(deltas).token_ids == expected
    assert driver.engine.stats.ledger_violations > 0
    assert driver.engine.cache.check() == []


def test_a_ledger_fault_in_a_prefill_ends_its_batch_only(make_engine: Any) -> None:
    driver: EngineDriver = make_engine(pool_tokens=256, chunked_prefill_size=16)
    driver.one(PROMPT, SHORT)
    request = driver.request([5] * 40, SHORT)
    driver.engine.add(request)
    driver.engine.step()
    (lease,) = driver.engine.cache.leases.values()
    driver.engine._check_invariants = False
    lease.extend(40)
    driver.engine.cache.pool.owner[lease.private_pages()] = 77
    deltas = driver.drain()[request.request_id]
    assert deltas[-1].error is not None and deltas[-1].error.type == "EngineError"
    assert driver.engine.cache.check() == []
    assert driver.one(PROMPT, SHORT).usage.cached == len(PROMPT) - 1


def test_an_idle_engine_repairs_its_ledger(driver: EngineDriver) -> None:
    expected = driver.one(PROMPT, SHORT).token_ids
    pool = driver.engine.cache.pool
    pool.allocate(9, owner=12345)
    driver.engine.roster.idle()
    assert driver.engine.stats.ledger_violations == 9
    assert pool.num_free + driver.engine.cache.tree.num_pages == 256
    again = driver.one(PROMPT, SHORT)
    assert again.token_ids == expected and again.usage.cached == len(PROMPT) - 1


def test_a_request_that_needs_the_pinned_pages_ends_the_pins(driver: EngineDriver) -> None:
    driver.one(PROMPT, SHORT)
    assert driver.engine.cache.pin(NAMESPACE, tokens(PROMPT), 600, "ann").tokens == len(PROMPT)
    out = driver.one([9] * 100, SHORT)
    assert out.usage.completion == 8 and len(driver.engine.cache.pins) == 1
    out = driver.one([6] * 248, SHORT)
    assert out.usage.completion == 8 and len(driver.engine.cache.pins) == 0


def test_a_pin_expires_while_requests_run(driver: EngineDriver) -> None:
    driver.one(PROMPT, SHORT)
    driver.engine.cache.pin(NAMESPACE, tokens(PROMPT), 0, "ann")
    driver.one([1, 2], SHORT)
    assert len(driver.engine.cache.pins) == 0


def test_control_calls_through_the_thread(driver: EngineDriver) -> None:
    driver.one(PROMPT, SHORT)
    driver.engine.step()
    outputs: list[Any] = []
    thread = EngineThread(lambda: driver.engine, outputs.append)
    try:
        prompt = tokens(PROMPT).tobytes()
        report = thread.pin("ann", NAMESPACE, prompt, 60).result(10)
        assert (report.tokens, report.pages_pinned, report.pin_budget) == (40, 40, 64)
        with pytest.raises(InvalidRequestError, match="ttl_s"):
            thread.pin("ann", NAMESPACE, prompt, -1).result(10)
        assert thread.ask(lambda engine: engine.cache.flush()).result(10) > 0
        # Idle, yet the events of the flush go out.
        for _ in range(500):
            if outputs:
                break
            time.sleep(0.01)
        assert [event.kind for event in outputs[0].events] == ["clear", "insert"]
        assert thread.stats().pages_pinned == 40
        assert thread.unpin("bob", report.pin_id).result(10) == 0
        assert thread.unpin("ann", report.pin_id).result(10) == 1
        assert thread.unpin("ann").result(10) == 0
        view = thread.ask(lambda engine: engine.cache.view(5)).result(10)
        assert [node.length for node in view.nodes] == [40]
    finally:
        thread.stop()
