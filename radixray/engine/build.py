"""From a configuration to a ready engine."""

from __future__ import annotations

import logging
import os

import torch

from radixray.cache.prefix_cache import PrefixCache
from radixray.config import EngineConfig
from radixray.engine.engine import Engine
from radixray.errors import InvalidRequestError
from radixray.kernels.kv_pool import KVPool
from radixray.models.loader import load_model
from radixray.models.resolve import resolve_model
from radixray.protocol import ModelInfo
from radixray.scheduler.plan import BatchLimits
from radixray.tokenizer.tokenizer import Tokenizer

DEFAULT_POOL_TOKENS = 65_536
DEFAULT_POOL_SHARE = 0.25
"""Of the free memory, where that is less than DEFAULT_POOL_TOKENS take."""

log = logging.getLogger("radixray")


def build_engine(config: EngineConfig) -> Engine:
    """Loads the model and sizes the KV pool.

    Raises:
        ModelNotFoundError, UnsupportedModelError: from loading.
        InvalidRequestError: a limit the model or the memory does not allow.
    """
    folder = resolve_model(config.model)
    free = _free_memory()
    dtype = getattr(torch, config.dtype)
    model = load_model(folder, dtype)
    shape = model.config
    context = config.context_length or shape.max_position_embeddings
    if context > shape.max_position_embeddings:
        raise InvalidRequestError(
            f"context_length must be at most the model's {shape.max_position_embeddings}, "
            f"not {context}",
            param="context_length",
        )
    slot_bytes = KVPool.bytes_per_slot(shape.num_layers, shape.num_kv_heads, shape.head_dim, dtype)
    if config.max_total_tokens is not None:
        wanted = config.max_total_tokens
    elif config.mem_fraction_static is not None:
        weights = max(0, free - _free_memory())
        wanted = int(free * config.mem_fraction_static - weights) // slot_bytes
    else:
        wanted = min(DEFAULT_POOL_TOKENS, int(_free_memory() * DEFAULT_POOL_SHARE) // slot_bytes)
    num_pages = wanted // config.page_size
    if num_pages < 1:
        raise InvalidRequestError(
            f"the KV pool must hold at least one page of {config.page_size} tokens, not "
            f"{max(wanted, 0)}: raise max_total_tokens or mem_fraction_static",
            param="max_total_tokens",
        )
    pool_tokens = num_pages * config.page_size
    log.info("KV pool: %d tokens, %.0f MiB", pool_tokens, pool_tokens * slot_bytes / 2**20)
    return Engine(
        model,
        KVPool(shape.num_layers, shape.num_kv_heads, shape.head_dim, pool_tokens, dtype),
        PrefixCache(
            num_pages,
            config.page_size,
            enabled=config.prefix_cache,
            policy=config.eviction_policy,
            pin_budget=config.pin_budget,
        ),
        Tokenizer.from_folder(folder),
        ModelInfo(
            name=config.model,
            context_length=context,
            pool_tokens=pool_tokens,
            vocab_size=shape.vocab_size,
            eos_token_ids=tuple(shape.eos_token_ids),
            dtype=config.dtype,
            max_queued_requests=config.max_queued_requests,
        ),
        BatchLimits(
            max_num_seqs=config.max_num_seqs,
            max_batch_tokens=config.chunked_prefill_size,
            page_size=config.page_size,
            share_prefixes=config.prefix_cache,
        ),
        schedule_policy=config.schedule_policy,
        overlap=config.overlap,
        fsm_debug=config.fsm_debug,
        check_invariants=config.check_invariants,
    )


def _free_memory() -> int:
    """Bytes of memory this machine can still give."""
    return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
