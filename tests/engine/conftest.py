from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
import torch
from engine_driver import EngineDriver

from radixray.cache.prefix_cache import PrefixCache
from radixray.config import Dtype, EngineConfig
from radixray.engine.build import build_engine
from radixray.engine.engine import Engine
from radixray.scheduler.plan import BatchLimits
from radixray.tokenizer.tokenizer import Tokenizer


@functools.cache
def _loaded(dtype: Dtype) -> Engine:
    return build_engine(EngineConfig(dtype=dtype, max_total_tokens=16_384))


@pytest.fixture(scope="session")
def tokenizer(model_folder: Path) -> Tokenizer:
    return Tokenizer.from_folder(model_folder)


@pytest.fixture
def make_engine() -> Callable[..., EngineDriver]:
    """Engines that share the loaded weights and KV memory but nothing else.

    Every engine checks its page ledger after every step.
    """

    def make(
        *,
        pool_tokens: int = 16_384,
        page_size: int = 1,
        prefix_cache: bool = True,
        max_num_seqs: int = 64,
        chunked_prefill_size: int = 512,
        max_queued_requests: int = 4096,
        dtype: Dtype = "float32",
        overlap: bool = True,
    ) -> EngineDriver:
        loaded = _loaded(dtype)
        torch.manual_seed(0)

        return EngineDriver(
            Engine(
                loaded._model,
                loaded._kv_pool,
                PrefixCache(pool_tokens // page_size, page_size, enabled=prefix_cache),
                loaded.tokenizer,
                msgspec.structs.replace(
                    loaded.info,
                    pool_tokens=pool_tokens,
                    max_queued_requests=max_queued_requests,
                ),
                BatchLimits(max_num_seqs, chunked_prefill_size, page_size, prefix_cache),
                overlap=overlap,
                check_invariants=True,
            )
        )

    return make
