"""An engine on the hash model, and requests to it.

All tests that compare with `expected_tokens` build their engine here, so that a setting of the
engine that must change no answer is added in one place: `NEUTRAL`.
"""

from __future__ import annotations

from typing import Any

from engine_driver import EngineDriver
from hash_model import VOCAB, HashModel

from radixray.cache.prefix_cache import PrefixCache
from radixray.config import EvictionPolicy
from radixray.engine.engine import Engine
from radixray.protocol import ModelInfo
from radixray.scheduler.plan import BatchLimits
from radixray.tokenizer.tokenizer import Tokenizer

NEUTRAL: list[dict[str, Any]] = [{"overlap": True}, {"overlap": False}]
"""Settings of `Engine` that must change no answer; tests of retraction run under each."""


def hash_engine(
    tokenizer: Tokenizer,
    *,
    page_size: int = 1,
    pool_tokens: int = 640,
    context: int = 200,
    max_num_seqs: int = 16,
    max_batch_tokens: int = 48,
    prefix_cache: bool = True,
    eviction_policy: EvictionPolicy = "lru",
    **settings: Any,
) -> tuple[Engine, HashModel]:
    """An engine that checks its ledger after every step, and its model.

    Args:
        settings: of `Engine`.
    """
    model = HashModel(pool_tokens)
    num_pages = pool_tokens // page_size
    engine = Engine(
        model,  # type: ignore[arg-type]
        None,  # type: ignore[arg-type]
        PrefixCache(num_pages, page_size, enabled=prefix_cache, policy=eviction_policy),
        tokenizer,
        ModelInfo(
            name="hash",
            context_length=context,
            pool_tokens=num_pages * page_size,
            vocab_size=VOCAB,
            eos_token_ids=(2,),
            dtype="float32",
            max_queued_requests=10_000,
        ),
        BatchLimits(max_num_seqs, max_batch_tokens, page_size, share_prefixes=prefix_cache),
        check_invariants=True,
        **settings,
    )
    return engine, model


def hash_driver(tokenizer: Tokenizer, **options: Any) -> EngineDriver:
    """`hash_engine` with a driver."""
    return EngineDriver(hash_engine(tokenizer, **options)[0])


def assert_nothing_is_held(engine: Engine) -> None:
    """Free and cached pages are all there are; after a flush, all are free."""
    stats = engine.snapshot_stats()
    assert (stats.running, stats.waiting, stats.pages_leased) == (0, 0, 0)
    assert stats.pages_free + stats.pages_tree == stats.pages_total
    assert engine.cache.tree.num_evictable == engine.cache.tree.num_pages
    engine.cache.flush()
    assert engine.cache.pool.num_free == engine.cache.pool.num_pages
    assert engine.cache.check() == []
